package ccm

// The cloud watch's Nodes: one whose instance has ended is deleted, also while
// it is Ready, which upstream never looks at. One whose instance is stopped is
// told of it; the shutdown taint stays upstream's, who sets it when the Node
// turns NotReady and takes it from a Ready Node every few seconds. One whose
// instance came late is prompted.

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/ccmlab/ccmlab/ccm/contract"
	"github.com/ccmlab/ccmlab/fakecloud/api"
)

const (
	// waitingPeriod is how often Nodes that wait for their initialisation are
	// looked at.
	waitingPeriod = 2 * time.Second
	// rareLooks is which of them also is at Nodes without any instance.
	rareLooks = 15
	// A Node is prompted again after promptPause, and then, as long as its
	// instance stays the same, after twice the pause of before.
	promptPause    = 5 * time.Second
	promptPauseMax = time.Minute
)

// prompted is what a Node was last prompted for.
type prompted struct {
	instance string // ID and version
	at       time.Time
	pause    time.Duration
}

func (w *cloudWatch) enqueueNode(obj any) {
	if node, ok := obj.(*corev1.Node); ok {
		w.nodeQueue.Add(node.Name)
	}
}

func (w *cloudWatch) enqueueNodes() {
	for _, name := range w.nodes.ListKeys() {
		w.nodeQueue.Add(name)
	}
}

// nodeChanged looks at a Node whose instance became known. Its many other
// updates, such as the kubelet's, say nothing of the cloud.
func (w *cloudWatch) nodeChanged(old, obj any) {
	before, ok1 := old.(*corev1.Node)
	now, ok2 := obj.(*corev1.Node)
	if ok1 && ok2 && (before.Spec.ProviderID != now.Spec.ProviderID || before.UID != now.UID) {
		w.nodeQueue.Add(now.Name)
	}
}

// enqueueNodesOf are the Nodes with the instance's provider ID and the one
// with its name, which may be waiting for it.
func (w *cloudWatch) enqueueNodesOf(instance *api.Instance) {
	found, err := w.nodes.ByIndex(byProviderID, contract.ProviderID(instance.ID))
	if err != nil {
		klog.ErrorS(err, "Looking up Nodes by provider ID")
	}
	for _, obj := range found {
		w.enqueueNode(obj)
	}
	w.nodeQueue.Add(instance.Name)
}

// checkWaiting is for Nodes whose trouble ended without a change of their
// instance: the cloud did not answer, and now does. To look for an instance that
// was not there costs a list, and its coming is told; so that is done rarely.
func (w *cloudWatch) checkWaiting(context.Context) {
	w.looks++
	for _, obj := range w.nodes.List() {
		node, ok := obj.(*corev1.Node)
		if ok && w.waits(node) && (w.looks%rareLooks == 0 || !w.explain.toldThat(node, topicInitialization, contract.ReasonInstanceNotFound)) {
			w.nodeQueue.Add(node.Name)
		}
	}
}

// toldThat tells whether the cause that was met last has that reason.
func (e *explainer) toldThat(obj object, topic, reason string) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	said := e.said[about{obj.GetUID(), topic}]
	return len(said) > 0 && said[len(said)-1].reason == reason
}

// waits tells whether a Node was tried and not initialised, so that upstream's
// next try may be far away.
func (w *cloudWatch) waits(node *corev1.Node) bool {
	return uninitialized(node) && w.explain.troubled(node, topicInitialization)
}

func (w *cloudWatch) syncNode(ctx context.Context, name string) error {
	obj, exists, err := w.nodes.GetByKey(name)
	if err != nil || !exists {
		return err
	}
	node, ok := obj.(*corev1.Node)
	if !ok || node.DeletionTimestamp != nil {
		return nil
	}
	if node.Spec.ProviderID == "" {
		return w.prompt(ctx, node)
	}
	id, err := parseProviderID(node.Spec.ProviderID)
	if err != nil {
		return nil //nolint:nilerr // A Node of another cloud is not ours to judge.
	}
	instance, err := w.known.Instance(ctx, id)
	if err != nil {
		return fmt.Errorf("looking at instance %s of node %s: %w", id, name, err)
	}
	if instance == nil || ended(instance.State) {
		return w.removeIfGone(ctx, node, id, instance)
	}
	w.explain.state(node, instance)
	return w.prompt(ctx, node)
}

