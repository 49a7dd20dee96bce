package main

// The service controller calls these methods for Services of type LoadBalancer: create
// a load balancer, keep it as the Service says, delete it.

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	cloudprovider "k8s.io/cloud-provider"
)

// step 3
import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	cpapi "k8s.io/cloud-provider/api"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
)

// end

// GetLoadBalancerName is the name of a Service's balancer. It never changes, and no
// other Service has it, now or later.
func (p *provider) GetLoadBalancerName(_ context.Context, _ string, service *corev1.Service) string {
	return cloudprovider.DefaultLoadBalancerName(service)
}

// GetLoadBalancer tells whether there is a balancer, and what the Service's status
// should say about it.
func (p *provider) GetLoadBalancer(
	ctx context.Context,
	_ string,
	service *corev1.Service,
) (status *corev1.LoadBalancerStatus, exists bool, err error) {
	// step 3
	lb, err := p.findBalancer(ctx, service)
	if err != nil || lb == nil {
		return nil, false, err
	}
	return statusOf(lb), true, nil
	// before
	// return nil, false, errNotWritten
	// end
}

// EnsureLoadBalancer makes the balancer as the Service says, whether it exists or not.
// It is called again until there is no error, whenever the Service changes, and when
// the CCM starts.
func (p *provider) EnsureLoadBalancer(
	ctx context.Context,
	_ string,
	service *corev1.Service,
	nodes []*corev1.Node,
) (*corev1.LoadBalancerStatus, error) {
	// step 3
	listeners, err := listenersOf(service)
	if err != nil {
		return nil, err
	}
	lb, err := p.findBalancer(ctx, service)
	if err != nil {
		return nil, err
	}
	if lb == nil {
		targets, tags := targetsOf(nodes), p.balancerTags(service)
		lb, err = p.cloud.CreateLoadBalancer(ctx, api.LoadBalancerCreate{
			Name: p.GetLoadBalancerName(ctx, p.cluster, service), Listeners: listeners, Targets: targets, Tags: tags,
		})
	}
	// step 4
	if err == nil {
		lb, err = p.updateBalancer(ctx, lb, listeners, targetsOf(nodes))
	}
	// end
	if err != nil {
		return nil, err
	}
	if lb.State != api.LoadBalancerActive && lb.State != api.LoadBalancerUpdating {
		return nil, retryLater(lb)
	}
	return statusOf(lb), nil
	// before
	// return nil, errNotWritten
	// end
}

// UpdateLoadBalancer is called when the Nodes change. The Service has not changed, and
// may be about to be deleted: a balancer that does not exist is not created.
func (p *provider) UpdateLoadBalancer(
	ctx context.Context,
	_ string,
	service *corev1.Service,
	nodes []*corev1.Node,
) error {
	// step 4
	lb, err := p.findBalancer(ctx, service)
	if err != nil || lb == nil {
		return err
	}
	_, err = p.updateBalancer(ctx, lb, lb.Listeners, targetsOf(nodes))
	return err
	// before
	// return errNotWritten
	// end
}

// EnsureLoadBalancerDeleted is called until there is no error, when the Service is
// deleted or is no longer of type LoadBalancer. After that the Service's finalizer is
// removed: success that is reported too early leaves a balancer that nothing will ever
// delete.
func (p *provider) EnsureLoadBalancerDeleted(ctx context.Context, _ string, service *corev1.Service) error {
	// step 3
	lb, err := p.findBalancer(ctx, service)
	if err != nil || lb == nil {
		return err
	}
	if lb.State != api.LoadBalancerDeleting {
		if lb, err = p.cloud.DeleteLoadBalancer(ctx, lb.ID); client.IsNotFound(err) {
			return nil
		}
		if err != nil {
			return err
		}
	}
	return retryLater(lb)
	// before
	// return errNotWritten
	// end
}

// step 3

// balancerTags mark a balancer as this Service's. Anybody may use a name; a UID is
// never used twice.
func (p *provider) balancerTags(service *corev1.Service) api.Tags {
	return api.Tags{
		tagCluster: p.cluster, tagServiceUID: string(service.UID), tagService: service.Namespace + "/" + service.Name,
	}
}

