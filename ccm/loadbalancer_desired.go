package ccm

// From a Service and its nodes to the balancer that it should have. Pure, and
// all that is wrong is told at once, before any call: half a balancer, or one
// without the source ranges that were asked for, would be worse than none.

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/cloud-provider/service/helpers"
	"k8s.io/klog/v2"

	"github.com/ccmlab/ccmlab/ccm/annotations"
	"github.com/ccmlab/ccmlab/ccm/contract"
	"github.com/ccmlab/ccmlab/fakecloud/api"
)

// clusterID is the cluster whose balancers they are. The uid is that of the
// namespace kube-system, and "" while it is not known.
type clusterID struct{ name, uid string }

// balancerSpec is what a Service wants of the cloud, in canonical order.
type balancerSpec struct {
	name                             string
	address                          addressChoice
	families                         api.IPFamilies
	mustIPv6                         bool // Without IPv6 the Service would have no address of a family that it asks for.
	scheme                           api.LoadBalancerScheme
	algorithm                        api.LoadBalancerAlgorithm
	listeners                        api.Listeners
	targets                          api.Targets
	sourceRanges                     api.SourceRanges
	clientAffinitySeconds            api.ClientAffinitySeconds
	idleTimeoutSeconds, drainSeconds int
	healthCheck                      api.HealthCheck
	tags                             api.Tags
	targetsAlone                     bool // Of a balancer that is there, nothing else is compared.
}

// addressChoice is a reserved address, by its IP or by its name or ID. The zero
// choice is whichever the balancer has, or gets.
type addressChoice struct {
	ip, nameOrID string
	id           string // once it has been looked up
}

func (a addressChoice) String() string { return cmp.Or(a.ip, a.nameOrID) }

func (a addressChoice) isHeldBy(lb *api.LoadBalancer) bool {
	switch {
	case a.ip != "":
		return a.ip == lb.Address
	case a.nameOrID != "":
		return lb.AddressID != nil && (*lb.AddressID == a.nameOrID || *lb.AddressID == a.id)
	}
	return true
}

func newBalancerSpec(of clusterID, svc *corev1.Service, nodes []*corev1.Node) (balancerSpec, error) {
	asked, annotationsErr := annotations.Parse(svc.Annotations)
	listeners := listenersOf(svc, asked)
	address, addressErr := addressOf(svc, asked)
	families, mustIPv6 := familiesOf(svc)
	ranges, rangesErr := sourceRangesOf(svc, families)
	check, checkErr := healthCheckOf(svc, asked)
	err := errors.Join(validateService(svc), annotationsErr, validatePortAnnotations(asked, listeners), addressErr, rangesErr, checkErr)
	if err != nil {
		return balancerSpec{}, &reasonError{contract.ReasonInvalidService, err}
	}
	tags := api.Tags{}
	maps.Copy(tags, asked.Tags)
	maps.Copy(tags, api.Tags{contract.TagCluster: of.name, contract.TagServiceUID: string(svc.UID), contract.TagService: svc.Namespace + "/" + svc.Name})
	if of.uid != "" {
		tags[contract.TagClusterUID] = of.uid
	}
	return balancerSpec{
		name: balancerName(svc), address: address, families: families, mustIPv6: mustIPv6,
		scheme: cmp.Or(asked.Scheme, api.SchemePublic), algorithm: cmp.Or(asked.Algorithm, api.AlgorithmRoundRobin),
		listeners: listeners, targets: targetsOf(nodes), sourceRanges: ranges, clientAffinitySeconds: affinityOf(svc),
		idleTimeoutSeconds: asked.IdleTimeout, drainSeconds: asked.Drain, healthCheck: check, tags: tags,
	}, nil
}

// protocols are those that the cloud's listeners have.
var protocols = map[corev1.Protocol]api.Protocol{
	"":                 api.ProtocolTCP,
	corev1.ProtocolTCP: api.ProtocolTCP,
	corev1.ProtocolUDP: api.ProtocolUDP,
}

