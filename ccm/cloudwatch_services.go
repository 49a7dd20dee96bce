package ccm

// The cloud watch's Services: a balancer that somebody changed or deleted
// behind the cluster's back is brought back, by the very method that upstream's
// controller calls. What the user changes in the cluster stays upstream's: only
// a balancer that moved away from a wish that it had fulfilled was changed out
// of band. But no difference lasts for ever, whosever it is. Nothing is asked of the cloud to find that out; the inventory knows.

import (
	"context"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	servicehelpers "k8s.io/cloud-provider/service/helpers"
	"k8s.io/klog/v2"

	"github.com/ccmlab/ccmlab/ccm/contract"
	"github.com/ccmlab/ccmlab/fakecloud/api"
)

const (
	// settling is how long a difference must last before it is acted on:
	// upstream's controller may just be at it.
	settling = time.Second
	// lasting is how long one must last that upstream's controller should be at:
	// by then it may well believe that it is done.
	lasting = time.Minute
)

// seenBalancer is what the watch remembers of a Service's balancer.
type seenBalancer struct {
	// fulfilled is the wish that the balancer last fulfilled, nil if none yet,
	// and id the balancer's.
	fulfilled *balancerSpec
	id        string
	// differs is how it was found to differ last, and since when it does.
	differs string
	since   time.Time
	// underway is that the difference is being reconciled, until nothing differs.
	// repairing is what differed if it came about out of band; absent is that
	// there was no balancer to be seen.
	underway  bool
	repairing string
	absent    bool
	// tried is the difference that a reconcile left, because nothing can be done
	// about it, such as a target whose instance has ended.
	tried string
}

func (w *cloudWatch) enqueueService(obj any) {
	if svc, ok := obj.(*corev1.Service); ok && (isBalanced(svc) || w.waitsForAddress(svc)) {
		w.serviceQueue.Add(string(svc.UID))
	}
}

func (w *cloudWatch) enqueueServices() {
	for _, obj := range w.services.List() {
		w.enqueueService(obj)
	}
}

// wantsBalancer is upstream's wantsLoadBalancer: a Service with a class is some
// other controller's.
func wantsBalancer(svc *corev1.Service) bool {
	return svc.Spec.Type == corev1.ServiceTypeLoadBalancer && svc.Spec.LoadBalancerClass == nil
}

// awaitsBalancer tells whether upstream has begun to build the Service's
// balancer: it set its finalizer before.
func awaitsBalancer(svc *corev1.Service) bool {
	return wantsBalancer(svc) && svc.DeletionTimestamp == nil && servicehelpers.HasLBFinalizer(svc)
}

// isBalanced tells whether upstream is done with it too: it set the address
// after.
func isBalanced(svc *corev1.Service) bool {
	return awaitsBalancer(svc) && len(svc.Status.LoadBalancer.Ingress) > 0
}

func (w *cloudWatch) serviceOf(uid string) *corev1.Service {
	found, err := w.services.ByIndex(byUID, uid)
	if err != nil {
		klog.ErrorS(err, "Looking up Services by UID")
	}
	if len(found) == 0 {
		return nil
	}
	svc, _ := found[0].(*corev1.Service)
	return svc
}

// syncService looks at one Service's balancer, by the Service's UID.
func (w *cloudWatch) syncService(ctx context.Context, uid string) error {
	svc := w.serviceOf(uid)
	if svc == nil || !isBalanced(svc) {
		w.forgetBalancer(uid, svc)
		if svc != nil {
			return w.getAddress(ctx, svc)
		}
		return nil
	}
	nodes := balancerNodes(w.nodes)
	want, err := w.wish(svc, nodes)
	if err != nil {
		// The Service asks for what cannot be, and upstream's controller says
		// so. The balancer stays as it is until the Service is mended.
		return nil //nolint:nilerr // Said by whom it concerns.
	}
	lb, certain := w.balancerOf(uid)
	if !certain || (lb != nil && lb.State == api.LoadBalancerDeleting) {
		return nil // Its end comes as a change of its own.
	}
	seen := w.seenOf(uid)
	if seen.fulfilled == nil { // It may have been changed before it was looked at here.
		seen.fulfilled, seen.id = w.ensured(uid)
	}
	differs := differences(svc, lb, want)
	if differs == "" {
		return w.fulfilled(ctx, svc, nodes, lb, seen, want)
	}
	if differs != seen.differs {
		seen.differs, seen.since = differs, time.Now()
	}
	if seen.underway && seen.tried == differs {
		*seen = seenBalancer{fulfilled: seen.fulfilled, id: seen.id, differs: differs, since: time.Now()}
		return nil
	}
	if !seen.underway && !w.takesUp(svc, lb, seen, want) {
		return nil
	}
	return w.repair(ctx, svc, nodes, seen)
}

