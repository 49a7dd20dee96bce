package watch

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	kcache "k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/ccmlab/ccmlab/ccm/cache"
	"github.com/ccmlab/ccmlab/ccm/contract"
	"github.com/ccmlab/ccmlab/ccm/core"
	"github.com/ccmlab/ccmlab/fakecloud/api"
)

const (
	// minNodeRetry and maxNodeRetry are between two tries for one Node that fail.
	minNodeRetry = 500 * time.Millisecond
	maxNodeRetry = 30 * time.Second
	// minPromptPause and maxPromptPause are between two looks at one Node that waits for its initialization, unless
	// its instance changes. Each look may cost a list, and a prompt.
	minPromptPause = 5 * time.Second
	maxPromptPause = time.Minute
)

// nodeWatch makes Nodes follow their instances. There is one for each of upstream's two controllers of Nodes, as
// either may be with another process. It is safe for concurrent use.
type nodeWatch struct {
	*Watch
	*watchJob // Its keys are names of Nodes.
	kube      kubernetes.Interface
}

// newNodePrompter makes the job that helps cloud-node-controller: it prompts a Node whose instance came late, so that
// upstream initializes it, and explains why nobody initializes another.
func newNodePrompter(c *Watch, kube kubernetes.Interface) *watchJob {
	w := newNodeWatch(c, kube, "the watch of waiting Nodes", newKeyQueue("waiting_nodes", minPromptPause, maxPromptPause))
	w.sync = w.syncWaitingNode
	return w.watchJob
}

// newNodeRemover makes the job that helps cloud-node-lifecycle-controller. It deletes a Node whose instance has ended,
// also while the Node is Ready, which upstream never looks at. When it looks at an instance that is stopped, an Event
// is written on the Node. The shutdown taint stays upstream's, which sets it when the Node turns NotReady and takes it
// from a Ready Node every few seconds.
func newNodeRemover(c *Watch, kube kubernetes.Interface) *watchJob {
	w := newNodeWatch(c, kube, "the watch of ended instances", newKeyQueue("ended_nodes", minNodeRetry, maxNodeRetry))
	w.sync = w.syncInitializedNode
	return w.watchJob
}

func newNodeWatch(c *Watch, kube kubernetes.Interface, name string, queue keyQueue) *nodeWatch {
	w := &nodeWatch{Watch: c, kube: kube}
	w.watchJob = &watchJob{
		name:     name,
		onNode:   kcache.ResourceEventHandlerFuncs{AddFunc: w.enqueueNode, UpdateFunc: w.enqueueIfInstanceKnown},
		onChange: w.enqueueChange,
		queue:    queue,
		periodic: map[time.Duration]func(){resyncPeriod: w.enqueueAllNodes},
	}
	return w
}

// byProviderID is the name of the index in the informer that is shared with upstream.
const byProviderID = "fakecloud-provider-id"

func indexByProviderID(obj any) ([]string, error) {
	if node, ok := obj.(*corev1.Node); ok && node.Spec.ProviderID != "" {
		return []string{node.Spec.ProviderID}, nil
	}
	return nil, nil
}

func (w *nodeWatch) enqueueChange(c cache.Change) {
	switch {
	case c.Instance != nil:
		w.enqueueNodesOf(c.Instance)
	case c.Kind == cache.Recovered, c.Kind == cache.Relisted:
		w.enqueueAllNodes()
	}
}

func (w *nodeWatch) enqueueNode(obj any) {
	if node, ok := obj.(*corev1.Node); ok {
		w.queue.Add(node.Name)
	}
}

func (w *nodeWatch) enqueueAllNodes() {
	for _, name := range w.nodes.GetIndexer().ListKeys() {
		w.queue.Add(name)
	}
}

// enqueueIfInstanceKnown queues a Node whose provider ID or initialisation taint changed. Other
// updates, such as the kubelet's, do not concern the cloud.
func (w *nodeWatch) enqueueIfInstanceKnown(old, obj any) {
	before, ok1 := old.(*corev1.Node)
	now, ok2 := obj.(*corev1.Node)
	if ok1 && ok2 && (before.Spec.ProviderID != now.Spec.ProviderID || before.UID != now.UID ||
		core.IsUninitialized(before) != core.IsUninitialized(now)) {
		w.queue.Add(now.Name)
	}
}

