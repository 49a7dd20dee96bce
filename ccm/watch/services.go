package watch

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	kcache "k8s.io/client-go/tools/cache"
	servicehelpers "k8s.io/cloud-provider/service/helpers"
	"k8s.io/klog/v2"

	"github.com/ccmlab/ccmlab/ccm/cache"
	"github.com/ccmlab/ccmlab/ccm/calls"
	"github.com/ccmlab/ccmlab/ccm/contract"
	"github.com/ccmlab/ccmlab/ccm/core"
	"github.com/ccmlab/ccmlab/fakecloud/api"
)

const (
	// outOfBandDelay is how long a difference that came about out of band must last before
	// it is reconciled: upstream's controller may be doing just that.
	outOfBandDelay = time.Second
	// overdueDelay is how long a difference must last that upstream's controller should reconcile.
	overdueDelay = time.Minute
	// allServicesPeriod is how often every Service is checked, for changes that no event reported: the
	// stream was broken, or the event came before its Service.
	allServicesPeriod = 3 * time.Minute
	// probePeriod is how often one of the Services that wait for the cloud is retried, however many
	// wait.
	probePeriod = 10 * time.Second
	// probesPerAnswer is how many of them are retried when one gets an answer: all soon follow if the
	// cloud is healthy, and a cloud that answers few is called little more often than it answers.
	probesPerAnswer = 2
	// minServiceRetry and maxServiceRetry are between two tries for one Service that fail.
	minServiceRetry = 5 * time.Second
	maxServiceRetry = 2 * time.Minute
)

// serviceWatch repairs balancers that were changed or deleted out of band, through the method that
// upstream's service controller calls, too. A balancer that differs from its Service is reconciled
// after overdueDelay, and after outOfBandDelay if its settings are not those that the CCM wrote or
// found right: then the Service has not changed. Finding differences costs no call to the cloud, as
// the cache knows its balancers.
//
// It also retries Services that wait for the cloud as soon as the cause may be over: upstream's own
// retry may be five minutes away. And it restores the status and the finalizer of a Service:
// upstream's controller ignores these changes. Safe for concurrent use.
type serviceWatch struct {
	memory     balancerMemory
	events     core.Events
	outcomes   *outcomes
	settings   *balancerSettings
	reconciler *serviceReconciler
	balancers  core.LoadBalancers
	nodes      kcache.Indexer
	services   serviceIndex
	synced     []kcache.InformerSynced
	queue      keyQueue // of Service UIDs

	mu     sync.Mutex
	drifts map[string]*drift // by Service UID
}

// balancerMemory is the part of the cache that finds a Service's balancers.
type balancerMemory interface {
	LoadBalancersOf(serviceUID string) []api.LoadBalancer
	// KnowsLoadBalancers tells whether LoadBalancersOf is complete, as far as the cloud has reported.
	KnowsLoadBalancers() bool
}

// drift is how a balancer differs from what its Service wants.
type drift struct {
	id         string                       // of the balancer when it last did not differ
	ingress    []corev1.LoadBalancerIngress // what the Service's status was to name then
	difference string
	since      time.Time // when it came about, or was last tried to be reconciled
	// repaired is what differed when a repair of an out-of-band change began, "" if none did, and
	// wasMissing whether the cache had no balancer then.
	repaired   string
	wasMissing bool
	// tried is the difference that the last reconcile was for. If it remains, it cannot be removed
	// for now: a target whose instance has ended, say.
	tried string
}

func newServiceWatch(
	c *Watch, kube kubernetes.Interface, shared informers.SharedInformerFactory,
) (*serviceWatch, error) {
	w := &serviceWatch{
		memory:     c.memory,
		events:     c.opts.Events,
		outcomes:   c.outcomes,
		settings:   c.settings,
		reconciler: &serviceReconciler{cluster: c.opts.Cluster.Name(), kube: kube, balancers: c.provider.LoadBalancers},
		balancers:  c.provider.LoadBalancers,
		queue:      newKeyQueue("cloud_watch_services", minServiceRetry, maxServiceRetry),
		drifts:     map[string]*drift{},
	}
	return w, w.subscribe(c.memory, shared)
}

