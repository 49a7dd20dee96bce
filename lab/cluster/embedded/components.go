package embedded

// The command lines of the components, as upstream documents them. Lease and grace
// times are short, so that a stopped machine shows within seconds.

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/ccmlab/ccmlab/lab/atomicfile"
	"github.com/ccmlab/ccmlab/lab/cluster"
	"github.com/ccmlab/ccmlab/lab/cluster/local"
	"github.com/ccmlab/ccmlab/lab/pki"
	"github.com/ccmlab/ccmlab/lab/process"
)

// auditPolicy records who changed a Node, and nothing else. It leaves out status
// updates, which every kubelet sends continuously.
const auditPolicy = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: RequestResponse
  verbs: [create, update, patch, delete]
  resources: [{group: "", resources: [nodes]}]
- level: None
`

// AuditLog is the path of the audit log. Each line is one audit.k8s.io/v1.Event.
func (c *Cluster) AuditLog() string { return c.Lab.Path("logs", "audit.jsonl") }

func (c *Cluster) etcdSpec() process.Spec {
	clients, peers := "https://"+c.Endpoint(local.PortEtcd), "https://"+c.Endpoint(local.PortEtcdPeer)
	ca, tls := c.pkiPath("etcd-ca.crt"), pki.PairAt(c.pkiPath(), "etcd")
	return c.Spec("etcd", "etcd",
		"--name="+c.Lab.Name,
		"--data-dir="+c.Lab.Path("etcd"),
		"--listen-client-urls="+clients,
		"--advertise-client-urls="+clients,
		"--listen-peer-urls="+peers,
		"--initial-advertise-peer-urls="+peers,
		"--initial-cluster="+c.Lab.Name+"="+peers,
		"--client-cert-auth", "--trusted-ca-file="+ca, "--cert-file="+tls.Cert, "--key-file="+tls.Key,
		"--peer-client-cert-auth", "--peer-trusted-ca-file="+ca, "--peer-cert-file="+tls.Cert,
		"--peer-key-file="+tls.Key,
		"--log-level=warn",
	)
}

func (c *Cluster) auditPolicyFile() string { return c.Lab.Path("audit-policy.yaml") }

// auditFlags are the flags that make the API server write AuditLog, if there is an AuditPolicy.
func (c *Cluster) auditFlags() []string {
	if c.AuditPolicy == "" {
		return nil
	}
	return []string{
		"--audit-policy-file=" + c.auditPolicyFile(), "--audit-log-path=" + c.AuditLog(),
		"--audit-log-maxsize=20", "--audit-log-maxbackup=1",
	}
}

func (c *Cluster) apiserverSpec() process.Spec {
	etcd, tls := pki.PairAt(c.pkiPath(), "etcd-client"), pki.PairAt(c.pkiPath(), local.PortAPIServer)
	kubelets, tokens := pki.PairAt(c.pkiPath("users"), userKubelets), pki.PairAt(c.pkiPath(), "service-account")
	return c.Spec("kube-apiserver", "kube-apiserver", append(c.auditFlags(),
		"--etcd-servers=https://"+c.Endpoint(local.PortEtcd),
		"--etcd-cafile="+c.pkiPath("etcd-ca.crt"), "--etcd-certfile="+etcd.Cert, "--etcd-keyfile="+etcd.Key,
		"--bind-address="+c.Address(), "--secure-port="+c.Port(local.PortAPIServer), "--advertise-address="+c.Address(),
		"--tls-cert-file="+tls.Cert, "--tls-private-key-file="+tls.Key,
		"--client-ca-file="+c.pkiPath("ca.crt"),
		"--requestheader-client-ca-file="+c.pkiPath(frontProxyCA+".crt"),
		"--requestheader-allowed-names=front-proxy-client",
		"--requestheader-username-headers=X-Remote-User", "--requestheader-group-headers=X-Remote-Group",
		"--requestheader-extra-headers-prefix=X-Remote-Extra-",
		"--anonymous-auth=false",
		"--authorization-mode=Node,RBAC",
		"--enable-admission-plugins=NodeRestriction",
		"--kubelet-certificate-authority="+c.pkiPath("ca.crt"),
		"--kubelet-client-certificate="+kubelets.Cert, "--kubelet-client-key="+kubelets.Key,
		"--kubelet-preferred-address-types=InternalIP",
		"--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-key-file="+tokens.Cert, "--service-account-signing-key-file="+tokens.Key,
		"--service-cluster-ip-range="+c.serviceCIDRs(),
		// Loopback is not allowed in EndpointSlices, and nothing in this
		// cluster could reach a ClusterIP anyway.
		"--endpoint-reconciler-type=none",
		"--profiling=false",
	)...)
}

// serviceCIDRs are the half of 10.X.0.0/16 that is not used for pods, and an IPv6 range, so that Services can
// ask for either family. Pods have IPv4 alone: they answer on loopback, which has one IPv6 address.
func (c *Cluster) serviceCIDRs() string {
	return fmt.Sprintf("10.%d.0.0/17,fd00:10:%x::/112", c.Lab.Slot, c.Lab.Slot)
}

// nodePodBits is the prefix length of a node's pod range: 125 addresses, above the
// kubelet's limit of 110 pods, and room for 256 nodes.
const nodePodBits = 25

// kubeletPort is the kubelet's usual port. Another port is used where a process,
// perhaps a real kubelet, holds it on 0.0.0.0.
const kubeletPort = 10250

func (c *Cluster) controllerManagerSpec() process.Spec {
	args := append(c.servingFlags(local.PortKCM, userKCM), c.listenFlags(local.PortKCM)...)
	return c.Spec("kube-controller-manager", "kube-controller-manager", append(args,
		c.cloudProvider(),
		"--cluster-name="+c.Lab.Name,
		"--leader-elect=false", // There is only one.
		"--use-service-account-credentials",
		"--root-ca-file="+c.pkiPath("ca.crt"),
		"--service-account-private-key-file="+pki.PairAt(c.pkiPath(), "service-account").Key,
		"--allocate-node-cidrs", "--cluster-cidr="+c.PodCIDR(), fmt.Sprintf("--node-cidr-mask-size=%d", nodePodBits),
		"--configure-cloud-routes=false",
		"--service-cluster-ip-range="+c.serviceCIDRs(),
		"--node-monitor-period=1s", "--node-monitor-grace-period=8s",
		// At its start every controller fetches a token; the default of 20 a
		// second would make the nodes wait for their pod ranges.
		"--kube-api-qps=200", "--kube-api-burst=400",
		"--profiling=false",
	)...)
}

func (c *Cluster) schedulerSpec() process.Spec {
	args := append(c.servingFlags(local.PortScheduler, userScheduler), c.listenFlags(local.PortScheduler)...)
	return c.Spec("kube-scheduler", "kube-scheduler", append(args, "--leader-elect=false", "--profiling=false")...)
}

func (c *Cluster) ccmSpec() process.Spec { return c.CCM(c.CCMIdentity()...) }

// CCMCommand implements cluster.Cluster.
func (c *Cluster) CCMCommand() cluster.CCMCommand { return c.Command(c.ccmSpec(), c.PodCIDR()) }

// CCMIdentity are the flags that give a CCM its user (from manifests/ccm) and its
// serving certificate for the cluster's address.
func (c *Cluster) CCMIdentity() []string { return c.servingFlags(local.PortCCM, userCCM) }

// listenFlags says where a controller serves health and metrics.
func (c *Cluster) listenFlags(port string) []string {
	return []string{"--bind-address=" + c.Address(), "--secure-port=" + c.Port(port)}
}

// servingFlags are the flags that upstream's controllers share: who they are.
func (c *Cluster) servingFlags(port, user string) []string {
	tls := pki.PairAt(c.pkiPath(), port)
	return append(local.KubeconfigFlags(c.kubeconfigOf(user)),
		"--tls-cert-file="+tls.Cert, "--tls-private-key-file="+tls.Key, "--client-ca-file="+c.pkiPath("ca.crt"))
}

const nodePrefix = "node/"

// componentOfMachine names a machine's process, with all that identifies it.
func componentOfMachine(m cluster.Machine) string {
	return nodePrefix + m.Name + "@" + m.Address + "#" + m.ID
}

// machineFolder is the machine's folder. Its name is short: a Unix socket's path, which
// the kubelet has below it, may have 107 bytes (unix(7)). The end of an ID is
// its random part.
func (c *Cluster) machineFolder(id string) string { return c.Lab.Path("n", id[max(0, len(id)-8):]) }

// socketBytes is what the kubelet adds to a machine's folder for its longest
// socket: root/pod-resources/ and a number of up to ten digits.
const socketBytes = 30

// maxSocketPath is Linux's limit for the path of a Unix socket.
const maxSocketPath = 107

// CheckFolder returns an error when the path of the lab's folder is too long for the
// kubelet's sockets.
func (c *Cluster) CheckFolder() error {
	disk := c.machineFolder("12345678")
	if n := len(disk) + socketBytes; n > maxSocketPath {
		return fmt.Errorf(
			"the lab's folder %s is %d bytes too long for the kubelet's Unix sockets; set CCMLAB_HOME to a shorter one",
			c.Lab.Path(), n-maxSocketPath,
		)
	}
	return nil
}

// Present returns nothing: every machine begins as an instance of the cloud.
func (c *Cluster) Present(context.Context) ([]cluster.Machine, error) { return nil, nil }

// Adopt does nothing, because Present returns no machines.
func (c *Cluster) Adopt(cluster.Machine) error { return nil }

// Connect tells the hollow node which addresses are attached to it: the cloud passes nothing on, and the node
// answers on them itself. It sets no routes, as all of loopback is reachable without.
func (c *Cluster) Connect(_ context.Context, m cluster.Machine, n cluster.Network) error {
	return atomicfile.Write(c.attachedAddressesFile(m), []byte(strings.Join(n.Addresses, "\n")))
}

func (c *Cluster) attachedAddressesFile(m cluster.Machine) string {
	return filepath.Join(c.machineFolder(m.ID), "attached-addresses")
}

// Machines returns the machines whose process runs.
func (c *Cluster) Machines(context.Context) (map[cluster.Machine]cluster.Running, error) {
	running, err := c.Host.Running()
	if err != nil {
		return nil, err
	}
	found := map[cluster.Machine]cluster.Running{}
	for component, p := range running {
		if id, ok := strings.CutPrefix(component, nodePrefix); ok {
			name, rest, _ := strings.Cut(id, "@")
			addr, id, _ := strings.Cut(rest, "#")
			found[cluster.Machine{ID: id, Name: name, Address: addr}] = p
		}
	}
	return found, nil
}

// Booted reports whether the machine has a folder.
func (c *Cluster) Booted(_ context.Context, m cluster.Machine) (bool, error) {
	_, err := os.Stat(c.machineFolder(m.ID))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

// Boot creates the machine's credentials, as its image would hold them, and starts its
// hollow node, which reports the given size.
func (c *Cluster) Boot(
	_ context.Context,
	m cluster.Machine,
	s cluster.Size,
	providerID string,
) (cluster.Running, error) {
	ca, err := pki.LoadOrCreate(c.pkiPath(), "ca")
	if err != nil {
		return nil, err
	}
	dir := c.machineFolder(m.ID)
	user := "node-" + m.Name
	// One that was renamed boots as another node.
	client, err := ca.Ensure(
		dir, m.Name+"-client", pki.Identity{Name: "system:node:" + m.Name, Groups: []string{"system:nodes"}},
	)
	if err != nil {
		return nil, err
	}
	serving, err := ca.Ensure(dir, m.Name+"-serving", pki.Identity{
		Name: "system:node:" + m.Name, Groups: []string{"system:nodes"},
		Addresses: []string{m.Address}, DNSNames: []string{m.Name},
	})
	if err != nil {
		return nil, err
	}
	if err := c.writeKubeconfig(user, client); err != nil {
		return nil, err
	}
	return c.Host.Start(c.Spec(componentOfMachine(m), "hollow-node",
		"--name="+m.Name,
		"--kubeconfig="+c.kubeconfigOf(user),
		"--proxy-kubeconfig="+c.kubeconfigOf(userProxy),
		"--address="+m.Address, fmt.Sprintf("--port=%d", local.FreePort(m.Address, kubeletPort)),
		"--tls-cert-file="+serving.Cert, "--tls-private-key-file="+serving.Key,
		"--client-ca-file="+c.pkiPath("ca.crt"),
		c.cloudProvider(), "--provider-id="+providerID,
		"--root-dir="+filepath.Join(dir, "root"), "--attached-addresses="+c.attachedAddressesFile(m),
		fmt.Sprintf("--cpus=%d", s.CPUs), fmt.Sprintf("--memory=%dMi", s.MemoryMiB),
		"--node-status-update-frequency=2s",
		"--node-lease-duration-seconds=4",
	))
}

// haltGrace is how long a machine may take to shut down before it is killed.
const haltGrace = 3 * time.Second

// Halt ends the machine's process.
func (c *Cluster) Halt(ctx context.Context, _ cluster.Machine, r cluster.Running) error {
	return process.Stop(ctx, haltGrace, r.(*process.Process))
}

// Sweep deletes the folders of machines that no longer exist.
func (c *Cluster) Sweep(ctx context.Context, keep map[string]bool) error {
	machines, err := c.Machines(ctx)
	if err != nil {
		return err
	}
	kept := map[string]bool{}
	for id := range keep {
		kept[c.machineFolder(id)] = true
	}
	for m := range machines {
		kept[c.machineFolder(m.ID)] = true
	}
	disks, err := filepath.Glob(c.Lab.Path("n", "*"))
	for _, disk := range disks {
		if !kept[disk] {
			err = errors.Join(err, os.RemoveAll(disk))
		}
	}
	return err
}

// noProvider tells that the cluster has no external cloud provider. Such clusters differ
// in one flag of two components.
func (c *Cluster) noProvider() bool { return c.Lab.CloudProvider == cluster.ProviderNone }

func (c *Cluster) describeProvider() string {
	if c.noProvider() {
		return "without a cloud provider"
	}
	return c.cloudProvider()
}

// cloudProvider is the flag that kubelets and kube-controller-manager share. An
// empty value is upstream's default; it is written so that it can be seen.
func (c *Cluster) cloudProvider() string {
	if c.noProvider() {
		return providerFlag
	}
	return providerFlag + cluster.ProviderExternal
}

const providerFlag = "--cloud-provider="

// ProviderFlags implements cluster.Flagged. It reads the flags that the running
// processes were started with.
func (c *Cluster) ProviderFlags() (map[string]string, error) {
	running, err := c.Host.Running()
	if err != nil {
		return nil, err
	}
	flags := map[string]string{}
	for component, p := range running {
		name := component
		if strings.HasPrefix(component, nodePrefix) {
			name = cluster.ComponentKubelet
		}
		if name != cluster.ComponentKubelet && name != cluster.ComponentKCM {
			continue
		}
		line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", p.PID))
		if err != nil {
			continue // It has ended since.
		}
		for arg := range bytes.SplitSeq(line, []byte{0}) {
			if value, ok := strings.CutPrefix(string(arg), providerFlag); ok {
				flags[name] = value
			}
		}
	}
	return flags, nil
}
