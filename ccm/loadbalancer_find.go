package ccm

// Which balancer is a Service's: by its tags, from what is remembered or from
// the cloud itself, and never by guess.

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/ccmlab/ccmlab/ccm/contract"
	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
)

// rememberedBalancer is the Service's balancer as it is remembered, if there is no doubt
// about which one that is and that it stays; else nil.
func (l *loadBalancers) rememberedBalancer(cluster string, svc *corev1.Service) *api.LoadBalancer {
	if l.inventory == nil || svc.UID == "" {
		return nil
	}
	known := l.inventory.LoadBalancersOf(string(svc.UID))
	if len(known) != 1 || known[0].State == api.LoadBalancerDeleting || !l.isOwnedBy(cluster, svc, &known[0]) {
		return nil
	}
	return &known[0]
}

func (l *loadBalancers) rememberBalancer(lb api.LoadBalancer) {
	if l.inventory != nil {
		l.inventory.NoteLoadBalancer(lb)
	}
}

// isOwnedBy tells by its tags whether a balancer is this Service's of this cluster.
func (l *loadBalancers) isOwnedBy(cluster string, svc *corev1.Service, lb *api.LoadBalancer) bool {
	return hasServiceTags(cluster, svc, lb) && l.isOfThisCluster(lb)
}

func hasServiceTags(cluster string, svc *corev1.Service, lb *api.LoadBalancer) bool {
	return lb.Tags[contract.TagServiceUID] == string(svc.UID) && lb.Tags[contract.TagCluster] == cluster
}

func (l *loadBalancers) isOfThisCluster(lb *api.LoadBalancer) bool {
	uid, tagged := lb.Tags[contract.TagClusterUID]
	return !tagged || l.clusterUID == "" || uid == l.clusterUID
}

// findBalancer asks the cloud for the Service's balancer. It returns nil if there is
// none, and an error if that cannot be told for certain.
func (l *loadBalancers) findBalancer(ctx context.Context, cluster string, svc *corev1.Service) (*api.LoadBalancer, error) {
	found, err := l.findBalancers(ctx, cluster, svc)
	if err != nil {
		return nil, err
	}
	return chooseBalancer(svc, found)
}

// findBalancers asks the cloud for every balancer that says that it is the Service's:
// which of them is to serve it is a guess, and which go with it is none.
func (l *loadBalancers) findBalancers(ctx context.Context, cluster string, svc *corev1.Service) ([]api.LoadBalancer, error) {
	if svc.UID == "" {
		return nil, errors.New("a service without a UID owns nothing")
	}
	found, err := l.api.ListLoadBalancers(ctx, client.LoadBalancerFilter{
		Tags: []string{contract.TagServiceUID + "=" + string(svc.UID), contract.TagCluster + "=" + cluster},
	})
	if err != nil {
		return nil, fmt.Errorf("looking for the load balancer of service %s/%s: %w", svc.Namespace, svc.Name, err)
	}
	// All of these may be deleted, so nobody is taken at his word for the filter.
	found = slices.DeleteFunc(found, func(lb api.LoadBalancer) bool { return !hasServiceTags(cluster, svc, &lb) })
	if len(found) == 0 {
		if found, err = l.findBalancersByID(ctx, cluster, svc); err != nil {
			return nil, err
		}
	}
	l.asked.Store(string(svc.UID), time.Now())
	for _, lb := range found {
		l.rememberBalancer(lb)
		if !l.isOfThisCluster(&lb) {
			return nil, newReasonError(contract.ReasonLoadBalancerAmbiguous, "load balancer %s says that it is of service %s/%s in another cluster of the name %q (its %s is %s)",
				lb.ID, svc.Namespace, svc.Name, cluster, contract.TagClusterUID, lb.Tags[contract.TagClusterUID])
		}
	}
	return found, nil
}

// withoutDeleting are those that are not on their way out.
func withoutDeleting(found []api.LoadBalancer) []api.LoadBalancer {
	return slices.DeleteFunc(slices.Clone(found), func(lb api.LoadBalancer) bool { return lb.State == api.LoadBalancerDeleting })
}

// chooseBalancer is the only balancer, or the only one that stays.
func chooseBalancer(svc *corev1.Service, found []api.LoadBalancer) (*api.LoadBalancer, error) {
	if len(found) > 1 {
		staying := withoutDeleting(found)
		if len(staying) > 1 {
			return nil, newReasonError(contract.ReasonLoadBalancerAmbiguous, "%d load balancers say that they belong to service %s/%s (%s, %s, …); none is chosen by guess",
				len(staying), svc.Namespace, svc.Name, staying[0].ID, staying[1].ID)
		}
		found = append(staying, found...)
	}
	if len(found) == 0 {
		return nil, nil
	}
	return &found[0], nil
}

// findBalancersByID is for when a list shows nothing: it may be of another project, or
// simply wrong, and then one that is remembered is still there.
func (l *loadBalancers) findBalancersByID(ctx context.Context, cluster string, svc *corev1.Service) ([]api.LoadBalancer, error) {
	if err := l.project.check(ctx); err != nil || l.inventory == nil {
		return nil, err
	}
	var found []api.LoadBalancer
	for _, known := range l.inventory.LoadBalancersOf(string(svc.UID)) {
		lb, err := l.api.GetLoadBalancer(ctx, known.ID)
		if err != nil {
			if gone, doubt := l.project.definiteNotFound(ctx, err); !gone {
				return nil, fmt.Errorf("looking for load balancer %s of service %s/%s: %w", known.ID, svc.Namespace, svc.Name, doubt)
			}
			continue
		}
		// One that lost our tags is ours no more.
		if l.isOwnedBy(cluster, svc, lb) {
			found = append(found, *lb)
		}
	}
	return found, nil
}
