package ccm

// From a Service and its nodes to the balancer it should have, and from there
// to the steps that are missing. Pure, so that a test can compare plans.

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	"github.com/ccmlab/ccmlab/fakecloud/api"
)

// balancer is what a Service wants of the cloud, in canonical order.
type balancer struct {
	name      string
	listeners api.Listeners
	targets   api.Targets
	tags      api.Tags
}

// desiredBalancer reports everything in the Service that the cloud cannot do
// at once, before any call: half a balancer, or one without the source ranges
// that were asked for, would be worse than none.
func desiredBalancer(cluster string, svc *corev1.Service, nodes []*corev1.Node) (balancer, error) {
	if err := validate(svc); err != nil {
		return balancer{}, err
	}
	want := balancer{
		name:    balancerName(svc),
		targets: targetsOf(nodes),
		tags: api.Tags{
			TagCluster:    cluster,
			TagServiceUID: string(svc.UID),
			TagService:    svc.Namespace + "/" + svc.Name,
		},
	}
	for _, p := range svc.Spec.Ports {
		want.listeners = append(want.listeners, api.Listener{Protocol: api.ProtocolTCP, Port: int(p.Port), TargetPort: int(p.NodePort)})
	}
	sortListeners(want.listeners)
	return want, nil
}

func validate(svc *corev1.Service) error {
	var errs []error
	unsupported := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("fakecloud's load balancers cannot do "+format, args...))
	}
	for _, p := range svc.Spec.Ports {
		if p.Protocol != corev1.ProtocolTCP && p.Protocol != "" {
			unsupported("protocol %s (port %d); only TCP", p.Protocol, p.Port)
		}
		if p.NodePort == 0 {
			unsupported("port %d without a node port; leave allocateLoadBalancerNodePorts on, or set nodePort", p.Port)
		}
	}
	if _, annotated := svc.Annotations[corev1.AnnotationLoadBalancerSourceRangesKey]; annotated || len(svc.Spec.LoadBalancerSourceRanges) > 0 {
		unsupported("source ranges; a new load balancer is not built rather than open to all, one that is there stays as it was")
	}
	if svc.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal {
		unsupported("externalTrafficPolicy Local; use Cluster")
	}
	if svc.Spec.SessionAffinity == corev1.ServiceAffinityClientIP {
		unsupported("sessionAffinity ClientIP; use None")
	}
	if svc.Spec.LoadBalancerIP != "" { //nolint:staticcheck // Deprecated, but users still set it and must be told.
		unsupported("a chosen loadBalancerIP")
	}
	for _, f := range svc.Spec.IPFamilies {
		if f != corev1.IPv4Protocol {
			unsupported("IP family %s; only IPv4", f)
		}
	}
	return errors.Join(errs...)
}

// targetsOf skips nodes without a provider ID: they are not initialised yet
// and come with a later sync. A node of another provider is no target of ours.
func targetsOf(nodes []*corev1.Node) api.Targets {
	targets := api.Targets{}
	for _, n := range nodes {
		id, err := parseProviderID(n.Spec.ProviderID)
		if err != nil {
			klog.V(2).InfoS("Node is no load balancer target", "node", klog.KObj(n), "reason", err.Error())
			continue
		}
		targets = append(targets, api.Target{InstanceID: id})
	}
	sortTargets(targets)
	return slices.Compact(targets)
}

func sortListeners(l api.Listeners) {
	slices.SortFunc(l, func(a, b api.Listener) int {
		return cmp.Or(cmp.Compare(a.Port, b.Port), cmp.Compare(a.Protocol, b.Protocol))
	})
}

func sortTargets(t api.Targets) {
	slices.SortFunc(t, func(a, b api.Target) int { return cmp.Compare(a.InstanceID, b.InstanceID) })
}

// balancerName is "<service>-<start of its UID>", at most 63 characters.
func balancerName(svc *corev1.Service) string {
	uid := string(svc.UID)
	name := svc.Name[:min(len(svc.Name), 50)]
	return name + "-" + uid[:min(len(uid), 8)]
}

// step is one call to the cloud.
type step interface {
	fmt.Stringer
	apply(context.Context, loadBalancersAPI) (*api.LoadBalancer, error)
}

type createStep balancer

func (s createStep) String() string {
	return fmt.Sprintf("create load balancer %s with listeners %s and %d targets", s.name, listenerList(s.listeners), len(s.targets))
}

func (s createStep) apply(ctx context.Context, cloud loadBalancersAPI) (*api.LoadBalancer, error) {
	return cloud.CreateLoadBalancer(ctx, api.LoadBalancerCreate{Name: s.name, Listeners: s.listeners, Targets: &s.targets, Tags: &s.tags})
}

type updateStep struct {
	id      string
	update  api.LoadBalancerUpdate
	changes []string
}

func (s updateStep) String() string {
	return fmt.Sprintf("update load balancer %s: %s", s.id, strings.Join(s.changes, "; "))
}

func (s updateStep) apply(ctx context.Context, cloud loadBalancersAPI) (*api.LoadBalancer, error) {
	return cloud.UpdateLoadBalancer(ctx, s.id, s.update)
}

// plan is empty when the cloud already has what is wanted.
func plan(have *api.LoadBalancer, want balancer) []step {
	if have == nil {
		return []step{createStep(want)}
	}
	u := updateStep{id: have.ID}
	change := func(format string, args ...any) { u.changes = append(u.changes, fmt.Sprintf(format, args...)) }

	if have.Name != want.name {
		u.update.Name = &want.name
		change("name %s to %s", have.Name, want.name)
	}
	listeners := slices.Clone(have.Listeners)
	sortListeners(listeners)
	if !slices.Equal(listeners, want.listeners) {
		u.update.Listeners = &want.listeners
		change("listeners %s to %s", listenerList(listeners), listenerList(want.listeners))
	}
	targets := slices.Clone(have.Targets)
	sortTargets(targets)
	if !slices.Equal(targets, want.targets) {
		u.update.Targets = &want.targets
		change("targets %d to %d", len(targets), len(want.targets))
	}
	// Tags of others on our balancer are theirs to keep.
	tags := maps.Clone(have.Tags)
	if tags == nil {
		tags = api.Tags{}
	}
	maps.Copy(tags, want.tags)
	if !maps.Equal(tags, have.Tags) {
		u.update.Tags = &tags
		change("tags")
	}
	if len(u.changes) == 0 {
		return nil
	}
	return []step{u}
}

func listenerList(listeners api.Listeners) string {
	parts := make([]string, len(listeners))
	for i, l := range listeners {
		parts[i] = fmt.Sprintf("%s:%d→%d", l.Protocol, l.Port, l.TargetPort)
	}
	return "[" + strings.Join(parts, " ") + "]"
}
