package ccm

// Services of type LoadBalancer. Each call goes through the same steps, and each
// step has a file:
//
//	desired  loadbalancer_desired.go  what the Service asks for
//	observe  loadbalancer_observe.go  what the cloud has
//	plan     loadbalancer_plan.go     the steps from one to the other
//	apply    loadbalancer_apply.go    their calls to the cloud, and what a refusal means
//	report   loadbalancer_report.go   Events, the Service's status, when to try again
//
// With nothing to change, a call only reads; mostly from memory.

import (
	"context"
	"errors"
	"sync"

	corev1 "k8s.io/api/core/v1"
	cloudprovider "k8s.io/cloud-provider"

	"github.com/ccmlab/ccmlab/ccm/calls"
	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
)

type loadBalancersAPI interface {
	ListLoadBalancers(ctx context.Context, f client.LoadBalancerFilter) ([]api.LoadBalancer, error)
	GetLoadBalancer(ctx context.Context, id string) (*api.LoadBalancer, error)
	CreateLoadBalancer(ctx context.Context, lb api.LoadBalancerCreate) (*api.LoadBalancer, error)
	UpdateLoadBalancer(ctx context.Context, id string, u api.LoadBalancerUpdate) (*api.LoadBalancer, error)
	DeleteLoadBalancer(ctx context.Context, id string) (*api.LoadBalancer, error)
	ListAddresses(ctx context.Context, f client.AddressFilter) ([]api.ReservedAddress, error)
}

// balancerMemory is what is remembered of the cluster's balancers: see package
// inventory.
type balancerMemory interface {
	LoadBalancersOf(serviceUID string) []api.LoadBalancer
	NoteLoadBalancer(lb api.LoadBalancer)
}

// loadBalancers implements cloudprovider.LoadBalancer.
type loadBalancers struct {
	api       loadBalancersAPI
	project   *projectGuard
	inventory balancerMemory // nil if nothing is to be remembered
	explain   *explainer
	identity  *clusterIdentity
	// locks has one lock per Service, by UID: upstream's controller and the
	// cloud watch reconcile the same balancers.
	locks   keyedLocks
	records balancerRecords
	// addressIDs are the IDs of reserved addresses, by the names that Services
	// call them. Each name is looked up once.
	addressIDs sync.Map // string: string
}

var _ cloudprovider.LoadBalancer = (*loadBalancers)(nil)

// GetLoadBalancer tells whether the Service has a balancer, or several, that the
// cloud is not already deleting. Upstream's controller calls it before it deletes,
// and does not delete what this does not report.
func (l *loadBalancers) GetLoadBalancer(
	ctx context.Context, cluster string, svc *corev1.Service,
) (*corev1.LoadBalancerStatus, bool, error) {
	ctx = calls.For(ctx, calls.ServiceLB)
	lb := l.rememberedBalancer(cluster, svc)
	if lb == nil {
		found, err := l.findBalancers(ctx, cluster, svc)
		if err != nil {
			return nil, false, l.reportOutcome(svc, summaryNotDeleted, nil, err)
		}
		found = withoutDeleting(found)
		if len(found) == 0 {
			l.records.drop(svc.UID) // This may be the end of the Service.
			return nil, false, nil
		}
		lb = &found[0]
	}
	return balancerStatus(svc, lb), true, nil
}

// GetLoadBalancerName is unique per Service object and tells a person which.
func (l *loadBalancers) GetLoadBalancerName(_ context.Context, _ string, svc *corev1.Service) string {
	return balancerName(svc)
}

