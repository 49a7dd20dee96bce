package core

// The balancer that a Service asks for. All errors of the Service are reported at once, before
// anything is changed: a balancer without, say, the wanted source ranges would be worse than none.
// Only the targets of an existing balancer still follow the Nodes.

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/cloud-provider/service/helpers"
	"k8s.io/klog/v2"
	utilnet "k8s.io/utils/net"

	"github.com/ccmlab/ccmlab/ccm/annotations"
	"github.com/ccmlab/ccmlab/ccm/contract"
	"github.com/ccmlab/ccmlab/fakecloud/api"
)

// balancerSpec is the balancer that a Service asks for, as the cloud is asked to create it: all is set
// but its address and IP families. Lists are in canonical order.
type balancerSpec struct {
	svc                    *corev1.Service // with the configuration's annotations
	api.LoadBalancerCreate                 // nil Targets or DeletionProtection: whatever the balancer has
	address                addressChoice
	ipv6                   ipv6Need
	keepsNoHealthCheck     bool // if the balancer has none, that is no difference
	// asked is what the Service's annotations say, even if something is wrong with them.
	asked annotations.Values
	// targetsOnly is for an invalid Service, and for a change of nodes: upstream passes Services that it read at the
	// start of a round, so their other fields may be out of date. Nothing is created.
	targetsOnly bool
}

// ipv6Need is whether the Service needs an IPv6 address beside the IPv4 address.
type ipv6Need int

const (
	ipv6NotWanted ipv6Need = iota
	// ipv6Preferred: without it, the Service has IPv4 to fall back to.
	ipv6Preferred
	// ipv6Required: without it, the Service lacks an address of a family that it asks for.
	ipv6Required
)

// addressChoice is a reserved address, by its IP, or by its name or ID. The zero
// choice is whichever address the balancer has or gets.
type addressChoice struct {
	ip, nameOrID string
	id           string // once it has been looked up
}

func (a addressChoice) String() string { return cmp.Or(a.ip, a.nameOrID) }

// isHeldBy tells whether the balancer has the chosen address. A name counts as it was when it was
// chosen: the address may have been renamed since, and clients know the address.
func (a addressChoice) isHeldBy(lb *api.LoadBalancer) bool {
	switch {
	case a.ip != "":
		return a.ip == lb.Address
	case a.nameOrID != "":
		return lb.AddressID != "" && (lb.Tags[contract.TagServiceAddress] == a.nameOrID ||
			lb.AddressID == a.nameOrID || lb.AddressID == a.id)
	}
	return true
}

// indexIn is the index of the chosen address, -1 if it is not there. A name comes before an ID that reads the same.
func (a addressChoice) indexIn(reserved []api.ReservedAddress) int {
	if a.ip != "" {
		return slices.IndexFunc(reserved, func(r api.ReservedAddress) bool { return r.IP == a.ip })
	}
	i := slices.IndexFunc(reserved, func(r api.ReservedAddress) bool { return r.Name == a.nameOrID })
	if i < 0 {
		i = slices.IndexFunc(reserved, func(r api.ReservedAddress) bool { return r.ID == a.nameOrID })
	}
	return i
}

// desiredSpec is the balancer that the Service asks for, with the configuration's annotations that it does not
// have itself. An annotation of the configuration that this Service cannot have, such as a health check by TCP where
// kube-proxy must be asked, is left out. The ID of the reserved address is still to be looked up. If the Service
// itself is invalid, the spec holds only the targets.
func (l *loadBalancers) desiredSpec(svc *corev1.Service, nodes []*corev1.Node) (balancerSpec, error) {
	names := slices.Sorted(maps.Keys(l.defaults))
	spec, err := newBalancerSpec(l.cluster, l.withDefaults(svc, names...), nodes)
	if err == nil {
		return spec, nil
	}
	own, err := newBalancerSpec(l.cluster, svc, nodes)
	if err != nil {
		return spec, err // Its targets follow the Nodes that the configuration selects.
	}
	for _, name := range names {
		if spec, err := newBalancerSpec(l.cluster, l.withDefaults(own.svc, name), nodes); err == nil {
			own = spec
		}
	}
	return own, nil
}

