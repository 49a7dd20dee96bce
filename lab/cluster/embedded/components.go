package embedded

// What is run, component by component, as upstream documents it. Lease and
// grace times are short so that a stopped machine shows within seconds.

import (
	"fmt"
	"path/filepath"
	"strings"

	"github.com/ccmlab/ccmlab/lab/process"
)

// auditPolicy records who changed a Node, the question this lab is about, and
// nothing else. Status updates, which every kubelet sends all the time, are
// left out.
const auditPolicy = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: RequestResponse
  verbs: [create, update, patch, delete]
  resources: [{group: "", resources: [nodes]}]
- level: None
`

func (c *Cluster) spec(component, program string, args ...string) process.Spec {
	return process.Spec{Component: component, Path: c.bin.Program(program), Args: args, LogFile: c.LogFile(component)}
}

func (c *Cluster) etcd() process.Spec {
	clients, peers := "https://"+c.endpoint(portEtcd), "https://"+c.endpoint(portEtcdPeer)
	ca, tls := c.pki("etcd-ca.crt"), pairAt(c.pki(), "etcd")
	return c.spec("etcd", "etcd",
		"--name="+c.lab.Name,
		"--data-dir="+c.lab.Path("etcd"),
		"--listen-client-urls="+clients,
		"--advertise-client-urls="+clients,
		"--listen-peer-urls="+peers,
		"--initial-advertise-peer-urls="+peers,
		"--initial-cluster="+c.lab.Name+"="+peers,
		"--client-cert-auth", "--trusted-ca-file="+ca, "--cert-file="+tls.Cert, "--key-file="+tls.Key,
		"--peer-client-cert-auth", "--peer-trusted-ca-file="+ca, "--peer-cert-file="+tls.Cert, "--peer-key-file="+tls.Key,
		"--log-level=warn",
	)
}

func (c *Cluster) apiserver() process.Spec {
	etcd, tls := pairAt(c.pki(), "etcd-client"), pairAt(c.pki(), portAPIServer)
	kubelets, tokens := pairAt(c.pki("users"), userKubelets), pairAt(c.pki(), "service-account")
	return c.spec("kube-apiserver", "kube-apiserver",
		"--etcd-servers=https://"+c.endpoint(portEtcd),
		"--etcd-cafile="+c.pki("etcd-ca.crt"), "--etcd-certfile="+etcd.Cert, "--etcd-keyfile="+etcd.Key,
		"--bind-address="+c.host0(), "--secure-port="+c.port(portAPIServer), "--advertise-address="+c.host0(),
		"--tls-cert-file="+tls.Cert, "--tls-private-key-file="+tls.Key,
		"--client-ca-file="+c.pki("ca.crt"),
		"--requestheader-client-ca-file="+c.pki(frontProxyCA+".crt"), "--requestheader-allowed-names=front-proxy-client",
		"--requestheader-username-headers=X-Remote-User", "--requestheader-group-headers=X-Remote-Group", "--requestheader-extra-headers-prefix=X-Remote-Extra-",
		"--anonymous-auth=false",
		"--authorization-mode=Node,RBAC",
		"--enable-admission-plugins=NodeRestriction",
		"--kubelet-certificate-authority="+c.pki("ca.crt"),
		"--kubelet-client-certificate="+kubelets.Cert, "--kubelet-client-key="+kubelets.Key,
		"--kubelet-preferred-address-types=InternalIP",
		"--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-key-file="+tokens.Cert, "--service-account-signing-key-file="+tokens.Key,
		"--service-cluster-ip-range="+c.serviceCIDR(),
		// Loopback is not allowed in EndpointSlices, and nothing in this
		// cluster could reach a ClusterIP anyway.
		"--endpoint-reconciler-type=none",
		"--audit-policy-file="+c.lab.Path("audit-policy.yaml"), "--audit-log-path="+c.lab.Path("logs", "audit.jsonl"),
		"--audit-log-maxsize=20", "--audit-log-maxbackup=1",
		"--profiling=false",
	)
}

// serviceCIDR is the half of 10.X.0.0/16 that pods leave.
func (c *Cluster) serviceCIDR() string { return fmt.Sprintf("10.%d.0.0/17", c.lab.Slot) }

// nodePodBits gives each node 125 pod addresses, above the kubelet's 110, and
// a lab 256 nodes.
const nodePodBits = 25

// kubeletPort is where a kubelet listens by custom; another port is taken
// where somebody, a real kubelet perhaps, holds it on 0.0.0.0.
const kubeletPort = 10250

func (c *Cluster) controllerManager() process.Spec {
	args := c.serving(portKCM, userKCM)
	return c.spec("kube-controller-manager", "kube-controller-manager", append(args,
		"--cloud-provider=external",
		"--cluster-name="+c.lab.Name,
		"--leader-elect=false", // There is only one.
		"--use-service-account-credentials",
		"--root-ca-file="+c.pki("ca.crt"),
		"--service-account-private-key-file="+pairAt(c.pki(), "service-account").Key,
		"--allocate-node-cidrs", "--cluster-cidr="+c.PodCIDR(), fmt.Sprintf("--node-cidr-mask-size=%d", nodePodBits),
		"--configure-cloud-routes=false",
		"--service-cluster-ip-range="+c.serviceCIDR(),
		"--node-monitor-period=1s", "--node-monitor-grace-period=8s",
		// At its start every controller fetches a token; the default of 20 a
		// second would make the nodes wait for their pod ranges.
		"--kube-api-qps=200", "--kube-api-burst=400",
		"--profiling=false",
	)...)
}

func (c *Cluster) scheduler() process.Spec {
	args := c.serving(portScheduler, userScheduler)
	return c.spec("kube-scheduler", "kube-scheduler", append(args, "--leader-elect=false", "--profiling=false")...)
}

// ccm has short leases: the framework never gives its lease back, so a
// restarted one waits for the old one's end.
func (c *Cluster) ccm(cloudConfig string) process.Spec {
	args := c.serving(portCCM, userCCM)
	return c.spec("ccm", "ccm", append(args,
		"--cloud-config="+cloudConfig,
		"--cluster-name="+c.lab.Name,
		"--leader-elect-lease-duration=4s", "--leader-elect-renew-deadline=3s", "--leader-elect-retry-period=1s",
		"--node-monitor-period=2s",
		"--profiling=false",
	)...)
}

// serving are the flags that upstream's controllers share: who they are, and
// where they serve health and metrics.
func (c *Cluster) serving(port, user string) []string {
	tls, kubeconfig := pairAt(c.pki(), port), c.Kubeconfig(user)
	return []string{
		"--kubeconfig=" + kubeconfig, "--authentication-kubeconfig=" + kubeconfig, "--authorization-kubeconfig=" + kubeconfig,
		"--bind-address=" + c.host0(), "--secure-port=" + c.port(port),
		"--tls-cert-file=" + tls.Cert, "--tls-private-key-file=" + tls.Key,
		"--client-ca-file=" + c.pki("ca.crt"),
	}
}

// Machine is an instance that is to run a node. Its ID is what makes it one
// machine: a new instance may have an old one's name and address.
type Machine struct{ ID, Name, Address string }

const nodePrefix = "node/"

// component names the machine's process, with all that identifies it.
func (m Machine) component() string { return nodePrefix + m.Name + "@" + m.Address + "#" + m.ID }

// ProviderID is what the CCM writes on the machine's Node.
func (m Machine) ProviderID() string { return "fakecloud://" + m.ID }

// disk is the machine's folder. Its name is short: a Unix socket's path, which
// the kubelet has below it, may have 107 bytes (unix(7)). The end of an ID is
// its random part.
func (c *Cluster) disk(m Machine) string { return c.lab.Path("n", m.ID[max(0, len(m.ID)-8):]) }

// socketBytes is what the kubelet adds to a machine's folder for its longest
// socket: root/pod-resources/ and a number of up to ten digits.
const socketBytes = 30

// maxSocketPath is Linux's limit for the path of a Unix socket.
const maxSocketPath = 107

// CheckFolder is an error when the lab's folder lies too deep.
func (c *Cluster) CheckFolder() error {
	disk := c.disk(Machine{ID: "12345678"})
	if n := len(disk) + socketBytes; n > maxSocketPath {
		return fmt.Errorf("the lab's folder %s is %d bytes too long for the kubelet's Unix sockets; set CCMLAB_HOME to a shorter one", c.lab.Path(), n-maxSocketPath)
	}
	return nil
}

// Machines are the machines whose process runs.
func (c *Cluster) Machines() (map[Machine]*process.Process, error) {
	running, err := c.host.Running()
	if err != nil {
		return nil, err
	}
	found := map[Machine]*process.Process{}
	for component, p := range running {
		if id, ok := strings.CutPrefix(component, nodePrefix); ok {
			name, rest, _ := strings.Cut(id, "@")
			addr, id, _ := strings.Cut(rest, "#")
			found[Machine{ID: id, Name: name, Address: addr}] = p
		}
	}
	return found, nil
}

// Boot makes the machine's credentials, as its image would hold them, and
// starts its hollow node.
func (c *Cluster) Boot(m Machine) (*process.Process, error) {
	ca, err := loadOrCreateAuthority(c.pki(), "ca")
	if err != nil {
		return nil, err
	}
	dir := c.disk(m)
	user := "node-" + m.Name
	client, err := ca.ensure(dir, "kubelet-client", identity{name: "system:node:" + m.Name, groups: []string{"system:nodes"}})
	if err != nil {
		return nil, err
	}
	serving, err := ca.ensure(dir, "kubelet", identity{
		name: "system:node:" + m.Name, groups: []string{"system:nodes"},
		addresses: []string{m.Address}, dnsNames: []string{m.Name},
	})
	if err != nil {
		return nil, err
	}
	if err := c.writeKubeconfig(user, client); err != nil {
		return nil, err
	}
	return c.host.Start(c.spec(m.component(), "hollow-node",
		"--name="+m.Name,
		"--kubeconfig="+c.Kubeconfig(user),
		"--proxy-kubeconfig="+c.Kubeconfig(userProxy),
		"--address="+m.Address, fmt.Sprintf("--port=%d", freePort(m.Address, kubeletPort)),
		"--tls-cert-file="+serving.Cert, "--tls-private-key-file="+serving.Key,
		"--client-ca-file="+c.pki("ca.crt"),
		"--root-dir="+filepath.Join(dir, "root"),
		"--node-status-update-frequency=2s",
		"--node-lease-duration-seconds=4",
	))
}

// Fakecloud is the process of the lab's cloud. The tokens are files that it
// writes; each caller has one of its own, so that the cloud's log tells them
// apart.
func (c *Cluster) Fakecloud(tag string) process.Spec {
	s := c.spec("fakecloud", "fakecloud", "serve",
		"--listen="+c.CloudAddress(),
		"--data="+c.lab.Path("cloud", "cloud.db"),
		"--project="+c.lab.Name,
		"--profile="+c.lab.Profile,
		"--default-tag="+tag,
		"--instance-cidr="+c.InstanceCIDR(),
		"--load-balancer-cidr="+c.LoadBalancerCIDR(),
	)
	for _, caller := range []string{"operator", "lab", "ccm"} {
		s.Args = append(s.Args, "--token="+caller+"="+c.TokenFile(caller))
	}
	return s
}

// TokenFile holds a caller's cloud token.
func (c *Cluster) TokenFile(caller string) string { return c.lab.Path("cloud", caller+".token") }
