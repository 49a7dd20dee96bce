package ccm

// From a Service and its nodes to the balancer it should have, and from there
// to the steps that are missing. Pure, so that a test can compare plans.

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/cloud-provider/service/helpers"
	"k8s.io/klog/v2"

	"github.com/ccmlab/ccmlab/fakecloud/api"
)

// AnnotationProxyProtocol on a Service, "v1" or "v2", has the balancer tell
// each target who connected, by that version of the PROXY protocol, on every
// TCP port. The pods must expect it: they see its header before all else.
const AnnotationProxyProtocol = "fakecloud.ccmlab.io/proxy-protocol"

// balancer is what a Service wants of the cloud, in canonical order.
type balancer struct {
	name         string
	listeners    api.Listeners
	targets      api.Targets
	sourceRanges api.SourceRanges
	affinity     api.ClientAffinitySeconds
	healthCheck  api.HealthCheck
	tags         api.Tags
}

// desiredBalancer reports everything in the Service that the cloud cannot do
// at once, before any call: half a balancer, or one without the source ranges
// that were asked for, would be worse than none.
func desiredBalancer(cluster string, svc *corev1.Service, nodes []*corev1.Node) (balancer, error) {
	proxyProtocol, proxyErr := proxyProtocolOf(svc)
	ranges, rangesErr := sourceRangesOf(svc)
	if err := errors.Join(validate(svc), rangesErr, proxyErr); err != nil {
		return balancer{}, err
	}
	want := balancer{
		name:         balancerName(svc),
		targets:      targetsOf(nodes),
		sourceRanges: ranges,
		affinity:     affinityOf(svc),
		healthCheck:  healthCheckOf(svc),
		tags: api.Tags{
			TagCluster:    cluster,
			TagServiceUID: string(svc.UID),
			TagService:    svc.Namespace + "/" + svc.Name,
		},
	}
	for _, p := range svc.Spec.Ports {
		l := api.Listener{Protocol: protocols[p.Protocol], Port: int(p.Port), TargetPort: int(p.NodePort)}
		if l.Protocol == api.ProtocolTCP {
			l.ProxyProtocol = proxyProtocol
		}
		want.listeners = append(want.listeners, l)
	}
	sortListeners(want.listeners)
	return want, nil
}

// protocols are those that the cloud's listeners have.
var protocols = map[corev1.Protocol]api.Protocol{
	"":                 api.ProtocolTCP,
	corev1.ProtocolTCP: api.ProtocolTCP,
	corev1.ProtocolUDP: api.ProtocolUDP,
}

