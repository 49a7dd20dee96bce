// Package embedded runs a Kubernetes cluster as plain processes on loopback:
// genuine upstream etcd, kube-apiserver, kube-controller-manager and
// kube-scheduler, and a hollow node per instance. No Docker, no root.
package embedded

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/ccmlab/ccmlab/lab/apply"
	"github.com/ccmlab/ccmlab/lab/atomicfile"
	"github.com/ccmlab/ccmlab/lab/cluster"
	"github.com/ccmlab/ccmlab/lab/cluster/kubeaccess"
	"github.com/ccmlab/ccmlab/lab/cluster/local"
	"github.com/ccmlab/ccmlab/lab/pki"
	"github.com/ccmlab/ccmlab/lab/process"
	"github.com/ccmlab/ccmlab/lab/remedy"
	"github.com/ccmlab/ccmlab/lab/state"
	"github.com/ccmlab/ccmlab/manifests"
)

// Users of the API server, one credential each. All but the operator are
// bound to what they need by manifests/ or by upstream's own roles.
const (
	userOperator  = "operator"  // kubectl; the only one in system:masters
	userObserver  = "observer"  // the lab's own eyes: reads only
	userCCM       = "ccm"       // manifests/ccm/overlays/outside
	userKCM       = "kcm"       // upstream's role
	userScheduler = "scheduler" // upstream's role
	userProxy     = "kube-proxy"
	userKubelets  = "kube-apiserver-kubelet-client"
)

var identities = map[string]pki.Identity{
	userOperator:  {Name: "ccmlab:operator", Groups: []string{"system:masters"}},
	userObserver:  {Name: "ccmlab:observer"},
	userCCM:       {Name: "cloud-controller-manager"},
	userKCM:       {Name: "system:kube-controller-manager"},
	userScheduler: {Name: "system:kube-scheduler"},
	userProxy:     {Name: "system:kube-proxy"},
	userKubelets:  {Name: "kube-apiserver-kubelet-client"},
}

const frontProxyCA = "front-proxy-ca"

// Cluster is the cluster of one lab.
type Cluster struct {
	local.Site
	// AuditPolicy is the policy of the API server's audit log (see AuditLog). When it
	// is empty, StartControlPlane records changes of Nodes and StartAPIServer records
	// nothing.
	AuditPolicy string
}

var (
	_ cluster.Cluster    = (*Cluster)(nil)
	_ cluster.Supervised = (*Cluster)(nil)
	_ cluster.Flagged    = (*Cluster)(nil)
	_ cluster.Pausable   = (*Cluster)(nil)
)

// Kind is this kind of cluster.
var Kind = &cluster.Kind{
	Name: cluster.KindEmbedded,
	New: func(lab *state.Lab, bin cluster.Binaries) (cluster.Cluster, error) {
		return New(lab, bin), nil
	},
	Programs:              func(nodes int) (own, kube []string) { return OwnPrograms, NeededPrograms(nodes) },
	CloudProviderOptional: true,
	Hollow:                true,
}

// New describes the cluster; nothing is started.
func New(lab *state.Lab, bin cluster.Binaries) *Cluster {
	return &Cluster{Site: local.NewSite(lab, bin)}
}

const hollowNode = "hollow-node"

// Programs are what it brings, the project's own and upstream's.
var (
	OwnPrograms  = []string{"fakecloud", "ccm"}
	KubePrograms = []string{
		"etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl", hollowNode,
	}
)

// Check returns an error when programs are missing, space is short, or the path of the
// lab's folder is too long.
func (c *Cluster) Check(context.Context) error {
	if err := process.Supported(); err != nil {
		return err
	}
	return errors.Join(c.CheckFolder(), c.checkSpace(), c.Bin.Need(OwnPrograms, NeededPrograms(c.Lab.Nodes)))
}

// needSpace, in bytes, is what a lab's folder has at once: etcd alone takes two
// files of 64 MB.
const needSpace = 200 << 20

// checkSpace is an error when a new lab would fill its disk; one that is there has
// taken most of what it takes.
func (c *Cluster) checkSpace() error {
	free, err := process.FreeSpace(c.Lab.Path())
	if err != nil || c.Lab.Slot != 0 || free >= needSpace {
		return err
	}
	return fmt.Errorf(
		"%d MB are free for %s, and a lab takes %d: %s", free>>20, c.Lab.Path(), needSpace>>20,
		remedy.Of(syscall.ENOSPC),
	)
}

