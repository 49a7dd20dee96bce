package main

import (
	"context"
	"fmt"
	"net/netip"
	"os/exec"
	"strings"
)

// runDocker runs a command of Docker's and gives its output.
func runDocker(ctx context.Context, args ...string) (string, error) {
	out, err := exec.CommandContext(ctx, "docker", args...).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("docker %s: %w\n%s", args[0], err, out)
	}
	return strings.TrimSpace(string(out)), nil
}

// nodeContainers are the containers of a lab's nodes, the control plane's among them.
func nodeContainers(ctx context.Context, lab string) ([]string, error) {
	out, err := runDocker(
		ctx, "ps", "--filter", "network=ccmlab-"+lab, "--filter", "label=io.x-k8s.kind.role", "--format", "{{.Names}}",
	)
	if err != nil {
		return nil, err
	}
	nodes := strings.Fields(out)
	if len(nodes) == 0 {
		return nil, fmt.Errorf("no nodes of a lab %s are in Docker; is it one on kind?", lab)
	}
	return nodes, nil
}

// countWorkers counts the nodes on which the tests' pods run: not the control plane, which is tainted.
func countWorkers(ctx context.Context, kubeconfig string) (int, error) {
	out, err := kubectlGet(
		ctx, kubeconfig, "nodes", `{range .items[*]}{.metadata.name}{"\n"}{end}`,
		"--selector", "!node-role.kubernetes.io/control-plane",
	)
	return len(strings.Fields(out)), err
}

// rejectUnserved has the nodes reject what is sent to a cluster IP and port that no Service has.
// kube-proxy in its mode iptables leaves such packets to the default route, on which some networks
// have a proxy that answers for every address; then Services seem to be there after their deletion.
func rejectUnserved(ctx context.Context, kubeconfig string, nodes []string) error {
	ranges, err := kubectlGet(ctx, kubeconfig, "servicecidrs", `{.items[*].spec.cidrs[*]}`)
	if err != nil {
		return err
	}
	// kube-proxy has changed the destination of what is served before the table filter sees it.
	const script = `for chain in FORWARD OUTPUT; do
  iptables -C "$chain" -d "$0" -j REJECT 2>/dev/null || iptables -A "$chain" -d "$0" -j REJECT || exit 1
done`
	for cidr := range strings.FieldsSeq(ranges) {
		if strings.Contains(cidr, ":") {
			continue // The lab has Services of IPv4.
		}
		for _, node := range nodes {
			if _, err := runDocker(ctx, "exec", node, "sh", "-c", script, cidr); err != nil {
				return fmt.Errorf("reject unserved cluster IPs on %s: %w", node, err)
			}
		}
	}
	return nil
}

// outsideAddress is that of a client that is not in the nodes' network, of a range for such
// purposes (RFC 2544).
const outsideAddress = "198.18.0.1"

// enterFromOutside has this machine send to the balancers of a lab from outsideAddress. A test of the
// client's address takes whatever is in the nodes' /16 for a node's, and there this machine has an
// address, too. The engine, which may do so, changes the routes; leave has them as before.
func enterFromOutside(ctx context.Context, lab, node string) (leave func() error, err error) {
	network, err := runDocker(
		ctx, "network", "inspect", "--format", "{{.Id}} {{(index .IPAM.Config 0).Subnet}}", "ccmlab-"+lab,
	)
	if err != nil {
		return nil, err
	}
	image, err := runDocker(ctx, "inspect", "--format", "{{.Config.Image}}", node)
	if err != nil {
		return nil, err
	}
	id, cidr, _ := strings.Cut(network, " ")
	subnet, err := netip.ParsePrefix(cidr)
	if err != nil {
		return nil, err
	}
	// Balancers have the upper half of it.
	upper := subnet.Addr().As4()
	upper[subnet.Bits()/8] |= 1 << (7 - subnet.Bits()%8)
	route := fmt.Sprintf(
		"%s/%d dev br-%.12s src %s", netip.AddrFrom4(upper), subnet.Bits()+1, id, outsideAddress,
	)
	change := func(ctx context.Context, script string) error {
		_, err := runDocker(
			ctx, "run", "--rm", "--network", "host", "--cap-add", "NET_ADMIN", "--entrypoint", "sh", image, "-c", script,
		)
		return err
	}
	address := outsideAddress + "/32 dev lo"
	leave = func() error {
		return change(context.WithoutCancel(ctx), "ip route del "+route+"; ip address del "+address)
	}
	return leave, change(ctx, "ip address replace "+address+" && ip route replace "+route)
}

// kubectlGet gets objects with kubectl, in the form of a JSONPath template.
func kubectlGet(ctx context.Context, kubeconfig, resource, template string, args ...string) (string, error) {
	args = append([]string{
		"--kubeconfig", kubeconfig, "get", resource, "--output", "jsonpath=" + template,
	}, args...)
	out, err := exec.CommandContext(ctx, kubectlProgram, args...).Output()
	if err != nil {
		return "", fmt.Errorf("kubectl get %s: %w", resource, err)
	}
	return string(out), nil
}