// subscribe has the queue filled by what happens to Services and in the cloud.
func (w *serviceWatch) subscribe(feed changeFeed, shared informers.SharedInformerFactory) error {
	nodes, services := shared.Core().V1().Nodes().Informer(), shared.Core().V1().Services().Informer()
	w.nodes = nodes.GetIndexer()
	var err error
	if w.services, err = newServiceIndex(services); err != nil {
		return err
	}
	handler, err := services.AddEventHandler(kcache.ResourceEventHandlerFuncs{
		AddFunc:    w.enqueueService,
		UpdateFunc: func(_, obj any) { w.enqueueService(obj) },
		DeleteFunc: w.forgetService,
	})
	if err != nil {
		return fmt.Errorf("%s: following Services: %w", calls.CloudWatch, err)
	}
	relabelled := kcache.ResourceEventHandlerFuncs{UpdateFunc: w.enqueueIfRelabelled}
	if _, err := nodes.AddEventHandler(relabelled); err != nil {
		return fmt.Errorf("%s: following the labels of Nodes: %w", calls.CloudWatch, err)
	}
	w.synced = []kcache.InformerSynced{handler.HasSynced, nodes.HasSynced}
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
	runPeriodically(ctx, &running, health, probePeriod, func(context.Context) { w.probeCloud(1) })
	runPeriodically(ctx, &running, health, allServicesPeriod, func(context.Context) { w.enqueueAllServices() })
	<-ctx.Done()
}

// enqueueChange is called by the feed, and must not block.
func (w *serviceWatch) enqueueChange(c cache.Change) {
	switch {
	case c.Kind == cache.Relisted:
		w.enqueueAllServices()
	case c.Kind == cache.Recovered:
		w.probeCloud(probesPerAnswer)
		w.enqueueFreed() // The events may be lost.
	case c.Kind == cache.Freed:
		w.enqueueFreed()
	case c.LoadBalancer != nil:
		w.enqueueOwner(c)
	}
}

// enqueueOwner queues the Service of a load balancer of the cluster that changed.
func (w *serviceWatch) enqueueOwner(c cache.Change) {
	uid := c.LoadBalancer.Tags[contract.TagServiceUID]
	isGoing := c.Kind == cache.Deleted || c.LoadBalancer.State == api.LoadBalancerDeleting
	if uid == "" || !isGoing && w.services.getByUID(uid) == nil {
		// The balancer's tags were removed or changed, so its Service is unknown.
		w.enqueueAllServices()
	}
	w.queue.Add(uid)
	if c.Kind == cache.Deleted {
		w.settings.forget(c.LoadBalancer.ID)
		w.enqueueFreed()
	}
}

// probeCloud queues up to so many random Services that wait for the cloud. Each that gets an answer
// queues others.
func (w *serviceWatch) probeCloud(services int) {
	waiting := w.listWaiting(unavailableReasons)
	for range min(services, len(waiting)) {
		w.queue.Add(string(waiting[rand.IntN(len(waiting))].UID))
	}
}

// enqueueFreed queues, after outOfBandDelay, every Service that waits for an address or name of its
// own, and the oldest that waits for quota. However much is freed until then, each is tried once.
func (w *serviceWatch) enqueueFreed() {
	for _, svc := range w.listWaiting(takenReasons) {
		w.queue.AddAfter(string(svc.UID), outOfBandDelay)
	}
	w.enqueueOldestWaiting(outOfBandDelay)
}

// enqueueOldestWaiting queues the oldest Service that waits for quota. If it gets what it needs, the
// next one is queued.
func (w *serviceWatch) enqueueOldestWaiting(delay time.Duration) {
	waiting := w.listWaiting(scarcityReasons)
	if len(waiting) > 0 {
		w.queue.AddAfter(string(slices.MinFunc(waiting, func(a, b *corev1.Service) int {
			return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.UID, b.UID))
		}).UID), delay)
	}
}

// enqueueService ignores Services that wait for the cloud: probeCloud and enqueueFreed queue them.
func (w *serviceWatch) enqueueService(obj any) {
	svc, ok := obj.(*corev1.Service)
	if ok && wantsLoadBalancer(svc) && (hasBalancerAddress(svc) || !w.isWaiting(svc, cloudReasons)) {
		w.queue.Add(string(svc.UID))
	}
}

// enqueueIfRelabelled queues the Services that choose their Nodes by labels, if a Node has others
// now. Upstream's controller does not look at labels.
func (w *serviceWatch) enqueueIfRelabelled(old, obj any) {
	before, ok1 := old.(*corev1.Node)
	now, ok2 := obj.(*corev1.Node)
	if !ok1 || !ok2 || maps.Equal(before.Labels, now.Labels) {
		return
	}
	for _, svc := range w.services.listServices() {
		if w.balancers.SelectsNodes(svc) {
			w.enqueueService(svc)
		}
	}
}

func (w *serviceWatch) enqueueAllServices() {
	for _, svc := range w.services.listServices() {
		w.enqueueService(svc)
	}
}