// validateService is about fields that the cloud's balancers have nothing for. One
// without a node port has nowhere to send: it reaches pods through nodes.
func validateService(svc *corev1.Service) error {
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
	for _, f := range svc.Spec.IPFamilies {
		if f != corev1.IPv4Protocol && f != corev1.IPv6Protocol {
			unsupported("IP family %s; only IPv4 and IPv6", f)
		}
	}
	return errors.Join(errs...)
}

func listenersOf(svc *corev1.Service, asked annotations.Values) api.Listeners {
	var listeners api.Listeners
	for _, p := range svc.Spec.Ports {
		l := api.Listener{Protocol: protocols[p.Protocol], Port: int(p.Port), TargetPort: int(p.NodePort)}
		l.ConnectionLimit = asked.ConnectionLimit.For(l)
		if l.Protocol == api.ProtocolTCP {
			l.ProxyProtocol = asked.ProxyProtocol.For(l)
		}
		listeners = append(listeners, l)
	}
	sortListeners(listeners)
	return listeners
}

// validatePortAnnotations is about annotations that are for ports which the Service has not.
func validatePortAnnotations(asked annotations.Values, listeners api.Listeners) error {
	var errs []error
	if ports := asked.ConnectionLimit.Idle(listeners); len(ports) > 0 {
		errs = append(errs, asked.Error(annotations.ConnectionLimit, "the Service has no port %s", strings.Join(ports, ", ")))
	}
	tcp := slices.DeleteFunc(slices.Clone(listeners), func(l api.Listener) bool { return l.Protocol != api.ProtocolTCP })
	if ports := asked.ProxyProtocol.Idle(tcp); len(ports) > 0 {
		errs = append(errs, asked.Error(annotations.ProxyProtocol, "the Service has no TCP port %s", strings.Join(ports, ", ")))
	}
	if asked.Drain > 0 && len(tcp) == 0 {
		errs = append(errs, asked.Error(annotations.Drain, "it is for TCP connections, and the Service has no TCP port: leave it out"))
	}
	return errors.Join(errs...)
}

// addressOf is the address that the Service chooses. The field is deprecated,
// and what people use.
func addressOf(svc *corev1.Service, asked annotations.Values) (addressChoice, error) {
	want := svc.Spec.LoadBalancerIP //nolint:staticcheck // See above.
	if want == "" {
		return addressChoice{nameOrID: asked.Address}, nil
	}
	var errs []error
	ip, err := netip.ParseAddr(want)
	if err != nil || !ip.Is4() {
		errs = append(errs, fmt.Errorf("loadBalancerIP is %q; want an IPv4 address that the project has reserved", want))
	}
	if asked.Given(annotations.Address) {
		errs = append(errs, asked.Error(annotations.Address, "the Service has loadBalancerIP %s too: leave one of the two out", want))
	}
	if asked.Scheme == api.SchemeInternal {
		errs = append(errs, asked.Error(annotations.Scheme, "an internal load balancer takes no reserved address: leave it out, or loadBalancerIP %s", want))
	}
	return addressChoice{ip: ip.String()}, errors.Join(errs...)
}

// familiesOf are the families of the balancer's addresses. In the cloud each has
// an IPv4 address; which ones the Service shows is for its status. IPv6 is a must
// unless the Service only prefers to have both, and has IPv4 to fall back to.
func familiesOf(svc *corev1.Service) (families api.IPFamilies, mustIPv6 bool) {
	if !slices.Contains(svc.Spec.IPFamilies, corev1.IPv6Protocol) {
		return api.IPFamilies{api.IPv4}, false
	}
	policy := svc.Spec.IPFamilyPolicy
	prefers := policy != nil && *policy == corev1.IPFamilyPolicyPreferDualStack && slices.Contains(svc.Spec.IPFamilies, corev1.IPv4Protocol)
	return api.IPFamilies{api.IPv4, api.IPv6}, !prefers
}