// withDefaults returns a copy of the Service with the configuration's named annotations, where it lacks them.
func (l *loadBalancers) withDefaults(svc *corev1.Service, names ...string) *corev1.Service {
	with := *svc
	with.Annotations = map[string]string{}
	for _, name := range names {
		with.Annotations[annotations.Prefix+name] = l.defaults[name]
	}
	maps.Copy(with.Annotations, svc.Annotations)
	return &with
}

// newBalancerSpec reads the Service and makes no call. Its error is about the Service, whole. With it comes a spec of
// the targets alone. If the Service does not say which Nodes it means, they stay as they are.
func newBalancerSpec(cluster *Cluster, svc *corev1.Service, nodes []*corev1.Node) (balancerSpec, error) {
	asked, annotationsErr := annotations.Parse(svc.Annotations)
	listeners := listenersOf(svc, asked)
	address, addressErr := addressOf(svc, asked)
	ipv6 := ipv6NeedOf(svc)
	kind, algorithm := api.KindProxy, api.AlgorithmRoundRobin
	if asked.Kind == api.KindNetwork {
		kind, algorithm = asked.Kind, api.AlgorithmFlowHash
		if ipv6 == ipv6Preferred {
			ipv6 = ipv6NotWanted
		}
	}
	ranges, rangesErr := sourceRangesOf(svc, ipv6)
	check, checkErr := healthCheckOf(svc, asked)
	spec := balancerSpec{svc: svc, asked: asked, targetsOnly: true}
	if asked.ErrorOf(annotations.NodeSelector) == nil {
		spec.Targets = targetsOf(nodes, asked.NodeSelector)
	}
	err := errors.Join(validateService(svc, kind, ipv6), annotationsErr, validatePortAnnotations(asked, listeners),
		addressErr, rangesErr, checkErr)
	if err != nil {
		return spec, withReason(contract.ReasonInvalidService, err)
	}
	spec.address, spec.ipv6, spec.targetsOnly = address, ipv6, false
	spec.keepsNoHealthCheck = !helpers.NeedsHealthCheck(svc) && !asksForHealthCheck(asked)
	spec.LoadBalancerCreate = api.LoadBalancerCreate{
		Name:                  balancerName(svc),
		Kind:                  kind,
		Scheme:                cmp.Or(asked.Scheme, api.SchemePublic),
		Algorithm:             cmp.Or(asked.Algorithm, algorithm),
		Listeners:             listeners,
		Targets:               spec.Targets,
		SourceRanges:          ranges,
		ClientAffinitySeconds: affinityOf(svc),
		IdleTimeoutSeconds:    asked.IdleTimeout,
		DrainSeconds:          asked.Drain,
		HealthCheck:           &check,
		Tags:                  tagsOf(cluster, svc, asked, check),
	}
	if asked.OnDelete != "" {
		spec.DeletionProtection = new(asked.OnDelete == annotations.Refuse)
	}
	return spec, nil
}

// balancerName is "<service>-<start of its UID>", at most 59 characters.
func balancerName(svc *corev1.Service) string {
	uid := string(svc.UID)
	name := svc.Name[:min(len(svc.Name), 50)]
	return name + "-" + uid[:min(len(uid), 8)]
}

// protocols are those that the cloud's listeners can have.
var protocols = map[corev1.Protocol]api.Protocol{
	"":                 api.ProtocolTCP,
	corev1.ProtocolTCP: api.ProtocolTCP,
	corev1.ProtocolUDP: api.ProtocolUDP,
}

// validateService refuses fields that the cloud's balancers do not support. A proxy needs node ports:
// it reaches pods through them.
func validateService(svc *corev1.Service, kind api.LoadBalancerKind, ipv6 ipv6Need) error {
	var errs []error
	unsupported := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("fakecloud's load balancers do not support "+format, args...))
	}
	for _, p := range svc.Spec.Ports {
		if _, ok := protocols[p.Protocol]; !ok {
			unsupported("protocol %s (port %d); only TCP and UDP", p.Protocol, p.Port)
		}
		if p.NodePort == 0 && kind == api.KindProxy {
			unsupported("port %d without a node port; enable allocateLoadBalancerNodePorts, set nodePort, "+
				"or choose the annotation %s%s: %s", p.Port, annotations.Prefix, annotations.Kind, api.KindNetwork)
		}
	}
	if kind == api.KindNetwork && ipv6 == ipv6Required {
		unsupported("IPv6 with the annotation %s%s: %s", annotations.Prefix, annotations.Kind, kind)
	}
	return errors.Join(errs...)
}

