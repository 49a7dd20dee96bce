// Package external uses a cluster that already exists. The lab adds a cloud, in which
// the nodes that wait for a CCM are instances, and a CCM, both as processes on this
// machine. It boots and halts no machines. Begin with Cluster.
package external

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/ccmlab/ccmlab/ccm/contract"
	"github.com/ccmlab/ccmlab/fakecloud/client"
	"github.com/ccmlab/ccmlab/lab/apply"
	"github.com/ccmlab/ccmlab/lab/cluster"
	"github.com/ccmlab/ccmlab/lab/cluster/kubeaccess"
	"github.com/ccmlab/ccmlab/lab/cluster/local"
	"github.com/ccmlab/ccmlab/lab/process"
	"github.com/ccmlab/ccmlab/lab/state"
	"github.com/ccmlab/ccmlab/manifests"
)

// cleanUpBound is how long down tries to take the lab's own objects out of a
// cluster that may be gone.
const cleanUpBound = 10 * time.Second

// Service accounts of kube-system, from manifests/.
const (
	accountCCM      = "cloud-controller-manager"
	accountObserver = "ccmlab-observer"
)

// Cluster is somebody's cluster, with the lab's cloud and CCM.
type Cluster struct{ local.Site }

var _ cluster.Cluster = (*Cluster)(nil)

// Kind is this kind of cluster.
var Kind = &cluster.Kind{
	Name: cluster.KindExternal,
	New:  func(lab *state.Lab, bin cluster.Binaries) (cluster.Cluster, error) { return New(lab, bin) },
	Choose: func(_ context.Context, lab *state.Lab, s cluster.Settings, _ cluster.Binaries) (err error) {
		lab.External, err = chooseKubeconfig(s)
		return err
	},
	LendToSuite:     lendToSuite,
	TakesKubeconfig: true,
}

// chooseKubeconfig records whose cluster it is.
func chooseKubeconfig(s cluster.Settings) (*state.External, error) {
	if s.Kubeconfig == "" {
		return nil, errors.New("--cluster external needs --kubeconfig FILE: the cluster to add a cloud and a CCM to")
	}
	if _, err := os.Stat(s.Kubeconfig); err != nil {
		return nil, fmt.Errorf("--kubeconfig: %w", err)
	}
	return &state.External{Kubeconfig: s.KubeconfigPath()}, nil
}

// New describes the cluster; nothing is started.
func New(lab *state.Lab, bin cluster.Binaries) (*Cluster, error) {
	if lab.External == nil {
		return nil, fmt.Errorf(
			"the record of lab %q is damaged: it names no kubeconfig; `lab down --name %s` removes it", lab.Name,
			lab.Name,
		)
	}
	return &Cluster{local.NewSite(lab, bin)}, nil
}

// Check returns an error when programs are missing or the cluster does not answer, and,
// for a new lab, when the cluster already has a CCM.
func (c *Cluster) Check(ctx context.Context) error {
	if err := errors.Join(process.Supported(), c.Bin.Need([]string{"fakecloud", "ccm"}, nil)); err != nil {
		return err
	}
	if err := c.checkAnswers(ctx); err != nil || c.Lab.Slot != 0 {
		return err
	}
	kube, err := c.Operator()
	if err != nil {
		return err
	}
	return checkNoCCM(ctx, kube)
}

func (c *Cluster) checkAnswers(ctx context.Context) error {
	kube, err := c.Operator()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, cleanUpBound)
	defer cancel()
	if err := kube.Discovery().RESTClient().Get().AbsPath("/readyz").Do(ctx).Error(); err != nil {
		return fmt.Errorf("the cluster of %s does not answer: %w", c.Kubeconfig(), err)
	}
	return nil
}

// Traits of an external cluster: the lab puts only RBAC into it.
func (c *Cluster) Traits() cluster.Traits {
	return cluster.Traits{Summary: "somebody's cluster, " + c.Kubeconfig()}
}

// StartCloud starts the cloud, whose balancers may send to the nodes that are its instances.
func (c *Cluster) StartCloud(ctx context.Context, tag string, note func(string)) error {
	kube, err := c.Operator()
	if err != nil {
		return err
	}
	nodes, err := kube.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	return c.StartCloudFor(ctx, tag, note, targetAddresses(nodes.Items)...)
}

// StartControlPlane checks that the cluster answers, and applies the RBAC of the CCM
// and the lab.
func (c *Cluster) StartControlPlane(ctx context.Context, note func(string)) error {
	if err := c.checkAnswers(ctx); err != nil {
		return err
	}
	note("applying RBAC")
	if err := c.owner().Apply(ctx, manifests.Lab, manifests.CCM); err != nil {
		return err
	}
	return errors.Join(
		kubeaccess.ServiceAccount(ctx, c.Kubeconfig(), accountCCM, c.accountKubeconfig(accountCCM)),
		kubeaccess.ServiceAccount(ctx, c.Kubeconfig(), accountObserver, c.accountKubeconfig(accountObserver)),
	)
}