// sourceRangesOf reads the field, else the annotation that upstream's helpers
// still read. Everyone is no range at all: in the cloud, ranges of one family
// only keep out all of the other.
func sourceRangesOf(svc *corev1.Service, families api.IPFamilies) (api.SourceRanges, error) {
	nets, err := helpers.GetLoadBalancerSourceRanges(svc)
	if err != nil {
		return nil, err
	}
	given := len(svc.Spec.LoadBalancerSourceRanges) > 0 || strings.TrimSpace(svc.Annotations[corev1.AnnotationLoadBalancerSourceRangesKey]) != ""
	ranges := slices.Sorted(maps.Keys(nets))
	everyone := slices.Contains(ranges, "0.0.0.0/0") && (!slices.Contains(families, api.IPv6) || slices.Contains(ranges, "::/0"))
	if !given || everyone {
		return api.SourceRanges{}, nil
	}
	return ranges, nil
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

// healthCheckOf is the check of the nodes, whole, as the cloud would fill it in.
func healthCheckOf(svc *corev1.Service, asked annotations.Values) (api.HealthCheck, error) {
	check, err := asked.HealthCheck, error(nil)
	path, port := helpers.GetServiceHealthCheckPathPort(svc)
	switch {
	case port != 0:
		// Where only nodes with a pod of the Service may get traffic
		// (externalTrafficPolicy Local), kube-proxy tells whether a node has one. A
		// pod's coming shows within a second, its going within two.
		err = rejectAnnotations(asked, "externalTrafficPolicy Local has kube-proxy asked: leave it out",
			annotations.HealthCheck, annotations.HealthCheckPort, annotations.HealthCheckPath, annotations.HealthCheckCodes)
		check.Protocol, check.Port, check.Path, check.ExpectedCodes = api.HealthCheckHTTP, int(port), path, ""
		check.IntervalSeconds = cmp.Or(check.IntervalSeconds, 1)
		check.TimeoutSeconds = cmp.Or(check.TimeoutSeconds, 1)
		check.HealthyThreshold = cmp.Or(check.HealthyThreshold, 1)
	case check.Protocol == "" || check.Protocol == api.HealthCheckNone:
		// Every node serves, and is not asked.
		return api.HealthCheck{Protocol: api.HealthCheckNone}, rejectAnnotations(asked, "nothing is checked: ask for it with "+annotations.Prefix+annotations.HealthCheck,
			annotations.HealthCheckPort, annotations.HealthCheckInterval, annotations.HealthCheckTimeout,
			annotations.HealthCheckHealthyThreshold, annotations.HealthCheckUnhealthyThreshold)
	default:
		check.Port = cmp.Or(check.Port, firstTCPNodePort(svc))
		if check.Port == 0 {
			err = asked.Error(annotations.HealthCheck, "the Service has no TCP port to ask on: give %s%s", annotations.Prefix, annotations.HealthCheckPort)
		}
	}
	if check.Protocol == api.HealthCheckHTTP {
		check.Path = cmp.Or(check.Path, "/")
	}
	check.IntervalSeconds = cmp.Or(check.IntervalSeconds, 5)
	check.TimeoutSeconds = cmp.Or(check.TimeoutSeconds, min(2, check.IntervalSeconds))
	check.HealthyThreshold = cmp.Or(check.HealthyThreshold, 2)
	check.UnhealthyThreshold = cmp.Or(check.UnhealthyThreshold, 2)
	if check.TimeoutSeconds > check.IntervalSeconds {
		err = errors.Join(err, asked.Error(annotations.HealthCheckTimeout, "the interval is %d s: want at most that", check.IntervalSeconds))
	}
	return check, err
}

func rejectAnnotations(asked annotations.Values, why string, names ...string) error {
	var errs []error
	for _, name := range names {
		if asked.Given(name) {
			errs = append(errs, asked.Error(name, "%s", why))
		}
	}
	return errors.Join(errs...)
}

func firstTCPNodePort(svc *corev1.Service) int {
	for _, p := range svc.Spec.Ports {
		if protocols[p.Protocol] == api.ProtocolTCP {
			return int(p.NodePort)
		}
	}
	return 0
}

// targetsOf skips nodes without a provider ID: they are not initialised yet
// and come with a later sync. A node of another provider is no target of ours.
// Which nodes may be targets at all is upstream's predicates to say, the label
// node.kubernetes.io/exclude-from-external-load-balancers among them.
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
