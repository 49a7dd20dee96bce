package ccm

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/ccmlab/ccmlab/ccm/calls"
	"github.com/ccmlab/ccmlab/ccm/contract"
	"github.com/ccmlab/ccmlab/ccm/inventory"
	"github.com/ccmlab/ccmlab/fakecloud/api"
)

const (
	// outOfBandDelay is how long a difference that came about out of band must last before
	// it is reconciled: upstream's controller may be doing just that.
	outOfBandDelay = time.Second
	// overdueDelay is how long a difference must last that upstream's controller should
	// reconcile: by then it may well believe that it has.
	overdueDelay = time.Minute
	// allServicesPeriod is how often every Service is looked at. That is for what no event
	// reported: the stream was broken, or the event came before its Service.
	allServicesPeriod = 3 * time.Minute
)

// serviceWatch brings back balancers that somebody changed or deleted behind the cluster's
// back, by the method that upstream's service controller calls too. What the user changes
// in the cluster stays upstream's: only a balancer that had what its Service wants, and has
// it no longer although the Service wants the same, was changed out of band. But no
// difference lasts for ever, whoever should reconcile it. Finding differences costs no call
// of the cloud, as the inventory knows its balancers. Safe for concurrent use.
type serviceWatch struct {
	inventory  balancerInventory
	explain    *explainer
	reconciler *serviceReconciler
	addresses  *addressRetrier
	// desiredSpec is what a Service wants. An error is that it wants what cannot be: then
	// only its balancer's targets are looked after.
	desiredSpec func(svc *corev1.Service, nodes []*corev1.Node) (balancerSpec, error)
	// lastEnsured is the spec that upstream's controller last saw fulfilled, and the ID of
	// the balancer; nil if none is known.
	lastEnsured func(serviceUID string) (spec *balancerSpec, id string)

	nodes    cache.Indexer
	services serviceIndex
	synced   []cache.InformerSynced
	queue    keyQueue // of Service UIDs

	mu      sync.Mutex
	records map[string]*driftRecord // by Service UID
	news    map[string]balancerNews // by Service UID
}

// balancerInventory is the part of the inventory that finds a Service's balancers.
type balancerInventory interface {
	LoadBalancersOf(serviceUID string) []api.LoadBalancer
}

// balancerNews is what the feed reported of a Service's balancer since the inventory last
// showed one.
type balancerNews int

const (
	noNews balancerNews = iota
	// someBalancerChanged is a change that may concern the balancer of any Service.
	someBalancerChanged
	// ownBalancerChanged is a change of the Service's own balancer.
	ownBalancerChanged
)

// reconcilePhase is what the watch is doing about the balancer of a Service.
type reconcilePhase int

const (
	// notReconciling: nothing differs, or what differs has not lasted long enough yet.
	notReconciling reconcilePhase = iota
	// reconcilingOverdue: what differs came about in the cluster, or nobody knows how, and
	// upstream's controller should have reconciled it.
	reconcilingOverdue
	// repairingChanged: the balancer was changed out of band.
	repairingChanged
	// repairingMissing: the balancer was deleted out of band, or the inventory only does
	// not show it.
	repairingMissing
)

// driftRecord is what the watch remembers of a Service's balancer.
type driftRecord struct {
	// fulfilled is the spec that the balancer had last when nothing differed, nil if none
	// is known, and fulfilledID the balancer's ID.
	fulfilled   *balancerSpec
	fulfilledID string
	// difference is how the balancer differed when it was last looked at, and differsSince
	// since when it differs so.
	difference   string
	differsSince time.Time
	phase        reconcilePhase
	// repairedDifference is what differed when a repair began.
	repairedDifference string
	// triedDifference is the difference that the last reconcile was for. If it is still
	// there then, nothing can be done about it: a target whose instance has ended, say.
	triedDifference string
}

// isRepairing tells whether what is reconciled came about out of band.
func (r *driftRecord) isRepairing() bool {
	return r.phase == repairingChanged || r.phase == repairingMissing
}

func newServiceWatch(
	c *cloud, kube kubernetes.Interface, shared informers.SharedInformerFactory,
) (*serviceWatch, error) {
	reconciler := &serviceReconciler{cluster: c.identity.name, kube: kube, balancers: c.loadBalancers}
	w := &serviceWatch{
		inventory:  c.inventory,
		explain:    c.explain,
		reconciler: reconciler,
		addresses:  newAddressRetrier(c.explain, reconciler),
		desiredSpec: func(svc *corev1.Service, nodes []*corev1.Node) (balancerSpec, error) {
			return c.loadBalancers.desiredSpec(svc, nodes)
		},
		lastEnsured: c.loadBalancers.lastEnsured,
		queue:       newKeyQueue("cloud_watch_services"),
		records:     map[string]*driftRecord{},
		news:        map[string]balancerNews{},
	}
	return w, w.subscribe(c.inventory, shared)
}