func listenersOf(svc *corev1.Service, asked annotations.Values) api.Listeners {
	var listeners api.Listeners
	for _, p := range svc.Spec.Ports {
		l := api.Listener{Protocol: protocols[p.Protocol], Port: int(p.Port), TargetPort: int(p.NodePort)}
		if asked.Kind == api.KindNetwork { // The nodes take packets for the balancer's own port.
			l.TargetPort = l.Port
		}
		l.ConnectionLimit = asked.ConnectionLimit.For(l)
		if l.Protocol == api.ProtocolTCP {
			l.ProxyProtocol = asked.ProxyProtocol.For(l)
		}
		listeners = append(listeners, l)
	}
	sortListeners(listeners)
	return listeners
}

// validatePortAnnotations refuses annotations for ports that the Service does not have.
func validatePortAnnotations(asked annotations.Values, listeners api.Listeners) error {
	var errs []error
	if ports := asked.ConnectionLimit.UnusedPorts(listeners); len(ports) > 0 {
		errs = append(errs, asked.Error(annotations.ConnectionLimit,
			"the Service has no port %s", strings.Join(ports, ", ")))
	}
	tcp := slices.DeleteFunc(slices.Clone(listeners), func(l api.Listener) bool {
		return l.Protocol != api.ProtocolTCP
	})
	if ports := asked.ProxyProtocol.UnusedPorts(tcp); len(ports) > 0 {
		errs = append(errs, asked.Error(annotations.ProxyProtocol,
			"the Service has no TCP port %s", strings.Join(ports, ", ")))
	}
	if asked.Drain > 0 && len(tcp) == 0 {
		errs = append(errs, asked.Error(annotations.Drain,
			"it is for TCP connections, and the Service has no TCP port: leave it out"))
	}
	return errors.Join(errs...)
}

// addressOf is the address that the Service chooses. The field loadBalancerIP is
// deprecated, but it is what people use.
func addressOf(svc *corev1.Service, asked annotations.Values) (addressChoice, error) {
	want := svc.Spec.LoadBalancerIP //nolint:staticcheck // See above.
	if want == "" {
		return addressChoice{nameOrID: asked.Address}, nil
	}
	var errs []error
	ip, err := netip.ParseAddr(want)
	if err != nil || !ip.Is4() {
		errs = append(errs, fmt.Errorf(
			"loadBalancerIP is %s; want an IPv4 address that the project has reserved", annotations.Quote(want)))
	}
	if asked.Given(annotations.Address) {
		errs = append(errs, asked.Error(annotations.Address,
			"the Service has loadBalancerIP %s too: leave one of the two out", annotations.Quote(want)))
	}
	if asked.Scheme == api.SchemeInternal {
		errs = append(errs, asked.Error(annotations.Scheme,
			"an internal load balancer takes no reserved address: leave it out, or loadBalancerIP %s", annotations.Quote(want)))
	}
	return addressChoice{ip: ip.String()}, errors.Join(errs...)
}

// ipv6NeedOf requires IPv6 if the Service has it, unless it only prefers both families and has IPv4 to fall back to.
func ipv6NeedOf(svc *corev1.Service) ipv6Need {
	policy := svc.Spec.IPFamilyPolicy
	switch {
	case !slices.Contains(svc.Spec.IPFamilies, corev1.IPv6Protocol):
		return ipv6NotWanted
	case policy != nil && *policy == corev1.IPFamilyPolicyPreferDualStack &&
		slices.Contains(svc.Spec.IPFamilies, corev1.IPv4Protocol):
		return ipv6Preferred
	}
	return ipv6Required
}