func validate(svc *corev1.Service) error {
	var errs []error
	unsupported := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("fakecloud's load balancers cannot do "+format, args...))
	}
	for _, p := range svc.Spec.Ports {
		if _, ok := protocols[p.Protocol]; !ok {
			unsupported("protocol %s (port %d); only TCP and UDP", p.Protocol, p.Port)
		}
		if p.NodePort == 0 {
			unsupported("port %d without a node port; leave allocateLoadBalancerNodePorts on, or set nodePort", p.Port)
		}
	}
	if helpers.NeedsHealthCheck(svc) && svc.Spec.HealthCheckNodePort == 0 {
		unsupported("externalTrafficPolicy Local without a healthCheckNodePort")
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

func proxyProtocolOf(svc *corev1.Service) (api.ProxyProtocol, error) {
	value, annotated := svc.Annotations[AnnotationProxyProtocol]
	version := api.ProxyProtocol(value)
	if annotated && version != api.ProxyProtocolV1 && version != api.ProxyProtocolV2 {
		return "", fmt.Errorf("annotation %s is %q; want v1 or v2, or no such annotation", AnnotationProxyProtocol, value)
	}
	return version, nil
}

// sourceRangesOf reads the field, else the annotation that upstream's helpers
// still read. Everyone is no range at all.
func sourceRangesOf(svc *corev1.Service) (api.SourceRanges, error) {
	nets, err := helpers.GetLoadBalancerSourceRanges(svc)
	if err != nil {
		return nil, err
	}
	var errs []error
	for _, n := range nets {
		if len(n.Mask) != net.IPv4len {
			errs = append(errs, fmt.Errorf("fakecloud's load balancers cannot do source range %s; only IPv4", n))
		}
	}
	if len(errs) > 0 || helpers.IsAllowAll(nets) {
		return api.SourceRanges{}, errors.Join(errs...)
	}
	return slices.Sorted(maps.Keys(nets)), nil
}

func affinityOf(svc *corev1.Service) api.ClientAffinitySeconds {
	if svc.Spec.SessionAffinity != corev1.ServiceAffinityClientIP {
		return 0
	}
	if c := svc.Spec.SessionAffinityConfig; c != nil && c.ClientIP != nil && c.ClientIP.TimeoutSeconds != nil {
		return int(*c.ClientIP.TimeoutSeconds)
	}
	return int(corev1.DefaultClientIPServiceAffinitySeconds)
}

// healthCheckOf asks, where only nodes with a pod of the Service may get
// traffic (externalTrafficPolicy Local), whether a node has one: kube-proxy
// answers that on the healthCheckNodePort. A pod's coming shows within a
// second, its going within two. Otherwise every node serves, and is not asked.
func healthCheckOf(svc *corev1.Service) api.HealthCheck {
	path, port := helpers.GetServiceHealthCheckPathPort(svc)
	if port == 0 {
		return api.HealthCheck{Protocol: api.HealthCheckNone}
	}
	return api.HealthCheck{
		Protocol: api.HealthCheckHTTP, Port: int(port), Path: path,
		IntervalSeconds: 1, TimeoutSeconds: 1, HealthyThreshold: 1, UnhealthyThreshold: 2,
	}
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
	return cloud.CreateLoadBalancer(ctx, api.LoadBalancerCreate{
		Name: s.name, Listeners: s.listeners, Targets: &s.targets, SourceRanges: &s.sourceRanges,
		ClientAffinitySeconds: &s.affinity, HealthCheck: &s.healthCheck, Tags: &s.tags,
	})
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

// plan is empty when the cloud already has what is wanted. A name is given once:
// nothing is found by it, and one that somebody changed may be taken by now.
func plan(have *api.LoadBalancer, want balancer) []step {
	if have == nil {
		return []step{createStep(want)}
	}
	u := updateStep{id: have.ID}
	change := func(format string, args ...any) { u.changes = append(u.changes, fmt.Sprintf(format, args...)) }

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
	ranges := slices.Sorted(slices.Values(have.SourceRanges))
	if !slices.Equal(ranges, want.sourceRanges) {
		u.update.SourceRanges = &want.sourceRanges
		change("source ranges %v to %v", ranges, want.sourceRanges)
	}
	if have.ClientAffinitySeconds != want.affinity {
		u.update.ClientAffinitySeconds = &want.affinity
		change("client affinity %d s to %d s", have.ClientAffinitySeconds, want.affinity)
	}
	check := api.HealthCheck{Protocol: api.HealthCheckNone}
	if have.HealthCheck != nil {
		check = *have.HealthCheck
	}
	if check != want.healthCheck {
		u.update.HealthCheck = &want.healthCheck
		change("health check %s to %s", checkString(check), checkString(want.healthCheck))
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
		if l.ProxyProtocol != "" {
			parts[i] += "+proxy-" + string(l.ProxyProtocol)
		}
	}
	return "[" + strings.Join(parts, " ") + "]"
}

func checkString(c api.HealthCheck) string {
	if c.Protocol == api.HealthCheckNone {
		return "none"
	}
	return fmt.Sprintf("%s:%d%s every %d s", c.Protocol, c.Port, c.Path, c.IntervalSeconds)
}
