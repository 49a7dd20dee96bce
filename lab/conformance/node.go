package conformance

// Nodes and instances for tests. Most tests need no kubelet, only what one writes (lab/fakekubelet).

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	cloudproviderapi "k8s.io/cloud-provider/api"

	"github.com/ccmlab/ccmlab/lab/fakekubelet"
	"github.com/ccmlab/ccmlab/lab/kubediff"
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
	// NodeIP is what --node-ip gives a kubelet: an address, or one of each family with a comma between.
	NodeIP string
	Labels map[string]string
	// Balanced lets balancers send traffic to it. There is nothing to answer:
	// only tests that run alone should have one.
	Balanced bool
	// Change alters the Node before it is registered.
	Change func(*corev1.Node)
}

// standInMessage is that of the Ready conditions that the suite writes.
const standInMessage = "the conformance suite stands in for the kubelet"

// StandIn is a Node for which the suite writes what a kubelet would.
type StandIn struct {
	Name     string
	t        *T
	kubelets *fakekubelet.Kubelets // of this Node
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
	i.NodeName = cmp.Or(i.NodeName, strings.ToLower(i.Name))
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
	n := t.newStandIn(spec.Name)
	_, err := t.Kube.CoreV1().Nodes().Create(t.ctx, nodeFromSpec(n.kubelets, spec), metav1.CreateOptions{})
	t.Must(err, "registering Node %s", spec.Name)
	t.trace.Step("registered Node %s", spec.Name)
	t.Cleanup(n.deleteNode)
	n.kubelets.AddNode(n.Name)
	n.kubelets.Start(t.ctx)
	return n
}

func (t *T) newStandIn(name string) *StandIn {
	n := &StandIn{Name: name, t: t}
	n.kubelets = &fakekubelet.Kubelets{
		Kube: t.Kube, Message: standInMessage, RenewalPeriod: renewalPeriod, Renewed: n.restoreIfLost,
	}
	return n
}

// nodeFromSpec returns the Node that a kubelet would register.
func nodeFromSpec(k *fakekubelet.Kubelets, spec NodeSpec) *corev1.Node {
	node := k.NewNode(spec.Name)
	if !spec.Balanced {
		node.Labels[corev1.LabelNodeExcludeBalancers] = "true"
	}
	maps.Copy(node.Labels, spec.Labels)
	node.Spec.ProviderID = spec.ProviderID
	node.Spec.Taints = append(node.Spec.Taints, corev1.Taint{
		Key: labels.StandInTaint, Value: "true", Effect: corev1.TaintEffectNoSchedule,
	})
	node.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeHostName, Address: spec.Name}}
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
	n.setReady(corev1.ConditionTrue, "KubeletReady")
	n.kubelets.Start(n.t.ctx)
}

// NotReady says what a kubelet says when its machine shuts down, and falls
// silent.
func (n *StandIn) NotReady() {
	n.t.trace.Step("Node %s says that it is not Ready, and falls silent", n.Name)
	n.kubelets.Stop()
	n.setReady(corev1.ConditionFalse, "KubeletNotReady")
}

func (n *StandIn) setReady(status corev1.ConditionStatus, reason string) {
	err := n.kubelets.SetReady(n.t.ctx, n.Name, status, reason)
	if apierrors.IsNotFound(err) {
		return // The CCM was faster; what became of the Node is for the test to see.
	}
	n.t.Must(err, "saying that Node %s is Ready: %s", n.Name, status)
}

// restoreIfLost marks the Node Ready if it was taken for lost although its lease is renewed. err says that
// the lease could not be renewed.
func (n *StandIn) restoreIfLost(ctx context.Context, _ string, err error) {
	restored := false
	if err == nil {
		restored, err = n.kubelets.RestoreIfLost(ctx, n.Name)
	}
	if restored {
		n.t.Logf("Node %s was taken for lost while it was alive, and says that it is Ready", n.Name)
	}
	if err != nil && ctx.Err() == nil {
		n.t.Logf("keeping Node %s alive: %v", n.Name, err)
	}
}

func (n *StandIn) deleteNode(ctx context.Context) error {
	n.kubelets.Stop()
	return n.kubelets.DeleteNode(ctx, n.Name)
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
	if !kubediff.IsNodeReady(node) {
		return fmt.Errorf("node %s is not Ready", name)
	}
	return nil
}

// Initialized returns an error while the Node waits for a CCM.
func (s *Suite) Initialized(ctx context.Context, name string) (*corev1.Node, error) {
	node, err := s.GetNode(ctx, name)
	if err == nil && kubediff.HasTaint(node, cloudproviderapi.TaintExternalCloudProvider) {
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
		if err == nil && kubediff.HasTaint(node, key) != want {
			err = fmt.Errorf("its taints are %v", node.Spec.Taints)
		}
		return err
	})
}