// takesUp tells whether the difference has lasted long enough, and if so begins
// to bridge it; else it is looked at again when it has.
func (w *cloudWatch) takesUp(svc *corev1.Service, lb *api.LoadBalancer, seen *seenBalancer, want balancerSpec) bool {
	changed, patience := w.outOfBand(svc, lb, seen, want), lasting
	if changed {
		patience = settling
	}
	if rest := patience - time.Since(seen.since); rest > 0 {
		w.serviceQueue.AddAfter(string(svc.UID), rest)
		return false
	}
	seen.underway = true
	if changed {
		klog.InfoS("Load balancer was changed out of band", "service", klog.KObj(svc), "missing", seen.differs)
		seen.repairing, seen.absent = seen.differs, lb == nil
	} else {
		klog.InfoS("Load balancer has not been what its Service wants for a while", "service", klog.KObj(svc), "missing", seen.differs)
	}
	return true
}

// differences are the steps to what the Service wants, in words; "" for none.
func differences(svc *corev1.Service, lb *api.LoadBalancer, want balancerSpec) string {
	var parts []string
	for _, step := range planSteps(lb, want) {
		parts = append(parts, step.String())
	}
	if len(parts) == 0 && !namesAddress(svc, lb) {
		parts = append(parts, fmt.Sprintf("load balancer %s has address %s, which the Service does not name", lb.ID, lb.Address))
	}
	return strings.Join(parts, "; ")
}

func namesAddress(svc *corev1.Service, lb *api.LoadBalancer) bool {
	return slices.ContainsFunc(svc.Status.LoadBalancer.Ingress, func(i corev1.LoadBalancerIngress) bool {
		return i.IP == lb.Address || lb.IPv6Address != nil && i.IP == *lb.IPv6Address
	})
}

// outOfBand tells whether it is the balancer that changed, and not the wish. If
// the wish did, or the balancer is as it was while the nodes changed, upstream's
// controller is at it. Of a Service that was never seen fulfilled only this can
// be told: it has an address, so that its balancer was there, and the cloud told
// of that one.
func (w *cloudWatch) outOfBand(svc *corev1.Service, lb *api.LoadBalancer, seen *seenBalancer, want balancerSpec) bool {
	if seen.fulfilled == nil {
		return lb == nil && w.toldOfItself(svc.UID)
	}
	before := *seen.fulfilled
	sameTargets := slices.Equal(before.targets, want.targets)
	before.targets, want.targets = nil, nil
	switch {
	case !reflect.DeepEqual(before, want):
		return false
	case lb == nil || !namesAddress(svc, lb):
		return true
	case sameTargets:
		before.targets = seen.fulfilled.targets
	default:
		// Upstream is about to write them all, and may have written some node set
		// between the two.
		before.targets = slices.Clone(lb.Targets)
		sortTargets(before.targets)
	}
	return len(planSteps(lb, before)) > 0
}

// repair runs upstream's own reconcile. It comes by again until nothing
// differs.
func (w *cloudWatch) repair(ctx context.Context, old *corev1.Service, nodes []*corev1.Node, seen *seenBalancer) error {
	svc, err := w.asItIs(ctx, old)
	if err != nil || svc == nil || !isBalanced(svc) {
		return err
	}
	if err := w.ensureAndLookAgain(ctx, svc, nodes); err != nil {
		return err
	}
	seen.tried = seen.differs
	return nil
}

// asItIs is the Service, nil if it is gone. What the informer has may be a moment
// old, and a balancer for a Service that was just deleted would be nobody's.
func (w *cloudWatch) asItIs(ctx context.Context, old *corev1.Service) (*corev1.Service, error) {
	svc, err := w.kube.CoreV1().Services(old.Namespace).Get(ctx, old.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("looking at service %s/%s before its load balancer is reconciled: %w", old.Namespace, old.Name, err)
	case svc.UID != old.UID:
		return nil, nil
	}
	return svc, nil
}

func (w *cloudWatch) ensureAndLookAgain(ctx context.Context, svc *corev1.Service, nodes []*corev1.Node) error {
	if err := w.ensure(ctx, svc, nodes); err != nil {
		return err
	}
	w.serviceQueue.AddAfter(string(svc.UID), settling)
	return nil
}

// ensure reconciles, and has the Service's status name what came of it.
func (w *cloudWatch) ensure(ctx context.Context, svc *corev1.Service, nodes []*corev1.Node) error {
	status, err := w.balancers.EnsureLoadBalancer(ctx, w.cluster, svc, nodes)
	if err != nil {
		return fmt.Errorf("load balancer of service %s/%s: %w", svc.Namespace, svc.Name, err)
	}
	if servicehelpers.LoadBalancerStatusEqual(&svc.Status.LoadBalancer, status) {
		return nil
	}
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": svc.UID}, // a precondition: no other Service of that name
		"status":   map[string]any{"loadBalancer": status},
	})
	if err != nil {
		return err
	}
	_, err = w.kube.CoreV1().Services(svc.Namespace).Patch(ctx, svc.Name, types.MergePatchType, patch, metav1.PatchOptions{}, "status")
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return fmt.Errorf("writing the load balancer's address to service %s/%s: %w", svc.Namespace, svc.Name, err)
	}
	return nil
}

