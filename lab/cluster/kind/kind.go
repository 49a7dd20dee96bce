// Package kind runs a Kubernetes cluster in containers, through sigs.k8s.io/kind: real
// kubelets, real pods, real kube-proxy. The cloud is a container on the same network,
// and the lab's own CCM a Deployment in the cluster. kind creates the control plane only. All
// workers are instances of the cloud: each is a container that joins the cluster when
// its instance runs. Begin with Cluster.StartControlPlane and Cluster.Boot.
package kind

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/kubernetes"

	"github.com/ccmlab/ccmlab/lab/cluster"
	"github.com/ccmlab/ccmlab/lab/cluster/kubeaccess"
	"github.com/ccmlab/ccmlab/lab/cluster/local"
	"github.com/ccmlab/ccmlab/lab/state"
)

// Pod networks.
const (
	// Routes leaves the traffic between nodes to the cloud's routes.
	Routes = "routes"
	// Kindnet is kind's own daemon, which only the stock image has.
	Kindnet = "kindnet"
)

// Node images.
const (
	// BuiltImage is what `make node-image` builds.
	BuiltImage = "ccmlab/node:v1.36.3"
	// StockImage is kind's of the same minor version, as kind's own release names
	// it.
	StockImage = "kindest/node:v1.36.4@sha256:099e049362a1526b2db71494e1947aae99bd16290d7c895f2b7ea312e3cbfaed"
)

const (
	podSubnet = "10.244.0.0/16"
	demoPort  = 8080
	// labelLab marks every container, network and volume of a lab, with the
	// lab's folder, so that nobody's are ever mistaken for ours.
	labelLab = "io.ccmlab.lab"
	// kindCluster is kind's own label.
	kindCluster = "io.x-k8s.kind.cluster"
)

// Cluster is the cluster of one lab.
type Cluster struct {
	lab    *state.Lab
	bin    cluster.Binaries
	engine engine
}

var (
	_ cluster.Cluster  = (*Cluster)(nil)
	_ cluster.Preparer = (*Cluster)(nil)
)

// Kind is this kind of cluster.
var Kind = &cluster.Kind{
	Name: cluster.KindKind,
	New:  func(lab *state.Lab, bin cluster.Binaries) (cluster.Cluster, error) { return New(lab, bin) },
	Choose: func(ctx context.Context, lab *state.Lab, s cluster.Settings, bin cluster.Binaries) (err error) {
		lab.Kind, err = chooseSettings(ctx, s, bin.Dir)
		return err
	},
	Available:     checkAvailable,
	DeleteRemains: deleteRemains,
	NodeImages:    []string{BuiltImage, StockImage},
	PodNetworks:   []string{Routes, Kindnet},
}

// chooseSettings fills in what a new lab was not told: the engine that runs, the node
// image and the pod network. bin is where `make node-image` leaves its image.
func chooseSettings(ctx context.Context, s cluster.Settings, bin string) (*state.Kind, error) {
	e, err := detectEngine(ctx)
	if err != nil {
		return nil, fmt.Errorf("%w; or: the embedded cluster needs none: leave --cluster kind out", err)
	}
	k := &state.Kind{Engine: e.name, Host: e.host, Image: s.NodeImage, PodNetwork: s.PodNetwork}
	if k.PodNetwork == "" {
		k.PodNetwork = Routes
	}
	if k.Image == "" {
		k.Image = StockImage
		_, missing := os.Stat(filepath.Join(bin, nodeImageFile))
		if k.PodNetwork == Routes && (missing == nil || e.hasImage(ctx, BuiltImage)) {
			k.Image = BuiltImage
		}
	}
	return k, nil
}

// checkAvailable says in a few words why kind could be used here; an error says why it
// cannot, and what to do.
func checkAvailable(ctx context.Context) (why string, err error) {
	e, err := detectEngine(ctx)
	if err != nil {
		return "", err
	}
	return e.name + " runs", nil
}

// New describes the cluster; nothing is started.
func New(lab *state.Lab, bin cluster.Binaries) (*Cluster, error) {
	if lab.Kind == nil {
		return nil, fmt.Errorf(
			"the record of lab %q is damaged: nothing is said of its containers; `lab down --name %s` removes it",
			lab.Name, lab.Name,
		)
	}
	return &Cluster{lab: lab, bin: bin, engine: engine{name: lab.Kind.Engine, host: lab.Kind.Host}}, nil
}

// Names. The cluster's is also its network's. A lab's name has no dot, so that
// no machine's container can be taken for another lab's, or another thing's.
func (c *Cluster) name() string                          { return "ccmlab-" + c.lab.Name }
func (c *Cluster) controlPlaneContainer() string         { return c.name() + "-control-plane" }
func (c *Cluster) cloudContainer() string                { return c.name() + "-cloud" }
func (c *Cluster) cloudVolume() string                   { return c.name() + "-cloud" }
func (c *Cluster) workerContainer(machine string) string { return c.name() + "." + machine }
func (c *Cluster) labelOfLab() string                    { return labelLab + "=" + c.lab.Path() }

// Check returns an error when the engine does not answer, or programs or images are
// missing.
func (c *Cluster) Check(ctx context.Context) error {
	if runtime.GOOS != "linux" {
		return fmt.Errorf(
			"kind's container network is reached from Linux only, this is %s; use a virtual machine", runtime.GOOS,
		)
	}
	missing := c.bin.Need(nil, []string{"kubectl"})
	for _, name := range []string{cloudImage, ccmImage, demoImage} {
		if _, err := os.Stat(c.imageFile(name)); err != nil {
			missing = errors.Join(missing, fmt.Errorf("%w; `make build` builds it", err))
		}
	}
	return errors.Join(missing, c.engine.checkAnswers(ctx))
}

