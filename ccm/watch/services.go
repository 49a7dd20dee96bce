package watch

import (
	"context"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	kcache "k8s.io/client-go/tools/cache"
	servicehelpers "k8s.io/cloud-provider/service/helpers"
	"k8s.io/klog/v2"

	"github.com/ccmlab/ccmlab/ccm/cache"
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
	*Watch
	*watchJob // Its keys are UIDs of Services.
	kube      kubernetes.Interface
}

// drift is how a balancer differs from what its Service wants.
type drift struct {
	// id is of the balancer when it last did not differ, "" once the repair of that one began.
	id         string
	ingress    []corev1.LoadBalancerIngress // what the Service's status was to name then
	difference string
	since      time.Time // when it came about, or was last tried to be reconciled
	// repaired is what differed when a repair of an out-of-band change began, "" if none did.
	repaired string
	// tried is the difference that the last reconcile was for. If it remains, it cannot be removed
	// for now: a target whose instance has ended, say.
	tried string
}

func newServiceWatch(c *Watch, kube kubernetes.Interface) *watchJob {
	w := &serviceWatch{Watch: c, kube: kube}
	w.watchJob = &watchJob{
		name:   "the service watch",
		onNode: kcache.ResourceEventHandlerFuncs{UpdateFunc: w.enqueueIfRelabelled},
		onService: kcache.ResourceEventHandlerFuncs{
			AddFunc: w.enqueueService, UpdateFunc: func(_, obj any) { w.enqueueService(obj) },
		},
		onChange: w.enqueueChange,
		queue:    newKeyQueue("services", minServiceRetry, maxServiceRetry),
		sync:     w.syncService,
		periodic: map[time.Duration]func(){
			probePeriod:  func() { w.probe(unavailableReasons, 1, 0) },
			resyncPeriod: w.enqueueAllServices,
		},
	}
	return w.watchJob
}