// Reasons that can end without a change of the Service. Retrying scarcityReasons is useless until
// somebody frees something.
var (
	unavailableReasons = []string{
		contract.ReasonCloudUnavailable, contract.ReasonCloudThrottled,
		contract.ReasonCloudAccessDenied, contract.ReasonWrongProject,
	}
	scarcityReasons = []string{contract.ReasonQuotaExceeded, contract.ReasonAddressPoolExhausted}
	// takenReasons are of Services that each wait for something of their own: an address, a name.
	takenReasons = []string{
		contract.ReasonAddressNotAvailable, contract.ReasonLoadBalancerNameTaken,
		contract.ReasonLoadBalancerAmbiguous, contract.ReasonLoadBalancerProtected,
	}
	cloudReasons = slices.Concat(unavailableReasons, scarcityReasons, takenReasons, []string{reasonPending})
)

// isWaiting tells whether building or deleting the Service's balancer failed for one of these reasons.
func (w *serviceWatch) isWaiting(svc *corev1.Service, reasons []string) bool {
	return (isBalancerRequested(svc) || needsCleanup(svc)) && slices.Contains(reasons, w.outcomes.get(svc.UID).reason)
}

func (w *serviceWatch) listWaiting(reasons []string) []*corev1.Service {
	return slices.DeleteFunc(w.services.listServices(), func(svc *corev1.Service) bool {
		return !w.isWaiting(svc, reasons)
	})
}

// syncService compares one Service, by its UID, with its balancer.
func (w *serviceWatch) syncService(ctx context.Context, uid string) error {
	svc := w.services.getByUID(uid)
	if svc == nil || !wantsLoadBalancer(svc) || svc.DeletionTimestamp != nil {
		w.forgetDrift(uid)
	}
	all := w.memory.LoadBalancersOf(uid)
	live := core.WithoutDeleting(all)
	switch {
	case svc == nil:
		return nil
	case !hasBalancerAddress(svc) && w.isWaiting(svc, cloudReasons):
		return w.retry(ctx, svc)
	case !w.isBuilt(svc, live):
		return nil
	case !servicehelpers.HasLBFinalizer(svc):
		return w.restoreFinalizer(ctx, svc)
	}
	return w.syncBalancer(ctx, svc, all, live)
}

// isBuilt tells whether the Service's balancer was finished once, whatever was removed from the Service
// since.
func (w *serviceWatch) isBuilt(svc *corev1.Service, live []api.LoadBalancer) bool {
	return wantsLoadBalancer(svc) && svc.DeletionTimestamp == nil &&
		(len(svc.Status.LoadBalancer.Ingress) > 0 || w.driftOf(string(svc.UID)).id != "" ||
			len(live) == 1 && live[0].State == api.LoadBalancerActive)
}

// syncBalancer compares a Service with its balancers, of which some live.
func (w *serviceWatch) syncBalancer(
	ctx context.Context, svc *corev1.Service, all, live []api.LoadBalancer,
) error {
	uid, nodes := string(svc.UID), targetNodes(w.nodes)
	has := w.balancers.Compare(svc, nodes, live)
	if len(live) == 0 && (len(all) > 0 || has.TargetsOnly || !w.memory.KnowsLoadBalancers()) {
		return nil // The end of a deletion is reported as another change.
	}
	d := w.driftOf(uid)
	if has.Difference == "" {
		return w.finishSync(ctx, svc, nodes, &live[0], d, has)
	}
	if has.Difference != d.difference {
		d.difference, d.since = has.Difference, time.Now()
	}
	isOutOfBand := len(live) == 0 || len(live) == 1 && w.settings.isChangedOutOfBand(&live[0])
	delay := overdueDelay
	if (isOutOfBand || d.isStatusOverwritten(svc, has) || d.repaired != "") && d.tried != has.Difference {
		delay = outOfBandDelay
	}
	if rest := delay - time.Since(d.since); rest > 0 {
		w.queue.AddAfter(uid, rest)
		return nil
	}
	if isOutOfBand && d.repaired == "" {
		klog.InfoS("Load balancer was changed out of band", "service", klog.KObj(svc), "missing", has.Difference)
		d.repaired, d.wasMissing = has.Difference, len(live) == 0
	}
	return w.reconcileDrift(ctx, svc, nodes, d, has)
}

// isStatusOverwritten tells whether somebody wiped or overwrote the Service's status. If the status is
// to change, upstream's controller may simply not have written it yet.
func (d *drift) isStatusOverwritten(svc *corev1.Service, has core.Comparison) bool {
	switch {
	case d.id == "":
		return false
	case !hasBalancerAddress(svc):
		return true
	}
	return !has.HasAddress && reflect.DeepEqual(d.ingress, has.Ingress)
}

// driftOf is what is remembered of a Service's balancer. Only the worker that has the key uses it.
func (w *serviceWatch) driftOf(uid string) *drift {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.drifts[uid] == nil {
		w.drifts[uid] = &drift{}
	}
	return w.drifts[uid]
}