// removeIfGone asks for the definite verdict: that the inventory does not have
// an instance proves nothing.
func (w *cloudWatch) removeIfGone(ctx context.Context, node *corev1.Node, id string, last *api.Instance) error {
	gone, err := w.gone(ctx, node)
	if err != nil {
		return fmt.Errorf("has the instance of node %s ended: %w", node.Name, err)
	}
	if !gone {
		klog.V(2).InfoS("Node stays: the cloud says that its instance is there", "node", klog.KObj(node), "instance", id)
		return nil
	}
	why := "no longer exists"
	if last != nil {
		why = "is " + string(last.State)
	}
	klog.InfoS("Deleting Node: its instance has ended", "node", klog.KObj(node), "instance", id, "why", why)
	err = w.kube.CoreV1().Nodes().Delete(ctx, node.Name, *metav1.NewPreconditionDeleteOptions(string(node.UID)))
	switch {
	case apierrors.IsNotFound(err), apierrors.IsConflict(err):
		// Somebody was faster; or there is another Node of that name by now,
		// which the informer will tell of.
		return nil
	case err != nil:
		return fmt.Errorf("deleting node %s, whose instance %s %s: %w", node.Name, id, why, err)
	}
	nodesRemoved.Inc()
	w.explain.note(node, contract.ReasonNodeRemoved, "Node is removed: its instance %s %s", id, why)
	return nil
}

// prompt has upstream look at a waiting Node now, if that promises anything.
func (w *cloudWatch) prompt(ctx context.Context, node *corev1.Node) error {
	if !w.waits(node) {
		return nil
	}
	instance, err := w.found(ctx, node)
	if err != nil {
		// The next check of waiting Nodes looks again.
		klog.V(2).InfoS("Node is not prompted", "node", klog.KObj(node), "err", err)
		return nil
	}
	if instance == nil || !w.mayPrompt(node.UID, instance) {
		return nil
	}
	now := time.Now()
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"uid":         node.UID, // a precondition: no other Node of that name
		"annotations": map[string]string{contract.AnnotationPrompted: now.UTC().Format(time.RFC3339)},
	}})
	if err != nil {
		return err
	}
	klog.InfoS("Prompting Node: its instance is there", "node", klog.KObj(node), "instance", instance.ID)
	_, err = w.kube.CoreV1().Nodes().Patch(ctx, node.Name, types.MergePatchType, patch, metav1.PatchOptions{})
	switch {
	case apierrors.IsNotFound(err), apierrors.IsConflict(err):
		return nil // It is gone, or another's of that name: nobody was prompted.
	case err != nil:
		return fmt.Errorf("prompting node %s: %w", node.Name, err)
	}
	nodesPrompted.Inc()
	return nil
}

// mayPrompt tells whether the Node's pause is over, and begins the next.
func (w *cloudWatch) mayPrompt(uid types.UID, instance *api.Instance) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	what := fmt.Sprintf("%s/%d", instance.ID, instance.Version)
	last, before := w.prompted[uid]
	next := prompted{instance: what, at: time.Now(), pause: promptPause}
	switch {
	case !before:
	case last.instance != what && next.at.Sub(last.at) < promptPause:
		return false
	case last.instance != what:
	case next.at.Sub(last.at) < last.pause:
		return false
	default:
		next.pause = min(2*last.pause, promptPauseMax)
	}
	w.prompted[uid] = next
	return true
}

// promptAnew has every pause be the shortest again.
func (w *cloudWatch) promptAnew() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for uid, p := range w.prompted {
		p.pause = promptPause
		w.prompted[uid] = p
	}
}
