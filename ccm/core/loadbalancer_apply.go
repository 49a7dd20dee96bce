package core

// The calls that change the cloud, and what follows when it refuses one.

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	cloudproviderapi "k8s.io/cloud-provider/api"
	"k8s.io/klog/v2"

	"github.com/ccmlab/ccmlab/ccm/annotations"
	"github.com/ccmlab/ccmlab/ccm/contract"
	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
)

// planAndApply changes the balancer from have to want, and returns it as the cloud then has it. After a refusal
// it tries again without what the Service can do without: an IPv6 address that it only prefers, and targets
// whose instance has ended.
func (l *loadBalancers) planAndApply(
	ctx context.Context, have *api.LoadBalancer, want balancerSpec,
) (*api.LoadBalancer, error) {
	var ipv6Refusal error
	for {
		lb, err := l.applyStep(ctx, have, want)
		ended := endedTargets(err, want.Targets)
		switch {
		case err == nil:
			if ipv6Refusal != nil {
				notify(ctx, contract.ReasonIPv4Only, "The cloud has no IPv6 addresses, so the Service, "+
					"which prefers dual stack, gets IPv4 only: %v", ipv6Refusal)
			}
			return lb, nil
		case have == nil && want.ipv6 == ipv6Preferred && isIPFamilyRefusal(err):
			want.ipv6, ipv6Refusal = ipv6NotWanted, err
		case len(ended) > 0:
			// Their Nodes go too, but later; the other targets must not wait. However many the cloud names at a time, each
			// round leaves fewer.
			klog.InfoS("Leaving out targets whose instance has ended", "service", klog.KObj(want.svc), "instances", ended)
			want.Targets = slices.DeleteFunc(slices.Clone(want.Targets), func(t api.Target) bool {
				return slices.Contains(ended, t.InstanceID)
			})
		default:
			return nil, l.explainRefusal(ctx, want, err)
		}
	}
}

// applyStep makes the planned call and returns the balancer as it leaves it; without a step, as it was.
func (l *loadBalancers) applyStep(
	ctx context.Context, have *api.LoadBalancer, want balancerSpec,
) (*api.LoadBalancer, error) {
	step := planStep(have, want)
	if step == nil {
		return have, nil
	}
	klog.InfoS("Load balancer", "service", klog.KObj(want.svc), "step", step.text)
	lb, err := step.apply(ctx, l.api)
	if err != nil {
		return nil, fmt.Errorf("%w (step: %s)", err, step.text)
	}
	if step.replaces {
		notify(ctx, contract.ReasonLoadBalancerReplaced, "The load balancer cannot be changed in place: %s", step.text)
	}
	return lb, nil
}

// isIPFamilyRefusal tells whether the cloud refused a balancer because it does not have these IP families.
func isIPFamilyRefusal(err error) bool {
	var refused *client.Error
	return errors.As(err, &refused) && refused.Problem.Code == api.InvalidRequest && refused.Problem.Fields != nil &&
		slices.ContainsFunc(*refused.Problem.Fields, func(f api.ProblemField) bool { return f.Field == "ipFamilies" })
}

// endedTargets are the instance IDs of the targets that the cloud refused by their place in the request.
func endedTargets(err error, targets api.Targets) []string {
	var refused *client.Error
	if !errors.As(err, &refused) || refused.Problem.Code != api.UnknownInstance || refused.Problem.Fields == nil {
		return nil
	}
	var ended []string
	for _, f := range *refused.Problem.Fields {
		var n int
		if _, err := fmt.Sscanf(f.Field, "targets.%d.instanceId", &n); err == nil && n >= 0 && n < len(targets) {
			ended = append(ended, targets[n].InstanceID)
		}
	}
	return ended
}

// explainRefusal returns what an error of applyStep means for the Service: an api.RetryError where an early retry
// will help, else the error with its reason.
func (l *loadBalancers) explainRefusal(ctx context.Context, want balancerSpec, err error) error {
	switch {
	case client.HasCode(err, api.NameTaken):
		return l.explainNameTaken(ctx, want)
	case client.HasCode(err, api.PreconditionFailed), client.HasCode(err, api.WrongState):
		return pendingError("the load balancer has changed meanwhile; retrying: %v", err)
	case client.HasCode(err, api.Protected): // It would have to be replaced.
		return withReason(contract.ReasonLoadBalancerProtected, err)
	case client.HasCode(err, api.UnknownAddress), client.HasCode(err, api.AddressInUse):
		return withReason(contract.ReasonAddressNotAvailable, err)
	case client.HasCode(err, api.InvalidRequest): // Limits are the cloud's: of ports, say.
		return withReason(contract.ReasonInvalidService, err)
	case client.IsNotFound(err):
		return pendingError("the load balancer was deleted meanwhile; retrying: %v", err)
	}
	return err
}