func (w *serviceWatch) enqueueChange(c cache.Change) {
	switch {
	case c.Kind == cache.Relisted:
		w.enqueueAllServices()
	case c.Kind == cache.Recovered:
		w.probe(unavailableReasons, probesPerAnswer, 0)
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
	if !isGoing && w.serviceByUID(uid) == nil {
		// The balancer's tags were removed or changed, so its Service is unknown.
		w.enqueueAllServices()
	}
	w.queue.Add(uid)
	if c.Kind == cache.Deleted {
		w.settings.Delete(c.LoadBalancer.ID)
		w.enqueueFreed()
	}
}

// probe queues, after the delay, up to so many random Services that wait for one of these reasons. Each that gets an
// answer queues others: see retry.
func (w *serviceWatch) probe(reasons []string, services int, delay time.Duration) {
	waiting := slices.DeleteFunc(w.listServices(), func(svc *corev1.Service) bool { return !w.isWaiting(svc, reasons) })
	for _, i := range rand.Perm(len(waiting))[:min(services, len(waiting))] {
		w.queue.AddAfter(string(waiting[i].UID), delay)
	}
}

// enqueueFreed queues, after outOfBandDelay, every Service that waits for an address or name of its own, and one that
// waits for quota. However much is freed until then, each is tried once.
func (w *serviceWatch) enqueueFreed() {
	w.probe(takenReasons, math.MaxInt, outOfBandDelay)
	w.probe(scarcityReasons, 1, outOfBandDelay)
}

// enqueueService ignores Services that wait for the cloud: probe queues them.
func (w *serviceWatch) enqueueService(obj any) {
	svc, ok := obj.(*corev1.Service)
	if ok && wantsLoadBalancer(svc) && (hasBalancerAddress(svc) || !w.isWaiting(svc, cloudReasons)) {
		w.queue.Add(string(svc.UID))
	}
}

// enqueueIfRelabelled queues all Services if a Node has other labels now. Some choose their Nodes by them, and upstream's
// controller does not look at labels.
func (w *serviceWatch) enqueueIfRelabelled(old, obj any) {
	before, ok1 := old.(*corev1.Node)
	now, ok2 := obj.(*corev1.Node)
	if ok1 && ok2 && !maps.Equal(before.Labels, now.Labels) {
		w.enqueueAllServices()
	}
}

func (w *serviceWatch) enqueueAllServices() {
	for _, svc := range w.listServices() {
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
	return (isBalancerRequested(svc) || needsCleanup(svc)) && slices.Contains(reasons, w.reasonOf(svc.UID))
}

// syncService compares one Service, by its UID, with its balancer.
func (w *serviceWatch) syncService(ctx context.Context, uid string) error {
	svc := w.serviceByUID(uid)
	if svc == nil || !keepsLoadBalancer(svc) {
		w.drifts.Delete(types.UID(uid))
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
		return w.withLiveService(ctx, svc, keepsLoadBalancer, w.restoreFinalizer)
	}
	return w.syncBalancer(ctx, svc, all, live)
}

// isBuilt tells whether the Service's balancer was finished once, whatever was removed from the Service
// since.
func (w *serviceWatch) isBuilt(svc *corev1.Service, live []api.LoadBalancer) bool {
	return keepsLoadBalancer(svc) &&
		(len(svc.Status.LoadBalancer.Ingress) > 0 || w.driftOf(svc.UID).ingress != nil ||
			len(live) == 1 && live[0].State == api.LoadBalancerActive)
}

// syncBalancer compares a Service with its balancers, of which some live.
func (w *serviceWatch) syncBalancer(ctx context.Context, svc *corev1.Service, all, live []api.LoadBalancer) error {
	has := w.provider.LoadBalancers.Compare(svc, w.targetNodes(), live)
	if len(live) == 0 && (len(all) > 0 || has.TargetsOnly || !w.memory.KnowsLoadBalancers()) {
		return nil // The end of a deletion is reported as another change.
	}
	d := w.driftOf(svc.UID)
	if has.Difference == "" {
		return w.finishSync(ctx, svc, &live[0], d, has)
	}
	if has.Difference != d.difference {
		d.difference, d.since = has.Difference, time.Now()
	}
	isOutOfBand := len(live) == 0 || len(live) == 1 && w.isChangedOutOfBand(&live[0])
	// If the status is to change, upstream's controller may simply not have written it yet.
	isStatusOverwritten := !has.HasAddress && reflect.DeepEqual(d.ingress, has.Ingress)
	delay := overdueDelay
	if (isOutOfBand || isStatusOverwritten || d.repaired != "") && d.tried != has.Difference {
		delay = outOfBandDelay
	}
	if rest := delay - time.Since(d.since); rest > 0 {
		w.queue.AddAfter(string(svc.UID), rest)
		return nil
	}
	if isOutOfBand && d.repaired == "" {
		klog.InfoS("Load balancer was changed out of band", "service", klog.KObj(svc), "missing", has.Difference)
		if d.repaired = has.Difference; len(live) > 0 {
			d.id = ""
		}
	}
	return w.reconcileDrift(ctx, svc, d, has)
}

// driftOf is what is remembered of a Service's balancer. Only the worker that has the key uses it.
func (w *serviceWatch) driftOf(uid types.UID) *drift {
	found, _ := w.drifts.LoadOrStore(uid, &drift{})
	d, _ := found.(*drift)
	return d
}

// finishSync is for a balancer that matches its Service: it reports a repair and resets the drift. If
// the balancer does not work, EnsureLoadBalancer explains why; it changes nothing here.
func (w *serviceWatch) finishSync(
	ctx context.Context, svc *corev1.Service, lb *api.LoadBalancer, d *drift, has core.Comparison,
) error {
	if !has.TargetsOnly {
		w.recordSettings(lb)
		if lb.State == api.LoadBalancerError || lb.StateReason != "" || w.reasonOf(svc.UID) != "" {
			if err := w.withLiveService(ctx, svc, isBalancerRequested, w.ensureBalancer); err != nil {
				return err
			}
		}
	}
	isRepaired := d.repaired != "" && d.id != lb.ID // The cache may have lacked one that was there.
	if isRepaired && lb.State != api.LoadBalancerActive {
		return w.reconcileDrift(ctx, svc, d, has)
	}
	if isRepaired {
		balancerRepairs.Inc()
		w.events.Note(svc, contract.ReasonLoadBalancerRepaired,
			"The load balancer was changed or deleted out of band, and repaired: "+d.repaired)
	}
	*d = drift{id: lb.ID, ingress: has.Ingress}
	return nil
}

// reconcileDrift runs upstream's own reconcile, and checks again after outOfBandDelay.
func (w *serviceWatch) reconcileDrift(
	ctx context.Context, cached *corev1.Service, d *drift, has core.Comparison,
) error {
	err := w.withLiveService(ctx, cached, isBalancerRequested, w.ensureBalancer)
	isFollowed := has.TargetsOnly && core.NeedsIntervention(err) // What is wrong is not about the targets.
	if err != nil && !isFollowed {
		return err
	}
	d.tried, d.since = d.difference, time.Now()
	w.queue.AddAfter(string(cached.UID), outOfBandDelay)
	return nil
}

// retry retries a Service without an address. It does not retry scarcityReasons and takenReasons, which
// wait for enqueueFreed; upstream's controller retries them now and then.
func (w *serviceWatch) retry(ctx context.Context, cached *corev1.Service) error {
	before := w.reasonOf(cached.UID)
	isWanted, step := isBalancerRequested, w.ensureBalancer
	if needsCleanup(cached) {
		isWanted, step = needsCleanup, w.deleteBalancer
	}
	err := w.withLiveService(ctx, cached, isWanted, step)
	now := w.reasonOf(cached.UID)
	if slices.Contains(unavailableReasons, before) && !slices.Contains(unavailableReasons, now) {
		w.probe(unavailableReasons, probesPerAnswer, 0)
	}
	switch {
	case slices.Contains(scarcityReasons, now), slices.Contains(takenReasons, now):
		return nil
	case slices.Contains(scarcityReasons, before):
		w.probe(scarcityReasons, 1, 0)
	}
	return err
}

// withLiveService calls fn with the Service as the API server has it, unless it is gone or isWanted is false. What the
// informer has may be a moment old, and a balancer for a Service that was just deleted would belong to nobody.
func (w *serviceWatch) withLiveService(
	ctx context.Context,
	cached *corev1.Service,
	isWanted func(*corev1.Service) bool,
	fn func(context.Context, *corev1.Service) error,
) error {
	svc, err := w.kube.CoreV1().Services(cached.Namespace).Get(ctx, cached.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case err != nil:
		return fmt.Errorf("looking at service %s before its load balancer is reconciled: %w", klog.KObj(cached), err)
	case svc.UID != cached.UID || !isWanted(svc):
		return nil
	}
	if err = fn(ctx, svc); err == nil || core.IsPending(err) {
		return err // Unwrapped: IsPending tells it by its type.
	}
	return fmt.Errorf("load balancer of service %s: %w", klog.KObj(svc), err)
}

// ensureBalancer ensures the Service's balancer, and writes its address into the Service's status if that names
// another.
func (w *serviceWatch) ensureBalancer(ctx context.Context, svc *corev1.Service) error {
	status, err := w.provider.LoadBalancers.EnsureLoadBalancer(ctx, w.cluster.Name(), svc, w.targetNodes())
	if err != nil || servicehelpers.LoadBalancerStatusEqual(&svc.Status.LoadBalancer, status) {
		return err
	}
	return w.patch(svc, func(changed *corev1.Service) { changed.Status.LoadBalancer = *status })
}

// deleteBalancer deletes the balancer of a Service that waits for that, and takes off the finalizer.
func (w *serviceWatch) deleteBalancer(ctx context.Context, svc *corev1.Service) error {
	if err := w.provider.LoadBalancers.EnsureLoadBalancerDeleted(ctx, w.cluster.Name(), svc); err != nil {
		return err
	}
	return w.patch(svc, func(changed *corev1.Service) {
		changed.Status.LoadBalancer = corev1.LoadBalancerStatus{}
		changed.Finalizers = slices.DeleteFunc(changed.Finalizers, func(name string) bool {
			return name == servicehelpers.LoadBalancerCleanupFinalizer
		})
	})
}

// restoreFinalizer restores the finalizer that keeps a Service until its balancer is deleted.
func (w *serviceWatch) restoreFinalizer(_ context.Context, svc *corev1.Service) error {
	if servicehelpers.HasLBFinalizer(svc) {
		return nil
	}
	klog.InfoS("Restoring the finalizer of a Service that has a load balancer", "service", klog.KObj(svc))
	return w.patch(svc, func(changed *corev1.Service) {
		changed.Finalizers = append(changed.Finalizers, servicehelpers.LoadBalancerCleanupFinalizer)
	})
}

// patch writes finalizers and the status as upstream does, through the status subresource.
func (w *serviceWatch) patch(svc *corev1.Service, change func(*corev1.Service)) error {
	old, changed := svc.DeepCopy(), svc.DeepCopy()
	old.UID = "" // This puts the UID into the patch, as a precondition: no other Service of that name is changed.
	change(changed)
	_, err := servicehelpers.PatchService(w.kube.CoreV1(), old, changed)
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return fmt.Errorf("writing the Service's status and finalizers: %w", err)
	}
	return nil
}
