package watch

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	kcache "k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/ccmlab/ccmlab/ccm/cache"
	"github.com/ccmlab/ccmlab/ccm/calls"
	"github.com/ccmlab/ccmlab/ccm/contract"
	"github.com/ccmlab/ccmlab/ccm/core"
	"github.com/ccmlab/ccmlab/fakecloud/api"
)

const (
	// waitingNodesPeriod is how often Nodes that wait for their initialisation are
	// looked at.
	waitingNodesPeriod = 2 * time.Second
	// noInstanceRounds is the number of rounds between two checks of Nodes without any instance.
	noInstanceRounds = 15
	// allNodesPeriod is how often every Node is checked, for changes that no event reported: the
	// stream was broken, or the event came before its Node.
	allNodesPeriod = time.Minute
	// minPromptPause is the time between the first two prompts of a Node. While its instance stays
	// the same, each pause is twice the previous one, up to maxPromptPause.
	minPromptPause = 5 * time.Second
	maxPromptPause = time.Minute
	// minNodeRetry and maxNodeRetry are between two tries for one Node that fail.
	minNodeRetry = 500 * time.Millisecond
	maxNodeRetry = 30 * time.Second
)

// nodeWatch makes Nodes follow their instances. It deletes a Node whose instance has ended,
// also while the Node is Ready, which upstream never looks at. It writes an Event on a Node
// whose instance is stopped; the shutdown taint stays upstream's, which sets it when the
// Node turns NotReady and takes it from a Ready Node every few seconds. It prompts a Node
// whose instance came late. There is one for each of upstream's two controllers of Nodes, as
// either may be with another process. It is safe for concurrent use.
type nodeWatch struct {
	// prompting: it helps cloud-node-controller, which initialises Nodes that are prompted.
	prompting bool
	// removing: it helps cloud-node-lifecycle-controller, which removes Nodes whose instance has
	// ended, and taints those whose instance is stopped.
	removing bool

	kube      kubernetes.Interface
	events    core.Events
	outcomes  *outcomes
	instances core.Instances

	nodes         kcache.Indexer
	synced        kcache.InformerSynced
	queue         keyQueue // of Node names
	waitingRounds int      // how often waiting Nodes were looked at; for one goroutine

	mu      sync.Mutex
	prompts map[types.UID]prompt // the last one of each Node
}

// prompt is what a Node was prompted for.
type prompt struct {
	instance string // ID and version
	at       time.Time
	pause    time.Duration // until the next
}

// newNodePrompter makes the node watch that helps cloud-node-controller.
func newNodePrompter(
	c *Watch, kube kubernetes.Interface, shared informers.SharedInformerFactory,
) ([]watchJob, error) {
	w := newNodeWatch(c, kube, "waiting_nodes")
	w.prompting = true
	return []watchJob{w}, w.subscribe(c.memory, shared)
}

// newNodeRemover makes the node watch that helps cloud-node-lifecycle-controller.
func newNodeRemover(
	c *Watch, kube kubernetes.Interface, shared informers.SharedInformerFactory,
) ([]watchJob, error) {
	w := newNodeWatch(c, kube, "ended_nodes")
	w.removing = true
	return []watchJob{w}, w.subscribe(c.memory, shared)
}

func newNodeWatch(c *Watch, kube kubernetes.Interface, queue string) *nodeWatch {
	return &nodeWatch{
		kube:      kube,
		events:    c.opts.Events,
		outcomes:  c.outcomes,
		instances: c.provider.Instances,
		queue:     newKeyQueue("cloud_watch_"+queue, minNodeRetry, maxNodeRetry),
		prompts:   map[types.UID]prompt{},
	}
}

// byProviderID is the name of the index in the informer that is shared with upstream.
const byProviderID = "fakecloud-provider-id"

func indexByProviderID(obj any) ([]string, error) {
	if node, ok := obj.(*corev1.Node); ok && node.Spec.ProviderID != "" {
		return []string{node.Spec.ProviderID}, nil
	}
	return nil, nil
}

// subscribe has the queue filled by what happens to Nodes and in the cloud.
func (w *nodeWatch) subscribe(feed changeFeed, shared informers.SharedInformerFactory) error {
	informer := shared.Core().V1().Nodes().Informer()
	w.nodes = informer.GetIndexer()
	if err := addIndex(informer, byProviderID, indexByProviderID); err != nil {
		return err
	}
	handler, err := informer.AddEventHandler(kcache.ResourceEventHandlerFuncs{
		AddFunc:    w.enqueueNode,
		UpdateFunc: w.enqueueIfInstanceKnown,
		DeleteFunc: w.forgetNode,
	})
	if err != nil {
		return fmt.Errorf("%s: following Nodes: %w", calls.CloudWatch, err)
	}
	w.synced = handler.HasSynced
	feed.Subscribe(w.enqueueChange)
	return nil
}

// Name implements watchJob.
func (w *nodeWatch) Name() string {
	if w.prompting {
		return "the watch of waiting Nodes"
	}
	return "the watch of ended instances"
}

// Run works until ctx ends. What it starts has ended when it returns.
func (w *nodeWatch) Run(ctx context.Context, health *jobHealth) {
	var running wait.Group
	defer running.Wait()
	defer w.queue.ShutDown()
	if !awaitSync(ctx, health, w.synced) {
		return
	}
	startWorkers(ctx, &running, health, w.queue, w.syncNode)
	if w.prompting {
		runPeriodically(ctx, &running, health, waitingNodesPeriod, w.enqueueWaitingNodes)
	}
	runPeriodically(ctx, &running, health, allNodesPeriod, w.enqueueAllNodes)
	<-ctx.Done()
}

