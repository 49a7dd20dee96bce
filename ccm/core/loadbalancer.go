package core

// Services of type LoadBalancer. Each call goes through the same steps, and each step has a file:
//
//	desired  loadbalancer_desired.go  what the Service asks for
//	observe  loadbalancer_observe.go  what the cloud has
//	plan     loadbalancer_plan.go     the step from one to the other
//	apply    loadbalancer_apply.go    its call to the cloud, and what a refusal means
//	report   loadbalancer_report.go   the Service's status, when to try again
//
// With nothing to change, a call only reads.

import (
	"context"
	"errors"
	"slices"

	corev1 "k8s.io/api/core/v1"
	cloudprovider "k8s.io/cloud-provider"
	cloudproviderapi "k8s.io/cloud-provider/api"

	"github.com/ccmlab/ccmlab/ccm/contract"
	"github.com/ccmlab/ccmlab/fakecloud/api"
)

// loadBalancers implements cloudprovider.LoadBalancer.
type loadBalancers struct {
	api     Cloud
	cluster *Cluster
	// defaults are annotations, without their prefix, of Services that do not have them.
	defaults map[string]string
}

// GetLoadBalancer tells whether the Service has a balancer, or several, that the cloud is not already deleting.
// Upstream's controller calls it before it deletes, and does not delete what this does not report.
func (l *loadBalancers) GetLoadBalancer(
	ctx context.Context, _ string, svc *corev1.Service,
) (*corev1.LoadBalancerStatus, bool, error) {
	found, err := l.findBalancers(ctx, svc)
	if err != nil {
		return nil, false, honorRetryAfter(err)
	}
	found = WithoutDeleting(found)
	if len(found) == 0 {
		return nil, false, nil
	}
	want, _ := l.desiredSpec(svc, nil) // EnsureLoadBalancer reports its error.
	return statusOf(want, &found[0]), true, nil
}

// GetLoadBalancerName is unique per Service object and tells a person which.
func (l *loadBalancers) GetLoadBalancerName(_ context.Context, _ string, svc *corev1.Service) string {
	return balancerName(svc)
}

// EnsureLoadBalancer creates the Service's balancer, or brings it up to date.
// While the cloud is still building it the error is an api.RetryError.
func (l *loadBalancers) EnsureLoadBalancer(
	ctx context.Context, _ string, svc *corev1.Service, nodes []*corev1.Node,
) (*corev1.LoadBalancerStatus, error) {
	if svc.Spec.LoadBalancerClass != nil {
		return nil, cloudprovider.ImplementedElsewhere
	}
	want, err := l.desiredSpec(svc, nodes)
	var lb *api.LoadBalancer
	if err == nil {
		lb, err = l.reconcile(ctx, want)
	}
	if NeedsIntervention(err) {
		err = errors.Join(err, l.followNodes(ctx, want))
	}
	if err == nil {
		err = checkActive(lb)
	}
	if err != nil {
		return nil, honorRetryAfter(err)
	}
	notifyOfActive(ctx, nodes, lb)
	return statusOf(want, lb), nil
}

// UpdateLoadBalancer follows a change of the node set, and nothing else, whatever else the
// Service asks for. It never creates: it could not return the address of a new balancer.
func (l *loadBalancers) UpdateLoadBalancer(
	ctx context.Context, _ string, svc *corev1.Service, nodes []*corev1.Node,
) error {
	if svc.Spec.LoadBalancerClass != nil {
		return cloudprovider.ImplementedElsewhere
	}
	want, err := l.desiredSpec(svc, nodes)
	if err != nil {
		return honorRetryAfter(errors.Join(err, l.followNodes(ctx, want)))
	}
	lb, err := l.reconcileTargets(ctx, want)
	switch {
	case err != nil:
		return honorRetryAfter(err)
	case lb == nil:
		return pendingError("service %s/%s has no load balancer to update", svc.Namespace, svc.Name)
	}
	notifyOfActive(ctx, nodes, lb)
	return nil
}

// EnsureLoadBalancerDeleted deletes every balancer that carries the Service's tags. A cloud never takes a deletion
// back, so one that is being deleted counts as deleted.
func (l *loadBalancers) EnsureLoadBalancerDeleted(ctx context.Context, _ string, svc *corev1.Service) error {
	return honorRetryAfter(l.reconcileDeletion(ctx, svc))
}

// reconcile makes the balancer what the Service asks for, and returns it as the cloud then has it.
func (l *loadBalancers) reconcile(ctx context.Context, want balancerSpec) (*api.LoadBalancer, error) {
	have, err := l.observe(ctx, want.svc)
	if err != nil {
		return nil, err
	}
	if err := checkFamilies(have, want); err != nil {
		return nil, err
	}
	if err := l.resolveAddress(ctx, have, &want); err != nil {
		return nil, err
	}
	return l.planAndApply(ctx, have, want)
}

// reconcileTargets updates the targets of the balancer to those wanted, and returns it as the cloud then has it;
// nil if the Service has none. Where it changed meanwhile it looks once more and tries again at once: upstream would
// write a Warning first.
func (l *loadBalancers) reconcileTargets(ctx context.Context, want balancerSpec) (*api.LoadBalancer, error) {
	want.targetsOnly = true
	lb, err := l.updateTargets(ctx, want)
	if IsPending(err) {
		lb, err = l.updateTargets(ctx, want)
	}
	return lb, err
}

// updateTargets makes one try of reconcileTargets. If several balancers have the Service's tags, all are
// updated: each may have clients.
func (l *loadBalancers) updateTargets(ctx context.Context, want balancerSpec) (*api.LoadBalancer, error) {
	found, err := l.findBalancers(ctx, want.svc)
	if err != nil {
		return nil, err
	}
	live := WithoutDeleting(found)
	if len(live) == 0 && len(found) > 0 {
		return nil, stillDeletingError(&found[0])
	}
	var lb *api.LoadBalancer
	var errs []error
	for _, have := range live {
		lb, err = l.planAndApply(ctx, &have, want)
		errs = append(errs, err)
	}
	if len(errs) == 1 {
		return lb, errs[0] // It may be a bare api.RetryError.
	}
	return lb, errors.Join(errs...)
}

// followNodes updates the targets of a Service whose other wishes are refused. A Service that never
// had a balancer costs no call.
func (l *loadBalancers) followNodes(ctx context.Context, want balancerSpec) error {
	if len(want.svc.Status.LoadBalancer.Ingress) == 0 {
		return nil
	}
	_, err := l.reconcileTargets(ctx, want)
	if IsPending(err) {
		// Retry later: what else is wrong with the Service lasts.
		return cloudproviderapi.NewRetryError(err.Error(), failedStateRetry)
	}
	return err
}

// NeedsIntervention tells whether a balancer fails until somebody changes the Service, or what the project has in the
// cloud. Retries alone do not help.
func NeedsIntervention(err error) bool {
	return err != nil && slices.Contains([]string{
		contract.ReasonInvalidService, contract.ReasonAddressNotAvailable,
		contract.ReasonQuotaExceeded, contract.ReasonAddressPoolExhausted, contract.ReasonLoadBalancerProtected,
		contract.ReasonLoadBalancerAmbiguous,
	}, CauseOf(err).Reason)
}