// NeededPrograms lists the programs of KubePrograms that a lab with this number of
// nodes requires. kubectl is only for the person. A lab without nodes needs no hollow
// node, because its control plane may be of a minor version that has none.
func NeededPrograms(nodes int) []string {
	return slices.DeleteFunc(slices.Clone(KubePrograms), func(name string) bool {
		return name == "kubectl" || name == hollowNode && nodes == 0
	})
}

// Traits of an embedded cluster.
func (c *Cluster) Traits() cluster.Traits {
	return cluster.Traits{
		Nodes: 3, HollowNodes: true, Demo: true, DemoPort: c.Lab.Ports[local.PortDemo],
		Summary: c.describeProvider(), NoCloudProvider: c.noProvider(),
	}
}

// PodCIDR is the range that nodes get their pod ranges from.
func (c *Cluster) PodCIDR() string { return fmt.Sprintf("10.%d.128.0/17", c.Lab.Slot) }

// kubeconfigOf is the file that lets a user, as named above, into the cluster.
func (c *Cluster) kubeconfigOf(user string) string { return c.Lab.Path("kubeconfig", user+".yaml") }

// Kubeconfig is the path of the operator's kubeconfig.
func (c *Cluster) Kubeconfig() string { return c.kubeconfigOf(userOperator) }

// Operator is a client with all rights, for applying manifests and showing
// what is there.
func (c *Cluster) Operator() (*kubernetes.Clientset, error) { return c.clientFor(userOperator) }

// Observer is a client that may only read.
func (c *Cluster) Observer() (*kubernetes.Clientset, error) { return c.clientFor(userObserver) }

func (c *Cluster) clientFor(user string) (*kubernetes.Clientset, error) {
	return kubeaccess.Client(c.kubeconfigOf(user), user)
}

func (c *Cluster) pkiPath(elem ...string) string {
	return c.Lab.Path(append([]string{"pki"}, elem...)...)
}

// prepareCredentials writes what is missing of certificates and kubeconfigs.
func (c *Cluster) prepareCredentials() error {
	ca, err := pki.LoadOrCreate(c.pkiPath(), "ca")
	if err != nil {
		return err
	}
	// etcd has an authority of its own: with a shared one, every client of the
	// API server could read and write the store directly.
	etcdCA, err := pki.LoadOrCreate(c.pkiPath(), "etcd-ca")
	if err != nil {
		return err
	}
	// Nobody speaks through a front proxy here, but every server with delegated
	// authentication asks for its CA and complains without.
	if _, err := pki.LoadOrCreate(c.pkiPath(), frontProxyCA); err != nil {
		return err
	}
	serve := func(name string) pki.Identity {
		return pki.Identity{
			Name: name, Addresses: []string{c.Address()}, DNSNames: []string{"localhost", "kubernetes.default.svc"},
		}
	}
	var errs []error
	keep := func(_ pki.Pair, err error) { errs = append(errs, err) }
	keep(etcdCA.Ensure(c.pkiPath(), "etcd", serve("etcd")))
	keep(etcdCA.Ensure(c.pkiPath(), "etcd-client", pki.Identity{Name: "kube-apiserver"}))
	for _, component := range []string{local.PortAPIServer, local.PortKCM, local.PortScheduler, local.PortCCM} {
		keep(ca.Ensure(c.pkiPath(), component, serve(component)))
	}
	keep(ca.Ensure(c.pkiPath(), "service-account", pki.Identity{Name: "service-account"}))
	for user, who := range identities {
		cert, err := ca.Ensure(c.pkiPath("users"), user, who)
		errs = append(errs, err, c.writeKubeconfig(user, cert))
	}
	return errors.Join(errs...)
}