// enqueueChange is called by the feed, and must not block.
func (w *nodeWatch) enqueueChange(c cache.Change) {
	switch {
	case c.Instance != nil:
		w.enqueueNodesOf(c.Instance)
	case c.Kind == cache.Recovered:
		w.resetPromptPauses()
		w.enqueueAllNodes(context.Background())
	case c.Kind == cache.Relisted:
		w.enqueueAllNodes(context.Background())
	}
}

func (w *nodeWatch) enqueueNode(obj any) {
	if node, ok := obj.(*corev1.Node); ok {
		w.queue.Add(node.Name)
	}
}

func (w *nodeWatch) enqueueAllNodes(context.Context) {
	for _, name := range w.nodes.ListKeys() {
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
	found, err := w.nodes.ByIndex(byProviderID, contract.ProviderID(instance.ID))
	if err != nil {
		klog.ErrorS(err, "Looking up Nodes by provider ID")
	}
	for _, obj := range found {
		w.enqueueNode(obj)
	}
	w.queue.Add(strings.ToLower(instance.Name))
}

// enqueueWaitingNodes queues Nodes that may be initialised now without a change of their instance:
// the cloud did not answer before. Nodes without an instance are queued rarely, because each check
// costs a list, and the feed reports a new instance.
func (w *nodeWatch) enqueueWaitingNodes(context.Context) {
	w.waitingRounds++
	for _, obj := range w.nodes.List() {
		node, ok := obj.(*corev1.Node)
		if !ok || !w.awaitsRetry(node) {
			continue
		}
		if w.waitingRounds%noInstanceRounds == 0 ||
			w.outcomes.get(node.UID).reason != contract.ReasonInstanceNotFound {
			w.queue.Add(node.Name)
		}
	}
}

// awaitsRetry tells whether upstream tried to initialise the Node and failed, so that its
// next try may be far away.
func (w *nodeWatch) awaitsRetry(node *corev1.Node) bool {
	return core.IsUninitialized(node) && w.outcomes.get(node.UID).reason != ""
}

// syncNode compares one Node with its instance.
func (w *nodeWatch) syncNode(ctx context.Context, name string) error {
	obj, exists, err := w.nodes.GetByKey(name)
	if err != nil || !exists {
		return err
	}
	node, ok := obj.(*corev1.Node)
	if !ok || node.DeletionTimestamp != nil {
		return nil
	}
	if w.prompting {
		w.explainIgnored(node)
	}
	if _, isOurs := contract.InstanceIDFromProviderID(node.Spec.ProviderID); !isOurs && node.Spec.ProviderID != "" {
		return nil // A Node of another cloud is ignored.
	}
	if w.removing && node.Spec.ProviderID != "" {
		return w.deleteNodeIfGone(ctx, node)
	}
	return w.promptNode(ctx, node)
}

// topicProviderID is whether a Node is this cloud's, and to be initialized.
const topicProviderID = "provider-id"

// explainIgnored explains why a Node is ignored. A Node with the taint is explained by whoever initialises it.
func (w *nodeWatch) explainIgnored(node *corev1.Node) {
	err := core.CheckOwnNode(node)
	if err == nil || core.IsUninitialized(node) {
		w.events.Resolve(node, topicProviderID)
		return
	}
	cause := core.CauseOf(err)
	w.events.WarnOnce(node, topicProviderID, cause.Reason, cause.Detail, fmt.Sprintf("Node is ignored: %v", err))
}

// deleteNodeIfGone deletes the Node if its instance has ended.
func (w *nodeWatch) deleteNodeIfGone(ctx context.Context, node *corev1.Node) error {
	why, err := w.instances.MayDelete(ctx, node)
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

// promptNode changes a waiting Node so that upstream tries to initialise it now, if that
// may succeed.
func (w *nodeWatch) promptNode(ctx context.Context, node *corev1.Node) error {
	if !w.prompting || !w.awaitsRetry(node) {
		return nil
	}
	instance, err := w.instances.FindInstance(ctx, node)
	if err != nil {
		// The next round over waiting Nodes looks again.
		klog.V(2).InfoS("Node is not prompted", "node", klog.KObj(node), "err", err)
		return nil
	}
	if !w.beginPrompt(node.UID, instance) {
		return nil
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
		return nil // The Node is gone, or another has its name: nobody was prompted.
	case err != nil:
		return fmt.Errorf("prompting node %s: %w", node.Name, err)
	}
	nodesPrompted.Inc()
	return nil
}

// beginPrompt tells whether the Node's pause is over, and if so begins the next.
func (w *nodeWatch) beginPrompt(uid types.UID, instance *api.Instance) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	last, prompted := w.prompts[uid]
	next := prompt{
		instance: fmt.Sprintf("%s/%d", instance.ID, instance.Version),
		at:       time.Now(),
		pause:    minPromptPause,
	}
	switch {
	case !prompted:
	case last.instance != next.instance && next.at.Sub(last.at) < minPromptPause:
		return false
	case last.instance != next.instance:
	case next.at.Sub(last.at) < last.pause:
		return false
	default:
		next.pause = min(2*last.pause, maxPromptPause)
	}
	w.prompts[uid] = next
	return true
}

// resetPromptPauses makes every pause the shortest again.
func (w *nodeWatch) resetPromptPauses() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for uid, p := range w.prompts {
		p.pause = minPromptPause
		w.prompts[uid] = p
	}
}

// forgetNode drops what is remembered of a Node that was deleted.
func (w *nodeWatch) forgetNode(obj any) {
	if uid, ok := core.DeletedUID(obj); ok {
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(w.prompts, uid)
	}
}
