package conformance

// Nodes and instances for tests. Most tests need no kubelet, only what one
// writes: the suite stands in for it, so that a Node costs nothing and becomes
// NotReady at once when a test wants that.

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	cloudproviderapi "k8s.io/cloud-provider/api"

	"github.com/ccmlab/ccmlab/lab/labels"
)

// renewalPeriod is how often a stand-in's lease is renewed: well within the
// shortest grace period that a lab's kube-controller-manager is given.
const renewalPeriod = 2 * time.Second

// NodeSpec says how a stand-in registers its Node.
type NodeSpec struct {
	Name string
	// ProviderID is what --provider-id gives a kubelet.
	ProviderID string
	// NodeIP is what --node-ip gives a kubelet.
	NodeIP string
	Labels map[string]string
	// Balanced lets balancers send traffic to it. There is nothing to answer:
	// only tests that run alone should have one.
	Balanced bool
	// Change alters the Node before it is registered.
	Change func(*corev1.Node)
}

// StandIn is the suite in a kubelet's place.
type StandIn struct {
	Name string
	t    *T
	stop func() // ends the renewals of its lease; nil while there are none
	mu   sync.Mutex
}

// NewInstance creates a running instance, and terminates it after the test.
func (t *T) NewInstance(name string) Instance { return t.CreateInstance(InstanceSpec{Name: name}) }

// CreateInstance creates one as spec says, and terminates it after the test. Its NodeName is set.
func (t *T) CreateInstance(spec InstanceSpec) Instance {
	i, err := t.Cloud.CreateInstance(t.ctx, spec)
	t.Must(err, "creating instance %s", spec.Name)
	t.Cleanup(func(ctx context.Context) error { return t.Cloud.TerminateInstance(ctx, i.ID) })
	return withNodeName(i)
}

// withNodeName sets what the instance's Node is called, where the driver leaves it out.
func withNodeName(i Instance) Instance {
	i.NodeName = cmp.Or(i.NodeName, i.Name)
	return i
}

// NewNodeOf registers the Node of an instance. Of spec, the name is the instance's, and so is the
// provider ID where kubelets are given one.
func (t *T) NewNodeOf(i Instance, spec NodeSpec) *StandIn {
	return t.NewNode(t.nodeSpecOf(i, spec))
}

// nodeSpecOf says how a kubelet on the instance registers.
func (s *Suite) nodeSpecOf(i Instance, spec NodeSpec) NodeSpec {
	spec.Name = i.NodeName
	if s.HasFeature(FeatureKubeletProviderIDs) {
		spec.ProviderID = i.ProviderID
	}
	return spec
}

// NewNode registers a Node as a kubelet with --cloud-provider=external does:
// Ready, and tainted until a CCM has initialised it. It is deleted after the
// test.
func (t *T) NewNode(spec NodeSpec) *StandIn {
	_, err := t.Kube.CoreV1().Nodes().Create(t.ctx, nodeFromSpec(spec), metav1.CreateOptions{})
	t.Must(err, "registering Node %s", spec.Name)
	t.trace.Step("registered Node %s", spec.Name)
	n := &StandIn{Name: spec.Name, t: t}
	t.Cleanup(n.deleteNode)
	n.startRenewals()
	return n
}

// nodeFromSpec returns the Node that a kubelet would register.
func nodeFromSpec(spec NodeSpec) *corev1.Node {
	nodeLabels := map[string]string{corev1.LabelHostname: spec.Name, corev1.LabelOSStable: "linux"}
	if !spec.Balanced {
		nodeLabels[corev1.LabelNodeExcludeBalancers] = "true"
	}
	maps.Copy(nodeLabels, spec.Labels)
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: spec.Name, Labels: nodeLabels},
		Spec: corev1.NodeSpec{ProviderID: spec.ProviderID, Taints: []corev1.Taint{
			{Key: cloudproviderapi.TaintExternalCloudProvider, Value: "true", Effect: corev1.TaintEffectNoSchedule},
			{Key: labels.StandInTaint, Value: "true", Effect: corev1.TaintEffectNoSchedule},
		}},
		Status: corev1.NodeStatus{
			Addresses: []corev1.NodeAddress{{Type: corev1.NodeHostName, Address: spec.Name}},
			// From the first: a CCM that takes an instance that has no name yet for
			// an ended one deletes a Node that is not Ready (upstream's way).
			Conditions: []corev1.NodeCondition{readyCondition(corev1.ConditionTrue, "KubeletReady")},
		},
	}
	if spec.NodeIP != "" {
		node.Annotations = map[string]string{cloudproviderapi.AnnotationAlphaProvidedIPAddr: spec.NodeIP}
	}
	if spec.Change != nil {
		spec.Change(node)
	}
	return node
}

