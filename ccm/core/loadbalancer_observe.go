package core

// What the cloud has for a Service. A balancer is found by its owner's UID in its tags, never by name, so that neither
// a rename nor a stranger's balancer of the same name can confuse it.

import (
	"context"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/ccmlab/ccmlab/ccm/contract"
	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
)

// observe returns the Service's balancer, nil if it has none yet. The error is an
// api.RetryError while the balancer is being deleted.
func (l *loadBalancers) observe(ctx context.Context, svc *corev1.Service) (*api.LoadBalancer, error) {
	found, err := l.findBalancers(ctx, svc)
	live := WithoutDeleting(found)
	switch {
	case err != nil:
		return nil, err
	case len(live) > 1:
		return nil, newReasonError(contract.ReasonLoadBalancerAmbiguous,
			"%d load balancers have the tags of service %s/%s (%s, %s, …); the CCM does not guess which is right",
			len(live), svc.Namespace, svc.Name, live[0].ID, live[1].ID)
	case len(live) == 1:
		return &live[0], nil
	case len(found) > 0:
		return nil, stillDeletingError(&found[0])
	}
	return nil, nil
}

func stillDeletingError(lb *api.LoadBalancer) error {
	return pendingError("load balancer %s (%s) is still being deleted", lb.Name, lb.ID)
}

// findBalancers asks the cloud for every balancer that carries the Service's UID and is
// this cluster's. An error means that the answer is not certain.
func (l *loadBalancers) findBalancers(ctx context.Context, svc *corev1.Service) ([]api.LoadBalancer, error) {
	if svc.UID == "" {
		return nil, errors.New("a service without a UID owns nothing")
	}
	// Not by the cluster's tags: its name and whether its UID is known may have changed since.
	// A Service's UID is unique.
	found, err := l.api.ListLoadBalancers(ctx, client.LoadBalancerFilter{
		Tags: []string{contract.TagServiceUID + "=" + string(svc.UID)},
	})
	if err != nil {
		return nil, fmt.Errorf("looking for the load balancer of service %s/%s: %w", svc.Namespace, svc.Name, err)
	}
	// The caller may delete all of these, so check what the cloud's filter returned.
	found = slices.DeleteFunc(found, func(lb api.LoadBalancer) bool { return !hasServiceTag(svc, &lb) })
	owned := slices.DeleteFunc(slices.Clone(found), func(lb api.LoadBalancer) bool { return !l.isOwnedBy(svc, &lb) })
	if len(owned) == 0 && len(found) > 0 {
		return nil, l.notOwnedError(svc, &found[0])
	}
	return owned, nil
}

// notOwnedError is for a balancer that carries the Service's UID and is not known to be this
// cluster's. The CCM neither creates a second one nor treats the Service as if it had none.
func (l *loadBalancers) notOwnedError(svc *corev1.Service, lb *api.LoadBalancer) error {
	name, uid := lb.Tags[contract.TagCluster], lb.Tags[contract.TagClusterUID]
	unknown := l.cluster.ownershipOf(lb.Tags) == ownershipUnknown
	var doubt string
	switch {
	case unknown:
		doubt = "which may be this cluster, whose UID is not known yet: allow the CCM to get namespace kube-system"
	case uid == "":
		doubt = fmt.Sprintf("not %q: if that is an earlier name of this cluster, set the tag %s to the current one",
			l.cluster.name, contract.TagCluster)
	default:
		doubt = "which is another cluster"
	}
	err := newReasonError(contract.ReasonLoadBalancerAmbiguous,
		"load balancer %s has the tags of service %s/%s in cluster %q (%s is %q), %s",
		lb.ID, svc.Namespace, svc.Name, name, contract.TagClusterUID, uid, doubt)
	if unknown {
		return &delayedRetryError{err, failedStateRetry}
	}
	return err
}

// isOwnedBy tells by its tags whether a balancer is this Service's of this cluster. Until the
// cluster's UID is known, its name decides: the Service's UID is unique.
func (l *loadBalancers) isOwnedBy(svc *corev1.Service, lb *api.LoadBalancer) bool {
	return hasServiceTag(svc, lb) && l.cluster.MayOwn(lb.Tags)
}

func hasServiceTag(svc *corev1.Service, lb *api.LoadBalancer) bool {
	return lb.Tags[contract.TagServiceUID] == string(svc.UID)
}

// WithoutDeleting leaves out the balancers that the cloud is already deleting.
func WithoutDeleting(found []api.LoadBalancer) []api.LoadBalancer {
	return slices.DeleteFunc(slices.Clone(found), func(lb api.LoadBalancer) bool {
		return lb.State == api.LoadBalancerDeleting
	})
}

// resolveAddress looks up the ID of the reserved address that want chooses, unless the balancer has
// that address. It fails unless the address is free, because replacing the balancer would not help.
func (l *loadBalancers) resolveAddress(ctx context.Context, have *api.LoadBalancer, want *balancerSpec) error {
	if want.address == (addressChoice{}) || have != nil && want.address.isHeldBy(have) {
		return nil
	}
	reserved, err := l.api.ListAddresses(ctx, client.AddressFilter{})
	if err != nil {
		return fmt.Errorf("looking for the reserved address %s: %w", want.address, err)
	}
	i := want.address.indexIn(reserved)
	if i < 0 {
		return newReasonError(contract.ReasonAddressNotAvailable,
			"the project has no reserved address %s: reserve it, or choose another", want.address)
	}
	found := reserved[i]
	want.address.id = found.ID
	if found.Holder != nil && (have == nil || found.Holder.ID != have.ID) {
		return newReasonError(contract.ReasonAddressNotAvailable,
			"address %s (%s) is in use by %s %s: choose another, or free it",
			found.Name, found.IP, found.Holder.Kind, found.Holder.ID)
	}
	if found.Holder != nil && have.AddressID == "" && !slices.Contains(have.AttachedAddresses, found.IP) {
		return fmt.Errorf("the answer is not used: load balancer %s holds address %s (%s) and lacks addressId",
			have.ID, found.Name, found.IP)
	}
	return nil
}