// subscribe has the queue filled by what happens to Services and in the cloud.
func (w *serviceWatch) subscribe(feed changeFeed, shared informers.SharedInformerFactory) error {
	nodes, services := shared.Core().V1().Nodes().Informer(), shared.Core().V1().Services().Informer()
	w.nodes = nodes.GetIndexer()
	var err error
	if w.services, err = newServiceIndex(services); err != nil {
		return err
	}
	handler, err := services.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    w.enqueueService,
		UpdateFunc: func(_, obj any) { w.enqueueService(obj) },
		DeleteFunc: w.forgetService,
	})
	if err != nil {
		return fmt.Errorf("%s: following Services: %w", calls.CloudWatch, err)
	}
	w.synced = []cache.InformerSynced{handler.HasSynced, nodes.HasSynced}
	feed.Subscribe(w.enqueueChange)
	return nil
}

// Name implements watchJob.
func (w *serviceWatch) Name() string { return "the service watch" }

// Run works until ctx ends. What it starts has ended when it returns.
func (w *serviceWatch) Run(ctx context.Context, health *jobHealth) {
	var running wait.Group
	defer running.Wait()
	defer w.queue.ShutDown()
	if !awaitSync(ctx, health, w.synced...) {
		return
	}
	startWorkers(ctx, &running, health, w.queue, w.syncService)
	runPeriodically(ctx, &running, health, addressPeriod, w.enqueueAwaitingAddress)
	runPeriodically(ctx, &running, health, allServicesPeriod, w.enqueueAllServices)
	<-ctx.Done()
}

// enqueueChange is called by the feed, and must not block.
func (w *serviceWatch) enqueueChange(c inventory.Change) {
	switch {
	case c.Kind == inventory.Relisted:
		w.enqueueAfterChangeOfAny()
	case c.LoadBalancer == nil:
	case c.LoadBalancer.Tags[contract.TagServiceUID] == "":
		// Somebody took the balancer's tags, so it does not say any more whose it was.
		w.enqueueAfterChangeOfAny()
	default:
		uid := c.LoadBalancer.Tags[contract.TagServiceUID]
		w.recordChangeOf(uid)
		w.queue.Add(uid)
		if c.Kind != inventory.Deleted && c.LoadBalancer.State != api.LoadBalancerDeleting &&
			w.services.getByUID(uid) == nil {
			// Somebody gave the balancer the UID of no Service: the same.
			w.enqueueAfterChangeOfAny()
		}
	}
}

// recordChangeOf records that the cloud reported something of a Service's own balancer.
func (w *serviceWatch) recordChangeOf(uid string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.news[uid] = ownBalancerChanged
}

// enqueueAfterChangeOfAny is for a change that may concern the balancer of any Service.
func (w *serviceWatch) enqueueAfterChangeOfAny() {
	w.recordChangeOfAny()
	w.enqueueAllServices(context.Background())
}

func (w *serviceWatch) recordChangeOfAny() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, svc := range w.services.listServices() {
		if uid := string(svc.UID); isBalancerRequested(svc) {
			w.news[uid] = max(w.news[uid], someBalancerChanged)
		}
	}
}

func (w *serviceWatch) enqueueService(obj any) {
	if svc, ok := obj.(*corev1.Service); ok && (hasBalancerAddress(svc) || w.addresses.awaitsAddress(svc)) {
		w.queue.Add(string(svc.UID))
	}
}

func (w *serviceWatch) enqueueAllServices(context.Context) {
	for _, svc := range w.services.listServices() {
		w.enqueueService(svc)
	}
}

func (w *serviceWatch) enqueueAwaitingAddress(context.Context) {
	w.addresses.backoff.GC()
	for _, svc := range w.services.listServices() {
		if w.addresses.awaitsAddress(svc) {
			w.queue.Add(string(svc.UID))
		}
	}
}