// NewWorker is an instance and its Node, initialised by the CCM.
func (t *T) NewWorker(spec NodeSpec) (Instance, *StandIn) {
	if spec.Name == "" {
		spec.Name = t.Name("worker")
	}
	i := t.NewInstance(spec.Name)
	n := t.NewNodeOf(i, spec)
	t.AwaitInitialized(n.Name)
	return i, n
}

// Ready says of the Node that it is, and keeps saying so.
func (n *StandIn) Ready() {
	n.t.trace.Step("Node %s says that it is Ready", n.Name)
	n.setReadyCondition(corev1.ConditionTrue, "KubeletReady")
	n.startRenewals()
}

func (n *StandIn) startRenewals() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.stop == nil {
		ctx, cancel := context.WithCancel(context.WithoutCancel(n.t.ctx))
		ended := make(chan struct{})
		go func() { defer close(ended); n.renewLease(ctx) }()
		n.stop = func() { cancel(); <-ended }
	}
}

// NotReady says what a kubelet says when its machine shuts down, and falls
// silent.
func (n *StandIn) NotReady() {
	n.t.trace.Step("Node %s says that it is not Ready, and falls silent", n.Name)
	n.stopRenewals()
	n.setReadyCondition(corev1.ConditionFalse, "KubeletNotReady")
}

func (n *StandIn) stopRenewals() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.stop != nil {
		n.stop()
		n.stop = nil
	}
}

func readyCondition(status corev1.ConditionStatus, reason string) corev1.NodeCondition {
	now := metav1.Now()
	return corev1.NodeCondition{
		Type: corev1.NodeReady, Status: status, Reason: reason,
		Message:           "the conformance suite stands in for the kubelet",
		LastHeartbeatTime: now, LastTransitionTime: now,
	}
}

func (n *StandIn) setReadyCondition(status corev1.ConditionStatus, reason string) {
	err := patchReady(n.t.ctx, n.t.Kube, n.Name, status, reason)
	if apierrors.IsNotFound(err) {
		return // The CCM was faster; what became of the Node is for the test to see.
	}
	n.t.Must(err, "saying that Node %s is Ready: %s", n.Name, status)
}

// patchReady patches, as a kubelet does: the CCM writes to a Node that has just
// registered at the same time, and neither is to lose against the other.
func patchReady(
	ctx context.Context,
	kube kubernetes.Interface,
	node string,
	status corev1.ConditionStatus,
	reason string,
) error {
	patch, err := json.Marshal(
		map[string]any{"status": map[string]any{"conditions": []corev1.NodeCondition{readyCondition(status, reason)}}},
	)
	if err == nil {
		_, err = kube.CoreV1().Nodes().PatchStatus(ctx, node, patch)
	}
	return err
}