// EnsureLoadBalancer creates the Service's balancer, or brings it up to date.
// While the cloud is still building it the error is an api.RetryError.
func (l *loadBalancers) EnsureLoadBalancer(
	ctx context.Context, cluster string, svc *corev1.Service, nodes []*corev1.Node,
) (*corev1.LoadBalancerStatus, error) {
	if svc.Spec.LoadBalancerClass != nil {
		return nil, cloudprovider.ImplementedElsewhere
	}
	ctx = calls.For(ctx, calls.ServiceLB)
	defer l.locks.lock(string(svc.UID))()
	lb, err := l.reconcile(ctx, cluster, svc, nodes, wholeBalancer)
	if err == nil {
		err = checkActive(lb)
	}
	if err := l.reportOutcome(svc, summaryNotAsAsked, lb, err); err != nil {
		return nil, err
	}
	l.recordEnsured(cluster, svc, nodes, lb)
	return balancerStatus(svc, lb), nil
}

// UpdateLoadBalancer follows a change of the node set, and nothing else. It never
// creates: it could not return the address of a new balancer.
func (l *loadBalancers) UpdateLoadBalancer(
	ctx context.Context, cluster string, svc *corev1.Service, nodes []*corev1.Node,
) error {
	if svc.Spec.LoadBalancerClass != nil {
		return cloudprovider.ImplementedElsewhere
	}
	ctx = calls.For(ctx, calls.ServiceLB)
	defer l.locks.lock(string(svc.UID))()
	lb, err := l.reconcile(ctx, cluster, svc, nodes, targetsOnly)
	return l.reportOutcome(svc, summaryNotAsAsked, lb, err)
}

// EnsureLoadBalancerDeleted deletes every balancer that carries the Service's
// tags. A cloud never takes a deletion back, so one that is being deleted counts
// as deleted.
func (l *loadBalancers) EnsureLoadBalancerDeleted(ctx context.Context, cluster string, svc *corev1.Service) error {
	ctx = calls.For(ctx, calls.ServiceLB)
	defer l.locks.lock(string(svc.UID))()
	l.records.update(svc.UID, func(r *balancerRecord) { r.ensured = nil })
	err := l.reconcileDeletion(ctx, cluster, svc)
	return l.reportOutcome(svc, summaryNotDeleted, nil, err)
}

// reconcile makes the balancer what the Service asks for, as far as scope says,
// and returns it as the cloud then has it.
func (l *loadBalancers) reconcile(
	ctx context.Context, cluster string, svc *corev1.Service, nodes []*corev1.Node, scope reconcileScope,
) (*api.LoadBalancer, error) {
	want, err := l.desiredSpec(cluster, svc, nodes)
	if err != nil {
		return nil, err
	}
	want.scope = scope
	have, err := l.observe(ctx, cluster, svc, want)
	if err != nil {
		return nil, err
	}
	if err := l.resolveAddress(ctx, have, &want); err != nil {
		return nil, err
	}
	steps := planSteps(have, want)
	lb, err := l.applySteps(ctx, svc, have, steps)
	if err != nil {
		lb, err = l.applyWithFallbacks(ctx, svc, have, want, err)
	}
	if err != nil {
		return nil, l.explainRefusal(ctx, cluster, svc, want, err)
	}
	return lb, nil
}

// reconcileDeletion deletes the balancer that is remembered, or all that the cloud
// lists. Where one changed meanwhile it looks once more and tries again at once:
// upstream delays the retry of a deletion by seconds.
func (l *loadBalancers) reconcileDeletion(ctx context.Context, cluster string, svc *corev1.Service) error {
	if lb := l.rememberedBalancer(cluster, svc); lb != nil {
		wasGone, err := l.deleteBalancer(ctx, svc, lb)
		if !wasGone && !client.HasCode(err, api.PreconditionFailed) {
			return err
		}
	}
	for attempt := 0; ; attempt++ {
		found, err := l.findBalancers(ctx, cluster, svc)
		if err != nil {
			return err
		}
		var errs []error
		for _, lb := range withoutDeleting(found) {
			_, err := l.deleteBalancer(ctx, svc, &lb)
			errs = append(errs, err)
		}
		if err = errors.Join(errs...); attempt > 0 || !client.HasCode(err, api.PreconditionFailed) {
			return err
		}
	}
}