// explainNameTaken finds the balancer that has the wanted name. If it is the Service's own, the list
// that did not show it was wrong, and the next call will find it.
func (l *loadBalancers) explainNameTaken(ctx context.Context, want balancerSpec) error {
	name := want.Name
	found, err := l.api.ListLoadBalancers(ctx, client.LoadBalancerFilter{Name: name})
	if err != nil {
		return fmt.Errorf("looking for the load balancer named %s: %w", name, err)
	}
	if len(found) == 0 {
		return pendingError("the name of load balancer %s was taken by one that no longer exists; retrying", name)
	}
	other := found[0]
	if l.isOwnedBy(want.svc, &other) {
		return cloudproviderapi.NewRetryError(
			fmt.Sprintf("load balancer %s (%s) exists after all; retrying", name, other.ID), failedStateRetry)
	}
	whose := "it has no tags of a Service"
	if of, ok := other.Tags[contract.TagService]; ok {
		whose = fmt.Sprintf("its tags name Service %s of cluster %q", of, other.Tags[contract.TagCluster])
	}
	return newReasonError(contract.ReasonLoadBalancerNameTaken,
		"load balancer %s has the name %s and is not this Service's (%s): rename or delete it", other.ID, name, whose)
}

// reconcileDeletion deletes all balancers of the Service. Where one changed or went meanwhile it looks once
// more and tries again at once: upstream delays the retry of a deletion by seconds.
func (l *loadBalancers) reconcileDeletion(ctx context.Context, svc *corev1.Service) error {
	for attempt := 0; ; attempt++ {
		found, err := l.findBalancers(ctx, svc)
		if err != nil {
			return err
		}
		var errs []error
		hasChanged := false
		for _, lb := range WithoutDeleting(found) {
			err := l.deleteBalancer(ctx, svc, &lb)
			isGone := client.IsNotFound(err)
			hasChanged = hasChanged || isGone || client.HasCode(err, api.PreconditionFailed)
			if !isGone {
				errs = append(errs, err)
			}
		}
		if attempt > 0 || !hasChanged {
			return errors.Join(errs...)
		}
	}
}

// deleteBalancer deletes one balancer, or keeps it as the Service says. The error is client.IsNotFound if it was
// gone already.
func (l *loadBalancers) deleteBalancer(ctx context.Context, svc *corev1.Service, lb *api.LoadBalancer) error {
	onDelete, err := l.onDeletionOf(svc, lb)
	switch {
	case err != nil:
		return err
	case onDelete == annotations.Keep:
		return l.disownBalancer(ctx, lb)
	case onDelete == annotations.Refuse:
		return newReasonError(contract.ReasonLoadBalancerProtected,
			"load balancer %s is protected by the Service's annotation %s%s", lb.ID, annotations.Prefix, annotations.OnDelete)
	}
	klog.InfoS("Deleting load balancer", "service", klog.KObj(svc), "id", lb.ID)
	_, err = deleteSeen(ctx, l.api, lb, onDelete == annotations.Delete && lb.DeletionProtection)
	switch {
	case err == nil:
		return nil
	case client.HasCode(err, api.Protected):
		return withReason(contract.ReasonLoadBalancerProtected, err)
	}
	return fmt.Errorf("deleting load balancer %s: %w", lb.ID, err)
}

// deleteSeen deletes the balancer in the version that was seen. With unprotect it removes the protection before.
func deleteSeen(ctx context.Context, cloud Cloud, lb *api.LoadBalancer, unprotect bool) (*api.LoadBalancer, error) {
	if unprotect {
		unprotected, err := cloud.UpdateLoadBalancer(client.IfMatch(ctx, lb.Version), lb.ID,
			api.LoadBalancerUpdate{DeletionProtection: new(false)})
		if err != nil {
			return nil, fmt.Errorf("removing its deletion protection: %w", err)
		}
		lb = unprotected
	}
	return cloud.DeleteLoadBalancer(client.IfMatch(ctx, lb.Version), lb.ID)
}

// onDeletionOf is what becomes of the balancer when its Service is deleted. The Service or the configuration decides.
// A Service without a type stands for one that no longer exists: the balancer's tag decides.
func (l *loadBalancers) onDeletionOf(svc *corev1.Service, lb *api.LoadBalancer) (annotations.OnDeletion, error) {
	asked, _ := annotations.Parse(svc.Annotations) // Only what it says of the deletion counts.
	tagged := annotations.OnDeletion(lb.Tags[contract.TagOnDelete])
	onDelete := cmp.Or(asked.OnDelete, annotations.OnDeletion(l.defaults[annotations.OnDelete]))
	switch err := asked.ErrorOf(annotations.OnDelete); {
	case svc.Spec.Type == "":
		return tagged, nil
	case err != nil:
		return "", withReason(contract.ReasonInvalidService, err)
	case onDelete == "" && tagged == annotations.Refuse: // The protection is what the Service asked for before.
		return annotations.Delete, nil
	}
	return onDelete, nil
}

// disownBalancer removes the tags by which a balancer is the Service's and the cluster's. The tag
// with the Service's name stays, for people.
func (l *loadBalancers) disownBalancer(ctx context.Context, lb *api.LoadBalancer) error {
	tags := maps.Clone(lb.Tags)
	owners := []string{contract.TagCluster, contract.TagClusterUID, contract.TagServiceUID}
	for _, key := range slices.Concat(owners, optionTags) {
		delete(tags, key)
	}
	_, err := l.api.UpdateLoadBalancer(client.IfMatch(ctx, lb.Version), lb.ID, api.LoadBalancerUpdate{Tags: &tags})
	if err == nil {
		notify(ctx, contract.ReasonLoadBalancerKept, "Load balancer %s (%s, %s) is kept and no longer "+
			"belongs to the cluster: delete it in the cloud when nobody needs it", lb.Name, lb.ID, lb.Address)
		return nil
	}
	return fmt.Errorf("removing the cluster's tags from load balancer %s: %w", lb.ID, err)
}
