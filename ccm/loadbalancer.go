package ccm

// Services of type LoadBalancer. A balancer is found by its owner's UID in its
// tags, never by name, so that neither a rename nor a stranger's balancer of
// the same name can confuse it. Each call computes a plan (plan.go) from what
// the Service wants and what the cloud has, and applies it; with nothing to
// change it only reads.

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	cloudprovider "k8s.io/cloud-provider"
	cloudproviderapi "k8s.io/cloud-provider/api"
	"k8s.io/klog/v2"

	"github.com/ccmlab/ccmlab/ccm/calls"
	"github.com/ccmlab/ccmlab/ccm/inventory"
	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
)

// Tags that say whose balancer it is.
const (
	TagCluster    = "kubernetes-cluster"
	TagServiceUID = "kubernetes-service-uid"
	// TagService (namespace/name) is for people; nothing is looked up by it.
	TagService = "kubernetes-service"
)

// provisioningRetry is when a balancer that is still being built is looked at
// again. A plain error would wait 5 s, then up to 300 s.
const provisioningRetry = 300 * time.Millisecond

// errorRetry is when a balancer in error is looked at again: the cloud keeps
// trying, and succeeds when, say, the port becomes free.
const errorRetry = 5 * time.Second

type loadBalancersAPI interface {
	ListLoadBalancers(ctx context.Context, f client.LoadBalancerFilter) ([]api.LoadBalancer, error)
	CreateLoadBalancer(ctx context.Context, lb api.LoadBalancerCreate) (*api.LoadBalancer, error)
	UpdateLoadBalancer(ctx context.Context, id string, u api.LoadBalancerUpdate) (*api.LoadBalancer, error)
	DeleteLoadBalancer(ctx context.Context, id string) (*api.LoadBalancer, error)
}

type loadBalancers struct {
	api       loadBalancersAPI
	project   *projectGuard
	inventory *inventory.Inventory
	explain   *explainer
	// locks has one lock per Service, by UID: upstream's controller and the
	// cloud watch reconcile the same balancers.
	locks keyedLocks
}

var _ cloudprovider.LoadBalancer = (*loadBalancers)(nil)

// GetLoadBalancer tells whether the Service has a balancer that is not already
// on its way out.
func (l *loadBalancers) GetLoadBalancer(ctx context.Context, cluster string, svc *corev1.Service) (*corev1.LoadBalancerStatus, bool, error) {
	ctx = calls.For(ctx, calls.ServiceLB)
	lb, err := l.find(ctx, cluster, svc)
	if err != nil || lb == nil || lb.State == api.LoadBalancerDeleting {
		return nil, false, err
	}
	return status(lb), true, nil
}

// GetLoadBalancerName is unique per Service object and tells a person which.
func (l *loadBalancers) GetLoadBalancerName(_ context.Context, _ string, svc *corev1.Service) string {
	return balancerName(svc)
}

// EnsureLoadBalancer brings the Service's balancer into being, or up to date.
// While the cloud is still building it the error is an api.RetryError.
func (l *loadBalancers) EnsureLoadBalancer(ctx context.Context, cluster string, svc *corev1.Service, nodes []*corev1.Node) (*corev1.LoadBalancerStatus, error) {
	ctx = calls.For(ctx, calls.ServiceLB)
	defer l.locks.lock(string(svc.UID))()
	lb, err := l.reconcile(ctx, cluster, svc, nodes, true)
	if err != nil {
		return nil, err
	}
	switch lb.State {
	case api.LoadBalancerActive:
		return status(lb), nil
	case api.LoadBalancerError:
		return nil, cloudproviderapi.NewRetryError(fmt.Sprintf("load balancer %s (%s) is in error: %s", lb.Name, lb.ID, reasonOf(lb)), errorRetry)
	default:
		return nil, cloudproviderapi.NewRetryError(fmt.Sprintf("load balancer %s (%s) is %s", lb.Name, lb.ID, lb.State), provisioningRetry)
	}
}

// UpdateLoadBalancer follows a change of the node set. It never creates: the
// address of a new balancer could not be told from here.
func (l *loadBalancers) UpdateLoadBalancer(ctx context.Context, cluster string, svc *corev1.Service, nodes []*corev1.Node) error {
	ctx = calls.For(ctx, calls.ServiceLB)
	defer l.locks.lock(string(svc.UID))()
	_, err := l.reconcile(ctx, cluster, svc, nodes, false)
	return err
}