// Traits of a kind cluster.
func (c *Cluster) Traits() cluster.Traits {
	t := cluster.Traits{
		Nodes: 2, InContainers: true, Demo: true, DemoPort: demoPort,
		Summary: "in containers, pods by the cloud's routes",
	}
	if !c.usesCloudRoutes() {
		t.Summary = "in containers, pods by kindnet"
	}
	return t
}

func (c *Cluster) usesCloudRoutes() bool { return c.lab.Kind.PodNetwork == Routes }

// localSite has the lab's processes on this machine. The cluster has none of its addresses.
func (c *Cluster) localSite() local.Site { return local.NewSite(c.lab, c.bin) }

// Tend keeps the observer's token valid, and a CCM running that is not the Deployment. The
// engine and Kubernetes keep everything else running.
func (c *Cluster) Tend(ctx context.Context, log *slog.Logger) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		return kubeaccess.KeepToken(ctx, c.Kubeconfig(), observerAccount, c.observerKubeconfig(), log)
	})
	group.Go(func() error { return c.localSite().KeepCCM(ctx, c.ccmSpec(), log) })
	return group.Wait()
}

// observerAccount is a service account from manifests/lab.
const observerAccount = "ccmlab-observer"

// Kubeconfig is the path of the operator's kubeconfig, with all rights.
func (c *Cluster) Kubeconfig() string { return c.lab.Path("kubeconfig", "operator.yaml") }

func (c *Cluster) observerKubeconfig() string { return c.lab.Path("kubeconfig", "observer.yaml") }

// Operator is a client with all rights.
func (c *Cluster) Operator() (*kubernetes.Clientset, error) {
	return kubeaccess.Client(c.Kubeconfig(), "operator")
}

// Observer is a client that only reads.
func (c *Cluster) Observer() (*kubernetes.Clientset, error) {
	return kubeaccess.Client(c.observerKubeconfig(), "observer")
}

// parseSubnet is the lab's network.
func (c *Cluster) parseSubnet() (netip.Prefix, error) {
	p, err := netip.ParsePrefix(c.lab.Kind.Subnet)
	if err != nil {
		return p, fmt.Errorf("the record of lab %q is damaged: its network: %w", c.lab.Name, err)
	}
	return p, nil
}

// Down deletes the lab's containers, network and volume, and ends a CCM that runs as a
// process beside them.
func (c *Cluster) Down(ctx context.Context) (ended int, err error) {
	processes, err := c.localSite().Down(ctx)
	if err := errors.Join(err, c.engine.checkAnswers(ctx)); err != nil {
		return processes, err
	}
	containers, err := deleteMarked(ctx, c.engine, c.lab.Path())
	return processes + containers, err
}

// deleteNodes makes kind delete its cluster with all workers.
func (c *Cluster) deleteNodes() error {
	provider, err := c.kindProvider()
	if err != nil {
		return err
	}
	return provider.Delete(c.name(), c.Kubeconfig())
}

// deleteRemains deletes everything that carries the label of a lab of which only the
// folder is known. If no engine is available, that is an error only if the folder shows
// that the lab had containers.
func deleteRemains(ctx context.Context, lab *state.Lab) (ended int, err error) {
	e, err := detectEngine(ctx)
	if err == nil {
		return deleteMarked(ctx, e, lab.Path())
	}
	if _, none := os.Stat(lab.Path("pki", cloudCertificate+".crt")); none == nil {
		return 0, fmt.Errorf("lab %q had containers: %w", lab.Name, err)
	}
	return 0, nil
}

// deleteMarked deletes what carries the label of the lab in a folder. It tries for a while: a container that was being
// created or removed when it began keeps the lab's network.
func deleteMarked(ctx context.Context, e engine, dir string) (ended int, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, deleteBound, fmt.Errorf("gave up after %s", deleteBound))
	defer cancel()
	err = cluster.Poll(ctx, "the lab's containers, network and volume to be deleted", func(ctx context.Context) error {
		n, err := tryDeleteMarked(ctx, e, dir)
		ended += n
		return err
	})
	return ended, err
}

// deleteBound is far longer than it takes an engine to delete some containers.
const deleteBound = time.Minute

func tryDeleteMarked(ctx context.Context, e engine, dir string) (ended int, err error) {
	mark := labelLab + "=" + dir
	containers, err := e.listLabelled(ctx, mark)
	if err != nil {
		return 0, err
	}
	var errs []error
	remove := func(names []string, command ...string) {
		if len(names) > 0 {
			_, err := e.run(ctx, append(command, names...)...)
			errs = append(errs, err)
		}
	}
	remove(containers, "rm", "--force", "--volumes")
	networks, err := e.listResources(ctx, "network", mark)
	errs = append(errs, err)
	// The control plane's container, which kind has made, has no mark, but is on it.
	for _, network := range networks {
		nodes, err := e.listLabelled(ctx, kindCluster+"="+network)
		errs = append(errs, err)
		remove(nodes, "rm", "--force", "--volumes")
		ended += len(nodes)
	}
	remove(networks, "network", "rm")
	volumes, err := e.listResources(ctx, "volume", mark)
	errs = append(errs, err)
	remove(volumes, "volume", "rm", "--force")
	return ended + len(containers), errors.Join(errs...)
}