// owner is the lab's name in the cluster. Most people's labs have the same
// name, and on machines made alike the same folder.
func (c *Cluster) owner() apply.Owner {
	id := sha256.Sum256(fmt.Appendf(nil, "%s %d", c.Lab.Path(), c.Lab.StartedAt.UnixNano()))
	return apply.Guest(c.Kubeconfig(), fmt.Sprintf("%s-%x", c.Lab.Name, id[:4]))
}

// Kubeconfig is the path of the person's own kubeconfig.
func (c *Cluster) Kubeconfig() string { return c.Lab.External.Kubeconfig }

func (c *Cluster) accountKubeconfig(account string) string {
	return c.Lab.Path("kubeconfig", account+".yaml")
}

// Operator is a client with the person's rights.
func (c *Cluster) Operator() (*kubernetes.Clientset, error) {
	return kubeaccess.Client(c.Kubeconfig(), "operator")
}

// Observer is a client that only reads.
func (c *Cluster) Observer() (*kubernetes.Clientset, error) {
	return kubeaccess.Client(c.accountKubeconfig(accountObserver), "observer")
}

// ccmSpec describes the CCM's process. It makes its own serving certificate, because
// only this machine connects to it.
func (c *Cluster) ccmSpec() process.Spec {
	return c.CCM(local.KubeconfigFlags(c.accountKubeconfig(accountCCM))...)
}

// Tend keeps the CCM running and the service accounts' tokens valid.
func (c *Cluster) Tend(ctx context.Context, log *slog.Logger) error {
	group, ctx := errgroup.WithContext(ctx)
	for _, account := range []string{accountCCM, accountObserver} {
		group.Go(func() error {
			return kubeaccess.KeepToken(ctx, c.Kubeconfig(), account, c.accountKubeconfig(account), log)
		})
	}
	group.Go(func() error { return c.KeepCCM(ctx, c.ccmSpec(), log) })
	return group.Wait()
}

// Components are the cloud and the CCM.
func (c *Cluster) Components(context.Context) ([]cluster.Component, error) {
	return c.Site.Components(local.ComponentCloud, local.ComponentCCM)
}

// Down ends the lab's processes and removes its RBAC from the cluster. It succeeds also
// if the cluster no longer exists.
func (c *Cluster) Down(ctx context.Context) (ended int, err error) {
	ended, err = c.Site.Down(ctx)
	bounded, cancel := context.WithTimeout(ctx, cleanUpBound)
	defer cancel()
	if gone := c.checkAnswers(bounded); gone != nil {
		slog.Warn("what the lab has applied to the cluster stays there", "reason", gone)
		return ended, err
	}
	return ended, errors.Join(err, c.owner().Withdraw(bounded, manifests.CCM, manifests.Lab),
		c.deleteGuardRecord(bounded))
}

// deleteGuardRecord deletes what the CCM's mass-deletion guard remembers.
func (c *Cluster) deleteGuardRecord(ctx context.Context) error {
	kube, err := c.Operator()
	if err != nil {
		return err
	}
	err = kube.CoreV1().ConfigMaps(contract.GuardNamespace).
		Delete(ctx, contract.GuardConfigMap, metav1.DeleteOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// Present returns the nodes that wait for a CCM, or were initialized by this lab's.
func (c *Cluster) Present(ctx context.Context) ([]cluster.Machine, error) {
	kube, err := c.Operator()
	if err != nil {
		return nil, err
	}
	cloud, err := c.Cloud().Client(cluster.CallerLab)
	if err != nil {
		return nil, err
	}
	nodes, err := kube.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	instances, err := cloud.ListInstances(ctx, client.InstanceFilter{})
	if err != nil {
		return nil, err
	}
	return presentMachines(nodes.Items, instances)
}

// Adopt has nothing to record: instances and nodes have the same names.
func (c *Cluster) Adopt(cluster.Machine) error { return nil }

// machine stands for one that somebody else runs.
type machine struct{ halted chan struct{} }

// Wait returns when the instance is not to run any more.
func (m *machine) Wait(ctx context.Context) error {
	select {
	case <-m.halted:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Machines returns nothing: the lab runs no machines.
func (c *Cluster) Machines(context.Context) (map[cluster.Machine]cluster.Running, error) {
	return map[cluster.Machine]cluster.Running{}, nil
}

// Booted is always true, because the machine does not belong to the lab.
func (c *Cluster) Booted(context.Context, cluster.Machine) (bool, error) { return true, nil }

// Boot changes nothing on the machine; it only returns a handle that Halt closes.
func (c *Cluster) Boot(context.Context, cluster.Machine, cluster.Size, string) (cluster.Running, error) {
	return &machine{make(chan struct{})}, nil
}

// Halt is Boot's counterpart.
func (c *Cluster) Halt(_ context.Context, _ cluster.Machine, r cluster.Running) error {
	close(r.(*machine).halted)
	return nil
}

// Sweep does nothing, because the lab has created no machines.
func (c *Cluster) Sweep(context.Context, map[string]bool) error { return nil }

// Connect does nothing: the cluster has its own pod network.
func (c *Cluster) Connect(context.Context, cluster.Machine, cluster.Network) error { return nil }

// CCMCommand implements cluster.Cluster. It has no ClusterCIDR, because the lab does
// not know the pods' range.
func (c *Cluster) CCMCommand() cluster.CCMCommand { return c.Command(c.ccmSpec(), "") }