// finishSync is for a balancer that matches its Service: it reports a repair and resets the drift. If
// the balancer does not work, EnsureLoadBalancer explains why; it changes nothing here.
func (w *serviceWatch) finishSync(
	ctx context.Context, svc *corev1.Service, nodes []*corev1.Node, lb *api.LoadBalancer, d *drift, has core.Comparison,
) error {
	if !has.TargetsOnly {
		w.settings.record(lb)
		if w.needsExplanation(svc, lb) {
			if err := w.reconcileIfThere(ctx, svc, nodes, isBalancerRequested); err != nil {
				return err
			}
		}
	}
	isRepaired := d.repaired != "" && (!d.wasMissing || d.id != lb.ID)
	if isRepaired && lb.State != api.LoadBalancerActive {
		return w.reconcileDrift(ctx, svc, nodes, d, has)
	}
	if isRepaired {
		balancerRepairs.Inc()
		w.events.Note(svc, contract.ReasonLoadBalancerRepaired,
			"The load balancer was changed or deleted out of band, and repaired: "+d.repaired)
	}
	*d = drift{id: lb.ID, ingress: has.Ingress}
	return nil
}

// needsExplanation tells whether the balancer does not work, or was reported not to.
func (w *serviceWatch) needsExplanation(svc *corev1.Service, lb *api.LoadBalancer) bool {
	return lb.State == api.LoadBalancerError || lb.StateReason != nil && *lb.StateReason != "" ||
		w.outcomes.get(svc.UID) != outcome{}
}

// reconcileDrift runs upstream's own reconcile, and checks again after outOfBandDelay.
func (w *serviceWatch) reconcileDrift(
	ctx context.Context, cached *corev1.Service, nodes []*corev1.Node, d *drift, has core.Comparison,
) error {
	err := w.reconcileIfThere(ctx, cached, nodes, isBalancerRequested)
	isFollowed := has.TargetsOnly && core.NeedsIntervention(err) // What is wrong is not about the targets.
	if err != nil && !isFollowed {
		return err
	}
	d.tried, d.since = d.difference, time.Now()
	w.queue.AddAfter(string(cached.UID), outOfBandDelay)
	return nil
}

// reconcileIfThere runs upstream's own reconcile for the Service as the API server has it, unless it is
// gone or isWanted is false.
func (w *serviceWatch) reconcileIfThere(
	ctx context.Context, cached *corev1.Service, nodes []*corev1.Node, isWanted func(*corev1.Service) bool,
) error {
	svc, err := w.reconciler.getService(ctx, cached)
	if err != nil || svc == nil || !isWanted(svc) {
		return err
	}
	return w.reconciler.reconcile(ctx, svc, nodes)
}

// retry retries a Service without an address. It does not retry scarcityReasons and takenReasons, which
// wait for enqueueFreed; upstream's controller retries them now and then.
func (w *serviceWatch) retry(ctx context.Context, cached *corev1.Service) error {
	waitedForCloud, waitedForQuota := w.isWaiting(cached, unavailableReasons), w.isWaiting(cached, scarcityReasons)
	err := w.retryOnce(ctx, cached)
	reason := ""
	if err != nil && !core.IsPending(err) {
		reason = core.CauseOf(err).Reason
	}
	if waitedForCloud && !slices.Contains(unavailableReasons, reason) {
		w.probeCloud(probesPerAnswer)
	}
	switch {
	case slices.Contains(scarcityReasons, reason), slices.Contains(takenReasons, reason):
		return nil
	case waitedForQuota && reason == "":
		w.enqueueOldestWaiting(0)
	}
	return err
}

func (w *serviceWatch) retryOnce(ctx context.Context, cached *corev1.Service) error {
	if !needsCleanup(cached) {
		return w.reconcileIfThere(ctx, cached, targetNodes(w.nodes), func(svc *corev1.Service) bool {
			return isBalancerRequested(svc) && !hasBalancerAddress(svc)
		})
	}
	svc, err := w.reconciler.getService(ctx, cached)
	if err != nil || svc == nil || !needsCleanup(svc) {
		return err
	}
	return w.reconciler.reconcileDeletion(ctx, svc)
}

// restoreFinalizer restores a finalizer that was removed.
func (w *serviceWatch) restoreFinalizer(ctx context.Context, cached *corev1.Service) error {
	svc, err := w.reconciler.getService(ctx, cached)
	if err != nil || svc == nil || !wantsLoadBalancer(svc) || svc.DeletionTimestamp != nil ||
		servicehelpers.HasLBFinalizer(svc) {
		return err
	}
	return w.reconciler.addFinalizer(svc)
}

// forgetDrift drops what is remembered of a balancer.
func (w *serviceWatch) forgetDrift(uid string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.drifts, uid)
}

func (w *serviceWatch) forgetService(obj any) {
	if uid, ok := core.DeletedUID(obj); ok {
		w.forgetDrift(string(uid))
	}
}