// syncService compares one Service, by its UID, with its balancer.
func (w *serviceWatch) syncService(ctx context.Context, uid string) error {
	svc := w.services.getByUID(uid)
	if svc == nil || !hasBalancerAddress(svc) {
		w.forgetBalancer(uid, svc)
		if svc != nil && w.addresses.awaitsAddress(svc) {
			return w.addresses.retry(ctx, svc, targetNodes(w.nodes))
		}
		return nil
	}
	nodes := targetNodes(w.nodes)
	want, err := w.desiredSpec(svc, nodes)
	if err != nil {
		// The Service wants what cannot be, and upstream's controller says so. Until it is
		// mended its balancer stays as it is, but for the targets.
		want = targetsSpec(nodes)
	}
	lb, certain := w.findBalancer(uid)
	switch {
	case !certain, lb != nil && lb.State == api.LoadBalancerDeleting:
		return nil // Its end comes as a change of its own.
	case lb == nil && want.scope == targetsOnly:
		return nil // No balancer can be created.
	}
	record := w.recordOf(uid)
	if record.fulfilled == nil { // It may have been changed before it was looked at here.
		record.fulfilled, record.fulfilledID = w.lastEnsured(uid)
	}
	difference := describeDifference(svc, lb, want)
	if difference == "" {
		return w.syncFulfilled(ctx, svc, nodes, lb, record, want)
	}
	if difference != record.difference {
		record.difference, record.differsSince = difference, time.Now()
	}
	if record.phase != notReconciling && record.triedDifference == difference {
		*record = driftRecord{
			fulfilled: record.fulfilled, fulfilledID: record.fulfilledID,
			difference: difference, differsSince: time.Now(),
		}
		return nil
	}
	if record.phase == notReconciling && !w.beginReconcileIfDue(svc, lb, record, want) {
		return nil
	}
	return w.reconcileDifference(ctx, svc, nodes, record, want.scope)
}

// findBalancer is the Service's balancer, and whether that is certain. One that is being
// deleted counts only if there is no other. That there is none is believed only if the
// cloud reported a change of it: the inventory does not show what may be out of date.
func (w *serviceWatch) findBalancer(uid string) (lb *api.LoadBalancer, certain bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	all := w.inventory.LoadBalancersOf(uid)
	if len(all) == 0 {
		return nil, w.news[uid] != noNews
	}
	delete(w.news, uid)
	live := slices.DeleteFunc(slices.Clone(all), func(lb api.LoadBalancer) bool {
		return lb.State == api.LoadBalancerDeleting
	})
	switch len(live) {
	case 0:
		return &all[0], true
	case 1:
		return &live[0], true
	default:
		klog.InfoS("More than one load balancer says that it belongs to one Service; none is chosen by guess",
			"service", uid, "balancers", len(live))
		return nil, false
	}
}

// recordOf is what is remembered of a Service's balancer. Only the worker that has the key
// uses it.
func (w *serviceWatch) recordOf(uid string) *driftRecord {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.records[uid] == nil {
		w.records[uid] = &driftRecord{}
	}
	return w.records[uid]
}

// describeDifference names the steps from the balancer to what the Service wants, "" for
// none.
func describeDifference(svc *corev1.Service, lb *api.LoadBalancer, want balancerSpec) string {
	var parts []string
	for _, step := range planSteps(lb, want) {
		parts = append(parts, step.String())
	}
	if len(parts) == 0 && !hasAddressOf(svc, lb, want) {
		parts = append(parts, fmt.Sprintf("load balancer %s has address %s, which the Service does not name",
			lb.ID, lb.Address))
	}
	return strings.Join(parts, "; ")
}

// hasAddressOf tells whether the Service's status names an address of the balancer, or the host name
// that stands for it. Where the Service wants what cannot be, it keeps what it names.
func hasAddressOf(svc *corev1.Service, lb *api.LoadBalancer, want balancerSpec) bool {
	if want.scope == targetsOnly {
		return true
	}
	for _, wanted := range balancerStatus(svc, lb).Ingress {
		if slices.ContainsFunc(svc.Status.LoadBalancer.Ingress, func(i corev1.LoadBalancerIngress) bool {
			return i.IP == wanted.IP && i.Hostname == wanted.Hostname
		}) {
			return true
		}
	}
	return false
}

// syncFulfilled is for a balancer that has all that its Service wants. Whether it also
// works, and why not, EnsureLoadBalancer explains, which changes nothing here.
func (w *serviceWatch) syncFulfilled(
	ctx context.Context,
	svc *corev1.Service,
	nodes []*corev1.Node,
	lb *api.LoadBalancer,
	record *driftRecord,
	want balancerSpec,
) error {
	if record.phase == repairingMissing && record.fulfilledID == lb.ID {
		record.phase = notReconciling // The inventory had only not shown it.
	}
	if want.scope == wholeBalancer && w.needsExplanation(svc, lb) {
		if err := w.reconciler.reconcile(ctx, svc, nodes); err != nil {
			return err
		}
	}
	if record.phase != notReconciling && lb.State != api.LoadBalancerActive {
		return w.reconcileAndRequeue(ctx, svc, nodes, want.scope)
	}
	if record.isRepairing() {
		balancerRepairs.Inc()
		w.explain.recordNormalEvent(svc, contract.ReasonLoadBalancerRepaired,
			"The load balancer was changed or deleted out of band, and repaired: %s", record.repairedDifference)
	}
	*record = driftRecord{fulfilled: &want, fulfilledID: lb.ID}
	return nil
}