// findBalancer returns the Service's balancer by its tags; nil if there is none.
func (p *provider) findBalancer(ctx context.Context, service *corev1.Service) (*api.LoadBalancer, error) {
	all, err := p.cloud.ListLoadBalancers(ctx, client.LoadBalancerFilter{Tags: []string{
		tagCluster + "=" + p.cluster, tagServiceUID + "=" + string(service.UID),
	}})
	switch {
	case err != nil || len(all) == 0:
		return nil, err
	case len(all) > 1:
		return nil, fmt.Errorf(
			"%d balancers are marked as that of Service %s/%s", len(all), service.Namespace, service.Name,
		)
	}
	return &all[0], nil
}

// retryLater says when to look again at a balancer that is being built. A plain error
// would do, but its back-off grows.
func retryLater(lb *api.LoadBalancer) error {
	return cpapi.NewRetryError(
		fmt.Sprintf("load balancer %s (%s) is %s", lb.Name, lb.ID, lb.State), 500*time.Millisecond,
	)
}

// listenersOf returns a listener for each of the Service's ports, with the node port
// that it leads to.
func listenersOf(service *corev1.Service) (api.Listeners, error) {
	var listeners api.Listeners
	for _, port := range service.Spec.Ports {
		if port.NodePort == 0 {
			return nil, fmt.Errorf("port %d has no node port", port.Port)
		}
		listeners = append(listeners, api.Listener{
			Port: int(port.Port), Protocol: api.Protocol(strings.ToLower(string(port.Protocol))),
			TargetPort: int(port.NodePort),
		})
	}
	return listeners, nil
}

// targetsOf returns the Nodes' instances. A Node without a provider ID is left out
// until it has one.
func targetsOf(nodes []*corev1.Node) api.Targets {
	targets := api.Targets{}
	for _, node := range nodes {
		if id, ours := strings.CutPrefix(node.Spec.ProviderID, scheme); ours {
			targets = append(targets, api.Target{InstanceID: id})
		}
	}
	slices.SortFunc(targets, func(a, b api.Target) int { return cmp.Compare(a.InstanceID, b.InstanceID) })
	return targets
}

// statusOf returns the Service's status. The balancer is a proxy, so traffic to its
// address from inside the cluster must go through it.
func statusOf(lb *api.LoadBalancer) *corev1.LoadBalancerStatus {
	mode := corev1.LoadBalancerIPModeProxy
	return &corev1.LoadBalancerStatus{Ingress: []corev1.LoadBalancerIngress{{IP: lb.Address, IPMode: &mode}}}
}

// end

// step 4

// updateBalancer changes the balancer if it differs. A needless update would be one
// call too many at each sync of each Service.
func (p *provider) updateBalancer(
	ctx context.Context,
	lb *api.LoadBalancer,
	listeners api.Listeners,
	targets api.Targets,
) (*api.LoadBalancer, error) {
	if lb.State == api.LoadBalancerDeleting {
		return nil, retryLater(lb)
	}
	if sameListeners(lb.Listeners, listeners) && sameTargets(lb.Targets, targets) {
		return lb, nil
	}
	return p.cloud.UpdateLoadBalancer(ctx, lb.ID, api.LoadBalancerUpdate{Listeners: &listeners, Targets: &targets})
}

func sameListeners(have, want api.Listeners) bool {
	return sameSet(have, want, func(l api.Listener) string { return fmt.Sprint(l.Protocol, l.Port, l.TargetPort) })
}

func sameTargets(have, want api.Targets) bool {
	return sameSet(have, want, func(t api.Target) string { return t.InstanceID })
}

// sameSet tells whether both have the same elements in any order.
func sameSet[T any](a, b []T, key func(T) string) bool {
	keys := func(all []T) (out []string) {
		for _, v := range all {
			out = append(out, key(v))
		}
		slices.Sort(out)
		return out
	}
	return slices.Equal(keys(a), keys(b))
}

// end