func (c *Cluster) writeKubeconfig(user string, cert pki.Pair) error {
	file := c.kubeconfigOf(user)
	if _, err := os.Stat(file); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	var files [3][]byte
	for i, name := range []string{c.pkiPath("ca.crt"), cert.Cert, cert.Key} {
		data, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		files[i] = data
	}
	cfg := clientcmdapi.NewConfig()
	cfg.Clusters[c.Lab.Name] = &clientcmdapi.Cluster{
		Server: "https://" + c.Endpoint(local.PortAPIServer), CertificateAuthorityData: files[0],
	}
	cfg.AuthInfos[user] = &clientcmdapi.AuthInfo{ClientCertificateData: files[1], ClientKeyData: files[2]}
	cfg.Contexts[c.Lab.Name] = &clientcmdapi.Context{Cluster: c.Lab.Name, AuthInfo: user}
	cfg.CurrentContext = c.Lab.Name
	data, err := clientcmd.Write(*cfg)
	if err != nil {
		return err
	}
	return atomicfile.Write(file, data)
}

// StartControlPlane starts etcd and the API server. When the API server is ready, it
// starts kube-controller-manager and kube-scheduler and applies the manifests. It does
// not wait for these two: their work shows whether they are up.
func (c *Cluster) StartControlPlane(ctx context.Context, note func(string)) error {
	note("etcd and kube-apiserver are starting")
	c.AuditPolicy = cmp.Or(c.AuditPolicy, auditPolicy)
	if err := c.startAPIServer(ctx); err != nil {
		return err
	}
	_, err := c.Ensure(c.controllerManagerSpec())
	_, err2 := c.Ensure(c.schedulerSpec())
	if err := errors.Join(err, err2); err != nil {
		return err
	}
	return c.applyManifests(ctx)
}

// StartAPIServer starts only etcd and the API server, with the RBAC that the lab and
// its CCM need. In such a control plane only the CCM acts.
func (c *Cluster) StartAPIServer(ctx context.Context) error {
	if err := c.startAPIServer(ctx); err != nil {
		return err
	}
	return c.applyManifests(ctx)
}

func (c *Cluster) applyManifests(ctx context.Context) error {
	// Upstream's own roles are written by the API server after it is ready.
	return c.Serve(ctx, "the API server to accept the lab's manifests", func(ctx context.Context) error {
		return apply.Manifests(ctx, c.Kubeconfig(), manifests.Lab, manifests.Embedded, manifests.CCM, manifests.CCMUser)
	}, c.etcdSpec(), c.apiserverSpec())
}

func (c *Cluster) startAPIServer(ctx context.Context) error {
	if c.AuditPolicy != "" {
		if err := atomicfile.Write(c.auditPolicyFile(), []byte(c.AuditPolicy)); err != nil {
			return err
		}
	}
	if err := c.prepareCredentials(); err != nil {
		return err
	}
	client, err := c.Operator()
	if err != nil {
		return err
	}
	return c.Serve(ctx, "kube-apiserver to be ready on "+
		c.Endpoint(local.PortAPIServer), func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
		defer cancel()
		return client.Discovery().RESTClient().Get().AbsPath("/readyz").Do(ctx).Error()
	}, c.etcdSpec(), c.apiserverSpec())
}

// Tend keeps the CCM running.
func (c *Cluster) Tend(ctx context.Context, log *slog.Logger) error {
	return c.KeepCCM(ctx, c.ccmSpec(), log)
}

// processes are the cloud's and the control plane's.
var processes = []string{local.ComponentCloud, "etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler"}

// Ended implements cluster.Supervised. The error names the processes of the cloud and
// the control plane that StartControlPlane started and that no longer run.
func (c *Cluster) Ended() error {
	return c.Site.Ended(processes...)
}

// Components lists the processes of the control plane, the CCM unless the cluster has
// no cloud provider, and one process for each running machine.
func (c *Cluster) Components(ctx context.Context) ([]cluster.Component, error) {
	names := slices.Clone(processes)
	if !c.noProvider() {
		names = append(names, local.ComponentCCM)
	}
	all, err := c.Site.Components(names...)
	if err != nil {
		return nil, err
	}
	machines, err := c.Machines(ctx)
	var nodes []cluster.Component
	for m, r := range machines {
		nodes = append(
			nodes,
			cluster.Component{Name: nodePrefix + m.Name, PID: r.(*process.Process).PID, State: cluster.StateRunning},
		)
	}
	slices.SortFunc(nodes, func(a, b cluster.Component) int { return strings.Compare(a.Name, b.Name) })
	return append(all, nodes...), err
}