// renewLease renews the Node's lease until ctx ends, so that kube-controller-manager does not take
// the Node for lost.
func (n *StandIn) renewLease(ctx context.Context) {
	leases := n.t.Kube.CoordinationV1().Leases(corev1.NamespaceNodeLease)
	tick := time.NewTicker(renewalPeriod)
	defer tick.Stop()
	for {
		now := metav1.NowMicro()
		lease, err := leases.Get(ctx, n.Name, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err):
			lease = &coordinationv1.Lease{
				ObjectMeta: metav1.ObjectMeta{Name: n.Name},
				Spec:       coordinationv1.LeaseSpec{HolderIdentity: &n.Name, RenewTime: &now},
			}
			_, err = leases.Create(ctx, lease, metav1.CreateOptions{})
		case err == nil:
			lease.Spec.RenewTime = &now
			_, err = leases.Update(ctx, lease, metav1.UpdateOptions{})
		}
		if err == nil {
			err = n.restoreIfLost(ctx)
		}
		if err != nil && ctx.Err() == nil {
			n.t.Logf("keeping Node %s alive: %v", n.Name, err)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// restoreIfLost marks the Node Ready if it was taken for lost, on a machine that was too busy to
// renew its lease in time. A kubelet does so, too.
func (n *StandIn) restoreIfLost(ctx context.Context) error {
	node, err := n.t.GetNode(ctx, n.Name)
	if apierrors.IsNotFound(err) {
		return nil // What became of it is for the test to see.
	}
	if err != nil || !isNodeLost(node) {
		return err
	}
	n.t.Logf("Node %s was taken for lost while it was alive, and says that it is Ready", n.Name)
	return patchReady(ctx, n.t.Kube, n.Name, corev1.ConditionTrue, "KubeletReady")
}

// isNodeLost tells whether kube-controller-manager has set the Ready condition to Unknown.
func isNodeLost(node *corev1.Node) bool {
	return slices.ContainsFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionUnknown
	})
}

func (n *StandIn) deleteNode(ctx context.Context) error {
	n.stopRenewals()
	if err := n.t.Kube.CoreV1().Nodes().
		Delete(ctx, n.Name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	err := n.t.Kube.CoordinationV1().Leases(corev1.NamespaceNodeLease).Delete(ctx, n.Name, metav1.DeleteOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// GetNode is the Node as it is now.
func (s *Suite) GetNode(ctx context.Context, name string) (*corev1.Node, error) {
	return s.Kube.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
}

// NodeReady returns an error while the Node is missing or not Ready.
func (s *Suite) NodeReady(ctx context.Context, name string) error {
	node, err := s.GetNode(ctx, name)
	if err != nil {
		return err
	}
	for _, c := range node.Status.Conditions {
		if c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue {
			return nil
		}
	}
	return fmt.Errorf("node %s is not Ready", name)
}

// Initialized returns an error while the Node waits for a CCM.
func (s *Suite) Initialized(ctx context.Context, name string) (*corev1.Node, error) {
	node, err := s.GetNode(ctx, name)
	if err == nil && HasTaint(node, cloudproviderapi.TaintExternalCloudProvider) {
		err = fmt.Errorf("node %s has the taint %s", name, cloudproviderapi.TaintExternalCloudProvider)
	}
	return node, err
}

// AwaitInitialized waits for the CCM to have initialised the Node.
func (t *T) AwaitInitialized(name string) *corev1.Node {
	var node *corev1.Node
	t.Await("Node "+name+" to be initialised", func(ctx context.Context) (err error) {
		node, err = t.Initialized(ctx, name)
		return err
	})
	return node
}

// NoNode returns an error while there is a Node of this name.
func (s *Suite) NoNode(ctx context.Context, name string) error {
	_, err := s.GetNode(ctx, name)
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case err == nil:
		err = fmt.Errorf("node %s is still there", name)
	}
	return err
}

// AwaitNoNode waits for the Node to be deleted.
func (t *T) AwaitNoNode(name string) {
	t.Await("Node "+name+" to be deleted", func(ctx context.Context) error { return t.NoNode(ctx, name) })
}

// AwaitTaint waits for the Node to have a taint, or to have it no more.
func (t *T) AwaitTaint(name, key string, want bool) {
	t.Await(fmt.Sprintf("taint %s of Node %s: %t", key, name, want), func(ctx context.Context) error {
		node, err := t.GetNode(ctx, name)
		if err == nil && HasTaint(node, key) != want {
			err = fmt.Errorf("its taints are %v", node.Spec.Taints)
		}
		return err
	})
}

// HasTaint tells whether the Node has a taint of this key.
func HasTaint(node *corev1.Node, key string) bool {
	for _, taint := range node.Spec.Taints {
		if taint.Key == key {
			return true
		}
	}
	return false
}