// EnsureLoadBalancerDeleted asks for the end of the Service's balancer. A
// cloud never takes a deletion back, so one that is deleting counts as deleted.
func (l *loadBalancers) EnsureLoadBalancerDeleted(ctx context.Context, cluster string, svc *corev1.Service) error {
	ctx = calls.For(ctx, calls.ServiceLB)
	defer l.locks.lock(string(svc.UID))()
	lb, err := l.find(ctx, cluster, svc)
	if err != nil || lb == nil || lb.State == api.LoadBalancerDeleting {
		return err
	}
	klog.InfoS("Deleting load balancer", "service", klog.KObj(svc), "id", lb.ID)
	_, err = l.api.DeleteLoadBalancer(ctx, lb.ID)
	if err == nil {
		return nil
	}
	if gone, err := l.project.definiteNotFound(ctx, err); !gone {
		return fmt.Errorf("deleting load balancer %s: %w", lb.ID, err)
	}
	return nil
}

func (l *loadBalancers) reconcile(ctx context.Context, cluster string, svc *corev1.Service, nodes []*corev1.Node, mayCreate bool) (*api.LoadBalancer, error) {
	want, err := desiredBalancer(cluster, svc, nodes)
	if err != nil {
		return nil, err
	}
	have, err := l.find(ctx, cluster, svc)
	if err != nil {
		return nil, err
	}
	switch {
	case have == nil && !mayCreate:
		return nil, fmt.Errorf("service %s/%s has no load balancer to update", svc.Namespace, svc.Name)
	case have != nil && have.State == api.LoadBalancerDeleting:
		return nil, cloudproviderapi.NewRetryError(fmt.Sprintf("load balancer %s is still being deleted", have.ID), provisioningRetry)
	}
	lb, err := l.apply(ctx, svc, have, want)
	// However many the cloud names at a time, each round leaves fewer.
	for gone := endedTargets(err, want.targets); len(gone) > 0; gone = endedTargets(err, want.targets) {
		// Their Nodes go too, but later; the other targets must not wait.
		klog.InfoS("Leaving out targets whose instance has ended", "service", klog.KObj(svc), "instances", gone)
		want.targets = slices.DeleteFunc(want.targets, func(t api.Target) bool { return slices.Contains(gone, t.InstanceID) })
		lb, err = l.apply(ctx, svc, have, want)
	}
	return lb, err
}

func (l *loadBalancers) apply(ctx context.Context, svc *corev1.Service, have *api.LoadBalancer, want balancer) (*api.LoadBalancer, error) {
	var err error
	for _, step := range plan(have, want) {
		klog.InfoS("Load balancer", "service", klog.KObj(svc), "step", step.String())
		if have, err = step.apply(ctx, l.api); err != nil {
			return nil, fmt.Errorf("%s: %w", step, err)
		}
	}
	return have, nil
}

// endedTargets are those that the cloud refused by name.
func endedTargets(err error, targets api.Targets) []string {
	var refused *client.Error
	if !errors.As(err, &refused) || refused.Problem.Code != api.UnknownInstance || refused.Problem.Fields == nil {
		return nil
	}
	var gone []string
	for _, f := range *refused.Problem.Fields {
		var n int
		if _, err := fmt.Sscanf(f.Field, "targets.%d.instanceId", &n); err == nil && n < len(targets) {
			gone = append(gone, targets[n].InstanceID)
		}
	}
	return gone
}

// find returns the Service's balancer, nil if the cloud has none, and an error
// if that cannot be told for certain.
func (l *loadBalancers) find(ctx context.Context, cluster string, svc *corev1.Service) (*api.LoadBalancer, error) {
	if svc.UID == "" {
		return nil, errors.New("a service without a UID owns nothing")
	}
	found, err := l.api.ListLoadBalancers(ctx, client.LoadBalancerFilter{
		Tags: []string{TagServiceUID + "=" + string(svc.UID), TagCluster + "=" + cluster},
	})
	if err != nil {
		return nil, fmt.Errorf("looking for the load balancer of service %s/%s: %w", svc.Namespace, svc.Name, err)
	}
	switch len(found) {
	case 0:
		// A list of another project's balancers is as empty as this one.
		return nil, l.project.check(ctx)
	case 1:
		return &found[0], nil
	default:
		return nil, fmt.Errorf("%d load balancers say that they belong to service %s/%s (%s, %s, …); none is chosen by guess",
			len(found), svc.Namespace, svc.Name, found[0].ID, found[1].ID)
	}
}

// status names the balancer's address. The balancer is a proxy, so traffic
// from inside the cluster must go through it too (KEP-1860).
func status(lb *api.LoadBalancer) *corev1.LoadBalancerStatus {
	mode := corev1.LoadBalancerIPModeProxy
	return &corev1.LoadBalancerStatus{Ingress: []corev1.LoadBalancerIngress{{IP: lb.Address, IPMode: &mode}}}
}

func reasonOf(lb *api.LoadBalancer) string {
	if lb.StateReason == nil || *lb.StateReason == "" {
		return "the cloud gives no reason"
	}
	return *lb.StateReason
}