// enqueueNodesOf queues the Nodes with the instance's provider ID and the one with its
// name, which may be waiting for it.
func (w *nodeWatch) enqueueNodesOf(instance *api.Instance) {
	found, _ := w.nodes.GetIndexer().ByIndex(byProviderID, contract.ProviderID(instance.ID)) // There is such an index.
	for _, obj := range found {
		w.enqueueNode(obj)
	}
	w.queue.Add(strings.ToLower(instance.Name))
}

// getNode returns the Node of that name, as the informer has it; nil if there is none or it is being deleted.
func (w *nodeWatch) getNode(name string) *corev1.Node {
	obj, _, _ := w.nodes.GetIndexer().GetByKey(name) // It reads memory, and cannot fail.
	if node, ok := obj.(*corev1.Node); ok && node.DeletionTimestamp == nil {
		return node
	}
	return nil
}

func isOwn(node *corev1.Node) bool { return core.CheckOwnNode(node) == nil }

// syncInitializedNode deletes the Node if its instance has ended.
func (w *nodeWatch) syncInitializedNode(ctx context.Context, name string) error {
	node := w.getNode(name)
	if node == nil || node.Spec.ProviderID == "" || !isOwn(node) {
		return nil
	}
	why, err := w.provider.Instances.MayDelete(ctx, node)
	if err != nil {
		return fmt.Errorf("checking whether the instance of node %s has ended: %w", node.Name, err)
	}
	if why == "" {
		return nil
	}
	klog.InfoS("Deleting Node: its instance has ended", "node", klog.KObj(node), "why", why)
	err = w.kube.CoreV1().Nodes().Delete(ctx, node.Name, *metav1.NewPreconditionDeleteOptions(string(node.UID)))
	switch {
	case apierrors.IsNotFound(err), apierrors.IsConflict(err):
		// It is deleted already, or another Node has its name, which the informer will report.
		return nil
	case err != nil:
		return fmt.Errorf("deleting node %s: %w", node.Name, err)
	}
	nodesRemoved.Inc()
	w.events.Note(node, contract.ReasonNodeRemoved, "Node is removed: "+why)
	return nil
}

// topicProviderID is whether a Node is this cloud's, and to be initialized.
const topicProviderID = "provider-id"

// syncWaitingNode changes a Node that upstream failed to initialize so that upstream tries again now, if that may
// succeed. It looks again until the Node is initialized. It explains why a Node is ignored, unless that has the taint:
// whoever initializes it does.
func (w *nodeWatch) syncWaitingNode(ctx context.Context, name string) error {
	node := w.getNode(name)
	if node == nil {
		return nil
	}
	if err := core.CheckOwnNode(node); err != nil && !core.IsUninitialized(node) {
		cause := core.CauseOf(err)
		w.events.WarnOnce(node, topicProviderID, cause.Reason, cause.Detail, fmt.Sprintf("Node is ignored: %v", err))
	} else {
		w.events.Resolve(node, topicProviderID)
	}
	switch {
	case !isOwn(node), !core.IsUninitialized(node):
		return nil
	case w.reasonOf(node.UID) == "":
		return errCheckAgain // Upstream has not tried yet.
	}
	instance, err := w.provider.Instances.FindInstance(ctx, node)
	if err != nil {
		klog.V(2).InfoS("Node is not prompted", "node", klog.KObj(node), "err", err)
		return errCheckAgain
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"uid":         node.UID, // a precondition: no other Node of that name
		"annotations": map[string]string{contract.AnnotationPrompted: time.Now().UTC().Format(time.RFC3339)},
	}})
	if err != nil {
		return err
	}
	klog.InfoS("Prompting Node: its instance exists", "node", klog.KObj(node), "instance", instance.ID)
	_, err = w.kube.CoreV1().Nodes().Patch(ctx, node.Name, types.MergePatchType, patch, metav1.PatchOptions{})
	switch {
	case apierrors.IsNotFound(err), apierrors.IsConflict(err):
		return errCheckAgain // The Node is gone, or another has its name: nobody was prompted.
	case err != nil:
		return fmt.Errorf("prompting node %s: %w", node.Name, err)
	}
	nodesPrompted.Inc()
	return errCheckAgain
}