// sourceRangesOf reads the field, else the annotation that upstream's helpers still read. A range of everyone becomes
// no range at all, unless it leaves out a family: in the cloud, ranges of one family keep out all of the other.
func sourceRangesOf(svc *corev1.Service, ipv6 ipv6Need) (api.SourceRanges, error) {
	where, given := "loadBalancerSourceRanges", svc.Spec.LoadBalancerSourceRanges
	annotation := strings.TrimSpace(svc.Annotations[corev1.AnnotationLoadBalancerSourceRangesKey])
	if len(given) == 0 && annotation != "" {
		where = "annotation " + corev1.AnnotationLoadBalancerSourceRangesKey
		given = strings.Split(annotation, ",")
	}
	ranges := sets.New[string]()
	for _, r := range given {
		nets, err := utilnet.ParseIPNets(r)
		if err != nil { // Upstream's helper would repeat all ranges before it says what is wrong.
			return nil, fmt.Errorf("%s: %s is not valid; want ranges of addresses, such as 10.0.0.0/24",
				where, annotations.Quote(r))
		}
		ranges.Insert(slices.Collect(maps.Keys(nets))...)
	}
	if ranges.Has("0.0.0.0/0") && (ipv6 == ipv6NotWanted || ranges.Has("::/0")) {
		return api.SourceRanges{}, nil
	}
	return sets.List(ranges), nil
}

func affinityOf(svc *corev1.Service) api.ClientAffinitySeconds {
	if svc.Spec.SessionAffinity != corev1.ServiceAffinityClientIP {
		return 0
	}
	if c := svc.Spec.SessionAffinityConfig; c != nil && c.ClientIP != nil && c.ClientIP.TimeoutSeconds != nil {
		return api.Seconds(*c.ClientIP.TimeoutSeconds)
	}
	return api.Seconds(corev1.DefaultClientIPServiceAffinitySeconds)
}

// kube-proxy's health, as upstream has it by default (k8s.io/kubernetes/pkg/cluster/ports). It says
// whether the node serves node ports, and fails while the node is being removed (KEP-3836), so that it
// suits every Service whose traffic may enter at any node, whatever its ports speak.
const (
	kubeProxyHealthPort = 10256
	kubeProxyHealthPath = "/healthz"
)

