// Package fakekubelet writes to a cluster's API what kubelets with --cloud-provider=external write, of Nodes
// on which nothing runs: it describes such a Node, says whether it is Ready, and renews its lease. A Node
// costs nothing then, and becomes NotReady at once when a test wants that.
//
// It knows no cloud and no test. Begin with NewNode and Kubelets.
package fakekubelet

import (
	"context"
	"encoding/json"
	"maps"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	cloudproviderapi "k8s.io/cloud-provider/api"
)

// Taint is the one that a kubelet registers its Node with, until the CCM removes it.
var Taint = corev1.Taint{
	Key: cloudproviderapi.TaintExternalCloudProvider, Value: "true", Effect: corev1.TaintEffectNoSchedule,
}

// Kubelets write for one Node or several. The fields are not to be changed once Start was called.
type Kubelets struct {
	Kube kubernetes.Interface
	// Message is that of the Nodes' Ready conditions.
	Message string
	// RenewalPeriod is how long a round of renewals takes, at least.
	RenewalPeriod time.Duration
	// LeaseLabels are the labels of the Nodes' leases.
	LeaseLabels map[string]string
	// Renewed, unless nil, is called after each attempt to renew a lease, with why that failed.
	Renewed func(ctx context.Context, node string, err error)

	mu     sync.Mutex
	leases map[string]*coordinationv1.Lease // the last versions, by Node; nil for one that is to be created
	stop   func()                           // nil unless leases are renewed
}

// NewNode returns the Node that a kubelet registers (upstream's pkg/kubelet/kubelet_node_status.go,
// initialNode): tainted, without a provider ID, and Ready.
func (k *Kubelets) NewNode(name string) *corev1.Node {
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{
			corev1.LabelHostname: name, corev1.LabelOSStable: "linux",
		}},
		Spec: corev1.NodeSpec{Taints: []corev1.Taint{Taint}},
		Status: corev1.NodeStatus{
			// From the first: a CCM that takes an instance that has no name yet for
			// an ended one deletes a Node that is not Ready (upstream's way).
			Conditions: []corev1.NodeCondition{k.readyCondition(corev1.ConditionTrue, "KubeletReady")},
		},
	}
}

func (k *Kubelets) readyCondition(status corev1.ConditionStatus, reason string) corev1.NodeCondition {
	now := metav1.Now()
	return corev1.NodeCondition{
		Type: corev1.NodeReady, Status: status, Reason: reason, Message: k.Message,
		LastHeartbeatTime: now, LastTransitionTime: now,
	}
}

// SetReady sets the Node's Ready condition. It patches, as a kubelet does: the CCM writes to a Node that
// has just registered at the same time, and neither is to lose against the other.
func (k *Kubelets) SetReady(ctx context.Context, node string, status corev1.ConditionStatus, reason string) error {
	patch, err := json.Marshal(map[string]any{
		"status": map[string]any{"conditions": []corev1.NodeCondition{k.readyCondition(status, reason)}},
	})
	if err == nil {
		_, err = k.Kube.CoreV1().Nodes().PatchStatus(ctx, node, patch)
	}
	return err
}

// RestoreIfLost marks the Node Ready if kube-controller-manager has taken it for lost, because this machine
// was too busy to renew its lease in time. A kubelet does so, too. A Node that is gone is no error.
func (k *Kubelets) RestoreIfLost(ctx context.Context, name string) (restored bool, err error) {
	node, err := k.Kube.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return false, ignoreNotFound(err)
	}
	lost := slices.ContainsFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionUnknown
	})
	if !lost {
		return false, nil
	}
	return true, k.SetReady(ctx, name, corev1.ConditionTrue, "KubeletReady")
}

// Start renews the Nodes' leases until Stop, so that kube-controller-manager does not take the Nodes for
// lost. It does nothing if they are renewed already. Of ctx it takes only the values.
func (k *Kubelets) Start(ctx context.Context) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.stop != nil {
		return
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	ended := make(chan struct{})
	k.stop = func() { cancel(); <-ended }
	go func() { defer close(ended); k.renewLeases(ctx) }()
}

// Stop ends the renewals, and returns when none is under way.
func (k *Kubelets) Stop() {
	k.mu.Lock()
	stop := k.stop
	k.stop = nil
	k.mu.Unlock()
	if stop != nil {
		stop()
	}
}

// renewalsAtOnce is how many leases are renewed side by side.
const renewalsAtOnce = 4

// renewLeases renews all leases, round after round, until ctx ends.
func (k *Kubelets) renewLeases(ctx context.Context) {
	tick := time.NewTicker(k.RenewalPeriod)
	defer tick.Stop()
	for ctx.Err() == nil {
		k.mu.Lock()
		nodes := slices.Collect(maps.Keys(k.leases))
		k.mu.Unlock()
		var round errgroup.Group
		round.SetLimit(renewalsAtOnce)
		for _, node := range nodes {
			round.Go(func() error {
				if ctx.Err() == nil {
					k.reportRenewal(ctx, node, k.RenewLease(ctx, node))
				}
				return nil // None is left out because another failed.
			})
		}
		_ = round.Wait()
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
	}
}

func (k *Kubelets) reportRenewal(ctx context.Context, node string, err error) {
	if k.Renewed != nil && ctx.Err() == nil {
		k.Renewed(ctx, node, err)
	}
}

// AddNode has the Node's lease created and renewed from the next round on.
func (k *Kubelets) AddNode(node string) { k.storeLease(node, nil) }

// RenewLease renews the Node's lease, or creates it. As long as nobody else writes the lease, that takes
// one call. From then on, each round renews it.
func (k *Kubelets) RenewLease(ctx context.Context, node string) error {
	leases, now := k.Kube.CoordinationV1().Leases(corev1.NamespaceNodeLease), metav1.NowMicro()
	k.mu.Lock()
	lease := k.leases[node].DeepCopy()
	k.mu.Unlock()
	var err error
	if lease == nil {
		lease, err = leases.Create(ctx, &coordinationv1.Lease{
			ObjectMeta: metav1.ObjectMeta{Name: node, Labels: k.LeaseLabels},
			Spec:       coordinationv1.LeaseSpec{HolderIdentity: &node, RenewTime: &now},
		}, metav1.CreateOptions{})
	} else {
		lease.Spec.RenewTime = &now
		lease, err = leases.Update(ctx, lease, metav1.UpdateOptions{})
		if apierrors.IsNotFound(err) {
			lease, err = nil, nil // Somebody has deleted it: the next round creates it.
		}
	}
	if apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) {
		lease, err = leases.Get(ctx, node, metav1.GetOptions{})
	}
	if err == nil {
		k.storeLease(node, lease)
	}
	return err
}

func (k *Kubelets) storeLease(node string, lease *coordinationv1.Lease) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.leases == nil {
		k.leases = map[string]*coordinationv1.Lease{}
	}
	k.leases[node] = lease
}

// DeleteNode deletes the Node and its lease, unless they are gone. Its lease must not be renewed any more.
func (k *Kubelets) DeleteNode(ctx context.Context, node string) error {
	if err := k.Kube.CoreV1().Nodes().Delete(ctx, node, metav1.DeleteOptions{}); ignoreNotFound(err) != nil {
		return err
	}
	leases := k.Kube.CoordinationV1().Leases(corev1.NamespaceNodeLease)
	return ignoreNotFound(leases.Delete(ctx, node, metav1.DeleteOptions{}))
}

// ignoreNotFound returns err, and nil if err says that the object does not exist.
func ignoreNotFound(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