// fulfilled is for a balancer that has all that is wanted. Whether it also
// works, and why not, is for EnsureLoadBalancer to explain, which changes
// nothing here.
func (w *cloudWatch) fulfilled(ctx context.Context, svc *corev1.Service, nodes []*corev1.Node, lb *api.LoadBalancer, seen *seenBalancer, want balancerSpec) error {
	if seen.absent && seen.id == lb.ID {
		seen.underway, seen.repairing = false, "" // It had only been out of sight.
	}
	if w.isTroubled(svc, lb) {
		if err := w.ensure(ctx, svc, nodes); err != nil {
			return err
		}
	}
	if seen.underway && lb.State != api.LoadBalancerActive {
		return w.ensureAndLookAgain(ctx, svc, nodes)
	}
	if seen.repairing != "" {
		balancerRepairs.Inc()
		w.explain.note(svc, contract.ReasonLoadBalancerRepaired, "The load balancer was changed or deleted out of band, and repaired: %s", seen.repairing)
	}
	*seen = seenBalancer{fulfilled: &want, id: lb.ID}
	return nil
}

// isTroubled tells whether the balancer does not work, or was said not to.
func (w *cloudWatch) isTroubled(svc *corev1.Service, lb *api.LoadBalancer) bool {
	return lb.State == api.LoadBalancerError || lb.StateReason != nil && *lb.StateReason != "" ||
		w.explain.troubled(svc, topicLoadBalancer) || w.explain.troubled(svc, topicServing)
}

// balancerOf is the Service's balancer, and whether that is certain. One that
// is on its way out counts only if there is no other. That there is none is
// believed only if the cloud told something of it: what the inventory remembers
// is out of sight while it may be out of date.
func (w *cloudWatch) balancerOf(uid string) (lb *api.LoadBalancer, certain bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	all := w.known.LoadBalancersOf(uid)
	live := slices.DeleteFunc(slices.Clone(all), func(lb api.LoadBalancer) bool { return lb.State == api.LoadBalancerDeleting })
	if len(all) == 0 {
		_, told := w.told[uid]
		return nil, told
	}
	delete(w.told, uid)
	switch len(live) {
	case 0:
		return &all[0], true
	case 1:
		return &live[0], true
	default:
		klog.InfoS("More than one load balancer says that it belongs to one Service; none is chosen by guess", "service", uid, "balancers", len(live))
		return nil, false
	}
}

// toldOf takes down that the cloud told of a Service's balancer.
func (w *cloudWatch) toldOf(uid string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.told[uid] = true
}

// toldOfAll is for a change that may concern the balancer of any Service.
func (w *cloudWatch) toldOfAll() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, obj := range w.services.List() {
		if svc, ok := obj.(*corev1.Service); ok && awaitsBalancer(svc) && !w.told[string(svc.UID)] {
			w.told[string(svc.UID)] = false
		}
	}
}

// toldOfItself tells whether it was of this Service's own balancer.
func (w *cloudWatch) toldOfItself(uid types.UID) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.told[string(uid)]
}

// seenOf is what is remembered; only the worker that has the key uses it.
func (w *cloudWatch) seenOf(uid string) *seenBalancer {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.seen[uid] == nil {
		w.seen[uid] = &seenBalancer{}
	}
	return w.seen[uid]
}

// forgetBalancer is for a Service whose balancer is not there to be compared,
// nil for one that is gone. If its address is only still to come, the end of its
// balancer is not told twice.
func (w *cloudWatch) forgetBalancer(uid string, svc *corev1.Service) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.seen, uid)
	if svc == nil || !awaitsBalancer(svc) || len(w.known.LoadBalancersOf(uid)) > 0 {
		delete(w.told, uid)
	}
}

// balancerNodes are the Nodes that a Service's balancer has as its targets, as
// upstream's service controller chooses them.
func balancerNodes(nodes cache.Indexer) []*corev1.Node {
	var chosen []*corev1.Node
	for _, obj := range nodes.List() {
		if node, ok := obj.(*corev1.Node); ok && isBalancerNode(node) {
			chosen = append(chosen, node)
		}
	}
	return chosen
}

// taintToBeDeleted is the cluster autoscaler's mark of a Node that it is about
// to remove.
const taintToBeDeleted = "ToBeDeletedByClusterAutoscaler"

// isBalancerNode is stableNodeSetPredicates of upstream's
// controllers/service/controller.go: not being deleted, not excluded by label,
// not about to be removed. Whether it is Ready is the health check's to find
// out (KEP-3458).
func isBalancerNode(node *corev1.Node) bool {
	if !node.DeletionTimestamp.IsZero() {
		return false
	}
	if value, labelled := node.Labels[corev1.LabelNodeExcludeBalancers]; labelled {
		if excluded, err := strconv.ParseBool(value); excluded || err != nil {
			return false
		}
	}
	return !slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool { return t.Key == taintToBeDeleted })
}