// needsExplanation tells whether the balancer does not work, or was reported not to.
func (w *serviceWatch) needsExplanation(svc *corev1.Service, lb *api.LoadBalancer) bool {
	return lb.State == api.LoadBalancerError || lb.StateReason != nil && *lb.StateReason != "" ||
		w.explain.hasUnresolved(svc, topicLoadBalancer) || w.explain.hasUnresolved(svc, topicServing)
}

// beginReconcileIfDue begins to reconcile a difference that has lasted long enough. Of one
// that has not it is false, and the Service is queued for when it has.
func (w *serviceWatch) beginReconcileIfDue(
	svc *corev1.Service, lb *api.LoadBalancer, record *driftRecord, want balancerSpec,
) bool {
	outOfBand, delay := w.isOutOfBand(svc, lb, record, want), overdueDelay
	if outOfBand {
		delay = outOfBandDelay
	}
	if rest := delay - time.Since(record.differsSince); rest > 0 {
		w.queue.AddAfter(string(svc.UID), rest)
		return false
	}
	switch {
	case !outOfBand:
		record.phase = reconcilingOverdue
		klog.InfoS("Load balancer has not been what its Service wants for a while",
			"service", klog.KObj(svc), "missing", record.difference)
		return true
	case lb == nil:
		record.phase = repairingMissing
	default:
		record.phase = repairingChanged
	}
	record.repairedDifference = record.difference
	klog.InfoS("Load balancer was changed out of band", "service", klog.KObj(svc), "missing", record.difference)
	return true
}

// isOutOfBand tells whether it is the balancer that changed, and not what the Service
// wants. If the latter did, or the balancer is as it was while the nodes changed,
// upstream's controller will reconcile it. A Service whose balancer was never seen
// fulfilled has an address all the same, so it had a balancer: if there is none, and the
// cloud reported a change of it, it was deleted out of band.
func (w *serviceWatch) isOutOfBand(
	svc *corev1.Service, lb *api.LoadBalancer, record *driftRecord, want balancerSpec,
) bool {
	if record.fulfilled == nil {
		return lb == nil && w.hasOwnBalancerChanged(svc.UID)
	}
	before := *record.fulfilled
	sameTargets := slices.Equal(before.targets, want.targets)
	before.targets, want.targets = nil, nil
	switch {
	case !reflect.DeepEqual(before, want):
		return false
	case lb == nil || !hasAddressOf(svc, lb, want):
		return true
	case sameTargets:
		before.targets = record.fulfilled.targets
	default:
		// Upstream is about to write all targets, and may have written some node set
		// between the two.
		before.targets = slices.Clone(lb.Targets)
		sortTargets(before.targets)
	}
	return len(planSteps(lb, before)) > 0
}

func (w *serviceWatch) hasOwnBalancerChanged(uid types.UID) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.news[string(uid)] == ownBalancerChanged
}

// reconcileDifference runs upstream's own reconcile, again and again until nothing
// differs.
func (w *serviceWatch) reconcileDifference(
	ctx context.Context, cached *corev1.Service, nodes []*corev1.Node, record *driftRecord, scope reconcileScope,
) error {
	svc, err := w.reconciler.getService(ctx, cached)
	if err != nil || svc == nil || !hasBalancerAddress(svc) {
		return err
	}
	if err := w.reconcileAndRequeue(ctx, svc, nodes, scope); err != nil {
		return err
	}
	record.triedDifference = record.difference
	return nil
}

func (w *serviceWatch) reconcileAndRequeue(
	ctx context.Context, svc *corev1.Service, nodes []*corev1.Node, scope reconcileScope,
) error {
	err := w.reconciler.reconcile(ctx, svc, nodes)
	isFollowed := scope == targetsOnly && isRefusal(err) // The refusal is of all but the targets.
	if err != nil && !isFollowed {
		return err
	}
	w.queue.AddAfter(string(svc.UID), outOfBandDelay)
	return nil
}

// forgetBalancer is for a Service that has no balancer to be compared; svc is nil if the
// Service is gone. If its address is only still to come, news of its balancer is kept: its
// end is not reported twice.
func (w *serviceWatch) forgetBalancer(uid string, svc *corev1.Service) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.records, uid)
	if svc == nil || !isBalancerRequested(svc) || len(w.inventory.LoadBalancersOf(uid)) > 0 {
		delete(w.news, uid)
	}
}

// forgetService drops what is remembered of a Service that was deleted.
func (w *serviceWatch) forgetService(obj any) {
	if uid, ok := deletedUID(obj); ok {
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(w.records, string(uid))
		delete(w.news, string(uid))
	}
}