// healthCheckOf is how the balancer checks nodes: without an annotation, by asking kube-proxy. Defaults
// are filled in as the cloud would, so that the two can be compared.
func healthCheckOf(svc *corev1.Service, asked annotations.Values) (api.HealthCheck, error) {
	check := asked.HealthCheck
	var err error
	path, port := helpers.GetServiceHealthCheckPathPort(svc)
	switch {
	case port != 0:
		// Where only nodes with a pod of the Service may get traffic (externalTrafficPolicy Local), kube-proxy tells
		// whether a node has one. A new pod shows within a second, the end of one within two.
		err = asked.Reject("externalTrafficPolicy Local checks nodes through kube-proxy: leave it out",
			annotations.HealthCheck, annotations.HealthCheckPort, annotations.HealthCheckPath,
			annotations.HealthCheckCodes)
		check.Protocol, check.Port = api.HealthCheckHTTP, int(port)
		check.Path, check.ExpectedCodes = path, ""
		check.IntervalSeconds = cmp.Or(check.IntervalSeconds, 1)
		check.TimeoutSeconds = cmp.Or(check.TimeoutSeconds, 1)
		check.HealthyThreshold = cmp.Or(check.HealthyThreshold, 1)
	case check.Protocol == api.HealthCheckNone:
		err = asked.Reject(fmt.Sprintf("%s%s is none: leave one of the two out",
			annotations.Prefix, annotations.HealthCheck),
			annotations.HealthCheckPort, annotations.HealthCheckInterval, annotations.HealthCheckTimeout,
			annotations.HealthCheckHealthyThreshold, annotations.HealthCheckUnhealthyThreshold)
		return api.HealthCheck{Protocol: api.HealthCheckNone}, err
	case check.Protocol == "":
		check.Protocol = api.HealthCheckHTTP
		check.Port = cmp.Or(check.Port, kubeProxyHealthPort)
		check.Path = cmp.Or(check.Path, kubeProxyHealthPath)
		check.HealthyThreshold = cmp.Or(check.HealthyThreshold, 1) // kube-proxy's answer does not flap.
	default:
		for _, p := range svc.Spec.Ports {
			if protocols[p.Protocol] == api.ProtocolTCP {
				check.Port = cmp.Or(check.Port, int(p.NodePort))
			}
		}
		if check.Port == 0 {
			err = asked.Error(annotations.HealthCheck, "the Service has no TCP port with a node port to check: set %s%s",
				annotations.Prefix, annotations.HealthCheckPort)
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
		err = errors.Join(err, asked.Error(annotations.HealthCheckTimeout,
			"the interval is %v s: want at most that", check.IntervalSeconds))
	}
	return check, err
}

// asksForHealthCheck tells whether an annotation configures the health check. Otherwise a balancer without one keeps
// none: an older release created it without one, and kube-proxy may be unreachable there.
func asksForHealthCheck(asked annotations.Values) bool {
	return slices.ContainsFunc(annotations.Definitions, func(d annotations.Definition) bool {
		return strings.HasPrefix(d.Name, annotations.HealthCheck) && asked.Given(d.Name)
	})
}

// targetsOf skips nodes without a provider ID: they are not initialised yet and become targets in a later sync. It
// skips nodes of another cloud too. Which nodes may be targets at all was decided by upstream's predicates, such as
// the label node.kubernetes.io/exclude-from-external-load-balancers; a selector chooses among them.
func targetsOf(nodes []*corev1.Node, selector labels.Selector) api.Targets {
	targets := api.Targets{}
	for _, n := range nodes {
		if selector != nil && !selector.Matches(labels.Set(n.Labels)) {
			continue
		}
		id, err := parseProviderID(n.Spec.ProviderID)
		if err != nil {
			klog.V(2).InfoS("Node is not a load balancer target", "node", klog.KObj(n), "reason", err.Error())
			continue
		}
		targets = append(targets, api.Target{InstanceID: id})
	}
	sortTargets(targets)
	return slices.Compact(targets)
}

// tagsOf are the Service's own tags and ours, by which the balancer is found.
func tagsOf(cluster *Cluster, svc *corev1.Service, asked annotations.Values, check api.HealthCheck) api.Tags {
	ours := api.Tags{
		contract.TagCluster:        cluster.name,
		contract.TagClusterUID:     cluster.UID(),
		contract.TagServiceUID:     string(svc.UID),
		contract.TagService:        svc.Namespace + "/" + svc.Name,
		contract.TagServiceAddress: asked.Address,
		contract.TagOnDelete:       string(asked.OnDelete),
		contract.TagHealthCheck:    string(check.Protocol),
		contract.TagServiceTags:    tagKeys(asked.Tags),
	}
	maps.DeleteFunc(ours, func(_, value string) bool { return value == "" })
	tags := api.Tags{}
	maps.Copy(tags, asked.Tags)
	maps.Copy(tags, ours)
	return tags
}

// optionTags are the tags that say what a Service asked for, so that it can be taken back.
var optionTags = []string{
	contract.TagServiceAddress, contract.TagOnDelete, contract.TagHealthCheck, contract.TagServiceTags,
}

// tagKeys lists the keys of tags, with commas between. It leaves out keys beyond maxTagValue: their
// tags stay when the Service no longer asks for them.
func tagKeys(tags api.Tags) string {
	const maxTagValue = 256 // in the cloud
	list := ""
	for _, key := range slices.Sorted(maps.Keys(tags)) {
		if longer := strings.TrimPrefix(list+","+key, ","); len(longer) <= maxTagValue {
			list = longer
		}
	}
	return list
}

func sortListeners(l api.Listeners) {
	slices.SortFunc(l, func(a, b api.Listener) int {
		return cmp.Or(cmp.Compare(a.Port, b.Port), cmp.Compare(a.Protocol, b.Protocol))
	})
}

func sortTargets(t api.Targets) {
	slices.SortFunc(t, func(a, b api.Target) int { return cmp.Compare(a.InstanceID, b.InstanceID) })
}
