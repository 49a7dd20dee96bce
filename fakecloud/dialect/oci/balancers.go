package oci

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
	"github.com/ccmlab/ccmlab/fakecloud/cloud"
	"github.com/ccmlab/ccmlab/fakecloud/dialect"
	"github.com/ccmlab/ccmlab/fakecloud/identity"
)

// What this file has is common to OCI's two services of load balancers: listeners that name backend sets, which have
// a health checker and backends. The wire types have the fields of both; those of one alone are left out where they
// are not set.

type listener struct {
	Name                    string                   `json:"name"`
	DefaultBackendSetName   string                   `json:"defaultBackendSetName"`
	Port                    int                      `json:"port"`
	Protocol                string                   `json:"protocol"`
	ConnectionConfiguration *connectionConfiguration `json:"connectionConfiguration,omitempty"`
	IPVersion               *string                  `json:"ipVersion,omitempty"`
	IsPpv2Enabled           *bool                    `json:"isPpv2Enabled,omitempty"`
	TCPIdleTimeout          *int                     `json:"tcpIdleTimeout,omitempty"` // in seconds
	UDPIdleTimeout          *int                     `json:"udpIdleTimeout,omitempty"` // in seconds
	SSLConfiguration        *sslConfiguration        `json:"sslConfiguration,omitempty"`
	// Of these this cloud has nothing.
	HostnameNames []string `json:"hostnameNames,omitzero"`
	RuleSetNames  []string `json:"ruleSetNames,omitzero"`
}

type connectionConfiguration struct {
	IdleTimeout                    int  `json:"idleTimeout"` // in seconds
	BackendTCPProxyProtocolVersion *int `json:"backendTcpProxyProtocolVersion,omitempty"`
}

type backendSet struct {
	Name          string        `json:"name"`
	Policy        string        `json:"policy"`
	HealthChecker healthChecker `json:"healthChecker"`
	Backends      []backend     `json:"backends"`
	// Of this one this cloud has nothing.
	SSLConfiguration *json.RawMessage `json:"sslConfiguration,omitempty"`
	// These are a network load balancer's, and recorded.
	IPVersion                               *string `json:"ipVersion,omitempty"`
	IsPreserveSource                        *bool   `json:"isPreserveSource,omitempty"`
	IsFailOpen                              *bool   `json:"isFailOpen,omitempty"`
	IsInstantFailoverEnabled                *bool   `json:"isInstantFailoverEnabled,omitempty"`
	IsInstantFailoverTCPResetEnabled        *bool   `json:"isInstantFailoverTcpResetEnabled,omitempty"`
	AreOperationallyActiveBackendsPreferred *bool   `json:"areOperationallyActiveBackendsPreferred,omitempty"`
}

type healthChecker struct {
	Protocol          string  `json:"protocol"`
	Port              int     `json:"port"` // 0 is the backends'
	URLPath           *string `json:"urlPath,omitempty"`
	ReturnCode        *int    `json:"returnCode,omitempty"`
	Retries           *int    `json:"retries,omitempty"`
	IntervalInMillis  *int    `json:"intervalInMillis,omitempty"`
	TimeoutInMillis   *int    `json:"timeoutInMillis,omitempty"`
	ResponseBodyRegex *string `json:"responseBodyRegex,omitempty"`
	IsForcePlainText  *bool   `json:"isForcePlainText,omitempty"`
}

type backend struct {
	Name      string `json:"name"`
	IPAddress string `json:"ipAddress"`
	Port      int    `json:"port"`
	backendOptions
	TargetID *string `json:"targetId,omitempty"`
}

// backendOptions are a target's, but for offline. A network load balancer has other names for the same three.
type backendOptions struct {
	Weight    *int  `json:"weight,omitempty"`
	Drain     *bool `json:"drain,omitempty"`
	Backup    *bool `json:"backup,omitempty"`
	Offline   *bool `json:"offline,omitempty"`
	IsDrain   *bool `json:"isDrain,omitempty"`
	IsBackup  *bool `json:"isBackup,omitempty"`
	IsOffline *bool `json:"isOffline,omitempty"`
}

// flags are the options of a service but the weight: drain, backup and offline.
func (o *backendOptions) flags(s *service) []**bool {
	if s == nlbService {
		return []**bool{&o.IsDrain, &o.IsBackup, &o.IsOffline}
	}
	return []**bool{&o.Drain, &o.Backup, &o.Offline}
}

// The places of flags.
const (
	drain = iota
	backup
	offline
)

// fill sets a field that is left out.
func fill[T any](field **T, value T) {
	if *field == nil {
		*field = &value
	}
}

// empty takes a value out of a field.
func empty[T comparable](field **T, value T) {
	if *field != nil && **field == value {
		*field = nil
	}
}

// withDefaults fills in what is left out of a health checker. See HealthChecker in OCI's reference.
func (h healthChecker) withDefaults() healthChecker {
	fill(&h.Retries, 3)
	fill(&h.TimeoutInMillis, 3000)
	fill(&h.IntervalInMillis, 10_000)
	fill(&h.ReturnCode, http.StatusOK)
	fill(&h.ResponseBodyRegex, "")
	if h.Protocol == "HTTP" {
		h.URLPath = new(cmp.Or(api.ValueOf(h.URLPath), "/"))
	}
	return h
}

// toNative gives the check as this cloud has it, on the port of the backends if it has none of its own.
func (h healthChecker) toNative(port int) api.HealthCheck {
	h = h.withDefaults()
	out := dialect.HealthCheck(
		strings.ToLower(h.Protocol), cmp.Or(h.Port, port), *h.IntervalInMillis, *h.TimeoutInMillis, *h.Retries, *h.Retries,
	)
	if out.Protocol == api.HealthCheckHTTP {
		out.Path, out.ExpectedCodes = *h.URLPath, strconv.Itoa(*h.ReturnCode)
	}
	return out
}

// toHealthChecker makes the health checker of a native check that was not made by this dialect. Where there is none,
// it is one that asks for nothing: OCI has one always.
func toHealthChecker(native api.HealthCheck) healthChecker {
	if native == (api.HealthCheck{}) || native.Protocol == api.HealthCheckNone {
		return healthChecker{Protocol: "TCP"}.withDefaults()
	}
	h := healthChecker{
		Protocol: strings.ToUpper(string(native.Protocol)), Port: native.Port, Retries: &native.UnhealthyThreshold,
		IntervalInMillis: new(int(native.IntervalSeconds) * 1000), TimeoutInMillis: new(int(native.TimeoutSeconds) * 1000),
	}
	if native.Protocol == api.HealthCheckHTTP {
		h.URLPath = &native.Path
		if code, err := strconv.Atoi(native.ExpectedCodes); err == nil {
			h.ReturnCode = &code
		}
	}
	return h.withDefaults()
}

// service is one of OCI's two services of load balancers.
type service struct {
	name          string // in records
	kind          dialect.Kind
	requestPrefix string   // of OCIDs of its work requests
	policies      []string // the first is the default
	protocols     map[string]protocol
	accepted      int // the status of the answer to a change
}

// protocol is what a listener's protocol is natively, and after how many seconds its connections are idle for too
// long, unless the listener says otherwise. See "Connection Management" and "Listeners for Network Load Balancers" in
// OCI's documentation.
type protocol struct {
	native      []api.Protocol
	idleSeconds int
	overTLS     []api.Protocol // natively, with an sslConfiguration
}

var (
	lbService = &service{
		name: "lb", kind: newKind("loadbalancer", "load balancer", api.ResourceLoadBalancer),
		requestPrefix: identity.OCID("loadbalancerworkrequest"), accepted: http.StatusNoContent,
		policies: []string{"ROUND_ROBIN", "LEAST_CONNECTIONS", "IP_HASH"},
		protocols: map[string]protocol{
			"TCP":  {[]api.Protocol{api.ProtocolTCP}, 300, []api.Protocol{api.ProtocolTLS}},
			"HTTP": {[]api.Protocol{api.ProtocolHTTP}, 60, []api.Protocol{api.ProtocolHTTPS}},
		},
	}
	nlbService = &service{
		name: "nlb", kind: newKind("networkloadbalancer", "network load balancer", api.ResourceLoadBalancer),
		requestPrefix: identity.OCID("networkloadbalancerworkrequest"), accepted: http.StatusAccepted,
		policies: []string{"FIVE_TUPLE", "TWO_TUPLE", "THREE_TUPLE"},
		protocols: map[string]protocol{
			"TCP":         {[]api.Protocol{api.ProtocolTCP}, 360, nil},
			"UDP":         {[]api.Protocol{api.ProtocolUDP}, 120, nil},
			"TCP_AND_UDP": {[]api.Protocol{api.ProtocolTCP, api.ProtocolUDP}, 360, nil},
		},
	}
)

func (s *service) nativeProtocols(l listener) []api.Protocol {
	if l.SSLConfiguration != nil {
		return s.protocols[l.Protocol].overTLS
	}
	return s.protocols[l.Protocol].native
}

// algorithms are the native ones of the policies of both services.
var algorithms = map[string]api.LoadBalancerAlgorithm{
	"ROUND_ROBIN": api.AlgorithmRoundRobin, "LEAST_CONNECTIONS": api.AlgorithmLeastConnections,
	"IP_HASH": api.AlgorithmSourceHash, "FIVE_TUPLE": api.AlgorithmRoundRobin,
	"TWO_TUPLE": api.AlgorithmSourceHash, "THREE_TUPLE": api.AlgorithmSourceHash,
}

func (s *service) policyOf(algorithm api.LoadBalancerAlgorithm) string {
	at := slices.IndexFunc(s.policies, func(name string) bool { return algorithms[name] == algorithm })
	return s.policies[max(at, 0)]
}

// record is what a balancer was told and this cloud has otherwise, or not at all. Its form is kept with the
// balancer, so that fields are only ever added.
type record struct {
	Version int    `json:"version"`
	Service string `json:"service"`
	Asked   string `json:"asked"` // a hash of the request that made the balancer
	Subnet  string `json:"subnet"`
	Shape   shape  `json:"shape"`
	tags
	SecurityGroups []string                    `json:"securityGroups"`
	PreserveSource *bool                       `json:"preserveSource"`
	Certificates   map[string]string           `json:"certificates,omitempty"` // native IDs by name
	Listeners      map[string]listener         `json:"listeners"`
	Sets           map[string]backendSetRecord `json:"sets"`
}

// backendSetRecord is a backend set. Its backends are the targets of the listeners that name it, on the port, or its
// own: those of a set that no listener names, or of which some are offline. A thousand of each set would not fit into
// a record.
type backendSetRecord struct {
	backendSet
	Port int             `json:"port"`
	Own  []backendRecord `json:"own"` // nil if they are the targets
}

type backendRecord struct {
	Instance int64 `json:"i"` // its serial number
	backendOptions
}

const recordVersion = 1

// instances are the caller's that have an address.
type instances struct {
	byID, byAddress map[string]cloud.Instance
	bySerial        map[int64]cloud.Instance
}

func readInstances(ctx context.Context, r *dialect.Request) (instances, error) {
	all, err := r.Instances(ctx)
	known := instances{map[string]cloud.Instance{}, map[string]cloud.Instance{}, map[int64]cloud.Instance{}}
	for id, in := range all {
		if in.Address.IsValid() {
			known.byID[id], known.byAddress[in.Address.String()], known.bySerial[in.Serial] = in, in, in
		}
	}
	return known, err
}

// balancer is a load balancer as both sides see it.
type balancer struct {
	*api.LoadBalancer
	rec       record
	service   *service
	listeners map[string]listener
	sets      map[string]*backendSet
	instances instances
}

// toBalancer gives a balancer as its service shows it. What was changed by others than this dialect is shown as it
// is now. It is nil if the balancer is one of another service.
func (s *service) toBalancer(lb *api.LoadBalancer, known instances) (*balancer, error) {
	b := &balancer{
		LoadBalancer: lb, service: s, instances: known, listeners: map[string]listener{}, sets: map[string]*backendSet{},
		rec: record{
			Service: lbService.name, Shape: shape{ShapeName: defaultShape}, Certificates: map[string]string{},
		},
	}
	if err := dialect.ReadRecord(name, lb.Records, &b.rec); err != nil {
		return nil, err
	}
	if b.rec.Service != s.name {
		return nil, nil
	}
	maps.Copy(b.listeners, b.rec.Listeners)
	for name, rec := range b.rec.Sets {
		b.sets[name] = b.showSet(rec)
	}
	b.followListeners()
	b.followPolicy()
	return b, nil
}

// targetsOf are the targets of a listener that names the set, or the balancer's.
func (b *balancer) targetsOf(set string) api.Targets {
	for _, l := range b.listeners {
		for _, n := range b.Listeners {
			isNative := l.Port == n.Port && slices.Contains(b.service.nativeProtocols(l), n.Protocol)
			if l.DefaultBackendSetName == set && isNative && n.Targets != nil {
				return n.Targets
			}
		}
	}
	return b.Targets
}

// toRecords gives targets as backends of a set.
func (b *balancer) toRecords(targets api.Targets) (all []backendRecord) {
	for _, t := range targets {
		in, isInstance := b.instances.byID[t.InstanceID]
		if !isInstance {
			in = b.instances.byAddress[t.IP]
		}
		rec := backendRecord{Instance: in.Serial}
		if t.Weight > 0 {
			rec.Weight = &t.Weight
		}
		flags := rec.flags(b.service)
		*flags[drain], *flags[backup] = &t.Drain, &t.Backup
		all = append(all, rec)
	}
	return all
}

// toTargets gives the backends of a set as targets. Those that are offline are none.
func (b *balancer) toTargets(set *backendSet) api.Targets {
	targets := api.Targets{}
	for _, one := range set.Backends {
		flags := one.flags(b.service)
		if !api.ValueOf(*flags[offline]) {
			targets = append(targets, api.Target{
				InstanceID: b.instances.byAddress[one.IPAddress].ID, Weight: api.ValueOf(one.Weight),
				Drain: api.ValueOf(*flags[drain]), Backup: api.ValueOf(*flags[backup]),
			})
		}
	}
	return targets
}

// showSet returns a set with the backends that still exist.
func (b *balancer) showSet(rec backendSetRecord) *backendSet {
	set := rec.backendSet
	set.Backends = []backend{}
	targets, isTarget := b.toRecords(b.targetsOf(set.Name)), map[int64]bool{}
	for _, t := range targets {
		isTarget[t.Instance] = true
	}
	if rec.Own == nil {
		rec.Own = targets
	}
	served := b.isServed(set.Name)
	for _, own := range rec.Own {
		in, known := b.instances.bySerial[own.Instance]
		isOffline := api.ValueOf(*own.flags(b.service)[offline])
		if known && (isTarget[own.Instance] || !served || isOffline) {
			set.Backends = append(set.Backends, b.toBackend(in, rec.Port, own.backendOptions))
		}
	}
	return &set
}

func (b *balancer) toBackend(in cloud.Instance, port int, options backendOptions) backend {
	out := backend{IPAddress: in.Address.String(), backendOptions: options}
	out.setPort(port)
	fill(&out.Weight, 1)
	for _, flag := range out.flags(b.service) {
		fill(flag, false)
	}
	if b.service == nlbService {
		out.TargetID = new(instanceKind.Write(in.Serial))
	}
	return out
}

// setPort sets the port, and the name that follows from it.
func (b *backend) setPort(port int) {
	b.Port, b.Name = port, b.IPAddress+":"+strconv.Itoa(port)
}

// isServed tells whether a listener names the set.
func (b *balancer) isServed(set string) bool {
	for _, l := range b.listeners {
		if l.DefaultBackendSetName == set {
			return true
		}
	}
	return false
}

// followListeners shows listeners as they are now: without those that were removed natively, and with those that
// were added.
func (b *balancer) followListeners() {
	nameOf := func(p api.Protocol, port int) string { return strings.ToUpper(string(p)) + "-" + strconv.Itoa(port) }
	added := map[string]api.Listener{} // native ones that were not told of
	for _, n := range b.Listeners {
		added[nameOf(n.Protocol, n.Port)] = n
	}
	for name, l := range b.listeners {
		protocols := b.service.nativeProtocols(l)
		if slices.ContainsFunc(protocols, func(p api.Protocol) bool { return added[nameOf(p, l.Port)].Port == 0 }) {
			delete(b.listeners, name)
			continue
		}
		for _, protocol := range protocols {
			n := added[nameOf(protocol, l.Port)]
			delete(added, nameOf(protocol, l.Port))
			if set := b.sets[l.DefaultBackendSetName]; set != nil {
				set.followNative(n)
			}
			b.listeners[name] = b.followNative(b.listeners[name], n)
		}
	}
	for name, n := range added {
		plain := map[api.Protocol]api.Protocol{api.ProtocolTLS: api.ProtocolTCP, api.ProtocolHTTPS: api.ProtocolHTTP}
		b.listeners[name] = b.followNative(listener{
			Name: name, DefaultBackendSetName: name, Port: n.Port,
			Protocol: strings.ToUpper(string(cmp.Or(plain[n.Protocol], n.Protocol))),
		}, n)
		b.sets[name] = b.showSet(backendSetRecord{backendSet: backendSet{
			Name: name, Policy: b.service.policyOf(b.Algorithm), HealthChecker: toHealthChecker(n.HealthCheck),
		}, Port: n.TargetPort})
	}
}

// followNative takes over what a native listener of the set has otherwise.
func (set *backendSet) followNative(n api.Listener) {
	for i := range set.Backends {
		set.Backends[i].setPort(n.TargetPort)
	}
	if set.HealthChecker.toNative(n.TargetPort) != n.HealthCheck {
		set.HealthChecker = toHealthChecker(n.HealthCheck)
	}
}

// followNative gives a listener with the certificates and the PROXY protocol that the native one has. UDP has none
// natively.
func (b *balancer) followNative(l listener, n api.Listener) listener {
	if !slices.Equal(b.certificateIDs(l), n.CertificateIDs) {
		l.SSLConfiguration = &sslConfiguration{CertificateIDs: n.CertificateIDs}
	}
	if l.proxyProtocol() == n.ProxyProtocol || n.Protocol == api.ProtocolUDP {
		return l
	}
	if b.service == nlbService {
		l.IsPpv2Enabled = new(n.ProxyProtocol == api.ProxyProtocolV2)
		return l
	}
	version := map[api.ProxyProtocol]int{api.ProxyProtocolV1: 1, api.ProxyProtocolV2: 2}[n.ProxyProtocol]
	configuration := connectionConfiguration{IdleTimeout: b.service.idleSeconds(l)}
	if version != 0 {
		configuration.BackendTCPProxyProtocolVersion = &version
	}
	l.ConnectionConfiguration = &configuration
	return l
}

// followPolicy shows the policies of sets as told, unless the algorithm was changed natively.
func (b *balancer) followPolicy() {
	if b.algorithm() == b.Algorithm {
		return
	}
	for _, set := range b.sets {
		set.Policy = b.service.policyOf(b.Algorithm)
	}
}

// servedSets are those that listeners name, in order of name.
func (b *balancer) servedSets() (all []*backendSet) {
	for _, name := range slices.Sorted(maps.Keys(b.sets)) {
		if b.isServed(name) {
			all = append(all, b.sets[name])
		}
	}
	return all
}

// algorithm is that of the first set that is served.
func (b *balancer) algorithm() api.LoadBalancerAlgorithm {
	if served := b.servedSets(); len(served) > 0 {
		return algorithms[served[0].Policy]
	}
	return algorithms[b.service.policies[0]]
}

// idleSeconds is after how many a connection in which nobody says anything is broken.
func (s *service) idleSeconds(l listener) int {
	told := api.ValueOf(l.TCPIdleTimeout)
	switch {
	case l.ConnectionConfiguration != nil:
		told = l.ConnectionConfiguration.IdleTimeout
	case l.Protocol == "UDP":
		told = api.ValueOf(l.UDPIdleTimeout)
	}
	return cmp.Or(told, s.protocols[l.Protocol].idleSeconds)
}

func (l listener) proxyProtocol() api.ProxyProtocol {
	version := 0
	if l.ConnectionConfiguration != nil {
		version = api.ValueOf(l.ConnectionConfiguration.BackendTCPProxyProtocolVersion)
	}
	switch {
	case version == 2 || api.ValueOf(l.IsPpv2Enabled):
		return api.ProxyProtocolV2
	case version == 1:
		return api.ProxyProtocolV1
	}
	return ""
}

// maxWeight is the most that a backend can have. See "Backend" in OCI's reference.
const maxWeight = 100

// setBackends gives a set backends as a request has them.
func (b *balancer) setBackends(set *backendSet, given []backend) error {
	set.Backends = []backend{}
	for _, g := range given {
		in, known := b.instances.byAddress[g.IPAddress]
		if g.IPAddress == "" && g.TargetID != nil {
			serial, _ := instanceKind.Serial(*g.TargetID)
			in, known = b.instances.bySerial[serial]
		}
		address := in.Address.String()
		switch {
		case !known:
			return dialect.Invalid("backends", "have %q, which no instance has", cmp.Or(g.IPAddress, api.ValueOf(g.TargetID)))
		case g.Port != given[0].Port:
			return dialect.Invalid("backends", "have the ports %d and %d: all backends of a set must have one", given[0].Port, g.Port)
		case g.Weight != nil && (*g.Weight < 1 || *g.Weight > maxWeight):
			return dialect.Invalid("backends", "have the weight %d: want 1 to %d", *g.Weight, maxWeight)
		case slices.ContainsFunc(set.Backends, func(other backend) bool { return other.IPAddress == address }):
			return dialect.Invalid("backends", "have %s:%d twice", address, g.Port)
		}
		set.Backends = append(set.Backends, b.toBackend(in, g.Port, g.backendOptions))
	}
	return nil
}

// putSet puts a backend set of a request in.
func (b *balancer) putSet(name string, set backendSet) error {
	set.Name, set.HealthChecker = name, set.HealthChecker.withDefaults()
	set.Policy = cmp.Or(set.Policy, b.service.policies[0])
	b.sets[name] = &set
	switch protocol := set.HealthChecker.Protocol; {
	case name == "":
		return dialect.Invalid("name", "of a backend set must be given")
	case !slices.Contains(b.service.policies, set.Policy):
		return dialect.Invalid("policy", "%q is none: want one of %v", set.Policy, b.service.policies)
	case protocol != "HTTP" && protocol != "TCP":
		return dialect.Invalid("healthChecker.protocol", "is %q: this imitation has HTTP and TCP", protocol)
	case set.SSLConfiguration != nil:
		return dialect.Invalid("sslConfiguration", "is for listeners only: this imitation speaks no TLS to backends")
	}
	return b.setBackends(&set, set.Backends)
}

// port is that of the backends; 0 while there are none.
func (set *backendSet) port() int {
	if len(set.Backends) == 0 {
		return 0
	}
	return set.Backends[0].Port
}

// putListener puts a listener of a request in.
func (b *balancer) putListener(name string, l listener) error {
	l.Name = name
	b.listeners[name] = l
	_, known := b.service.protocols[l.Protocol]
	switch {
	case name == "":
		return dialect.Invalid("name", "of a listener must be given")
	case !known:
		protocols := slices.Sorted(maps.Keys(b.service.protocols))
		return dialect.Invalid("protocol", "%q is none: this imitation has %v", l.Protocol, protocols)
	case b.sets[l.DefaultBackendSetName] == nil:
		return dialect.Invalid("defaultBackendSetName", "%q is no backend set of the balancer", l.DefaultBackendSetName)
	case len(l.HostnameNames) > 0:
		return dialect.Invalid("hostnameNames", "is not supported: this imitation has no virtual hosts")
	case len(l.RuleSetNames) > 0:
		return dialect.Invalid("ruleSetNames", "is not supported: this imitation has no rule sets")
	}
	return b.checkTLS(l)
}

// toUpdate gives the native change that makes the balancer what b has become.
func (b *balancer) toUpdate() api.LoadBalancerUpdate {
	targets, listeners := b.commonTargets(), api.Listeners{}
	for _, name := range slices.Sorted(maps.Keys(b.listeners)) {
		l := b.listeners[name]
		set := b.sets[l.DefaultBackendSetName]
		// Without backends nothing is forwarded to any port.
		port := cmp.Or(set.port(), l.Port)
		for _, protocol := range b.service.nativeProtocols(l) {
			native := api.Listener{
				Protocol: protocol, Port: l.Port, TargetPort: port, HealthCheck: set.HealthChecker.toNative(port),
				CertificateIDs: b.certificateIDs(l), IdleTimeoutSeconds: api.Seconds(b.service.idleSeconds(l)),
			}
			if own := b.toTargets(set); !slices.Equal(own, targets) {
				native.Targets = own
			}
			if protocol != api.ProtocolUDP {
				native.ProxyProtocol = l.proxyProtocol()
			}
			listeners = append(listeners, native)
		}
	}
	b.recordSets()
	b.rec.Version, b.rec.Listeners = recordVersion, b.listeners
	return api.LoadBalancerUpdate{
		Algorithm: new(b.algorithm()), Listeners: &listeners, Targets: &targets,
		Records: dialect.WithRecord(name, b.Records, b.rec),
	}
}

// commonTargets are the backends of the most sets that are served. Listeners of others have targets of their own.
func (b *balancer) commonTargets() api.Targets {
	var served []api.Targets
	for _, set := range b.servedSets() {
		served = append(served, b.toTargets(set))
	}
	common, most := api.Targets{}, 0
	for _, targets := range served {
		same := 0
		for _, other := range served {
			if slices.Equal(targets, other) {
				same++
			}
		}
		if same > most {
			common, most = targets, same
		}
	}
	return common
}

// recordSets puts the sets into the record, without the backends where they are targets.
func (b *balancer) recordSets() {
	b.rec.Sets = map[string]backendSetRecord{}
	for name, set := range b.sets {
		rec := backendSetRecord{backendSet: *set, Port: set.port(), Own: []backendRecord{}}
		rec.Backends = nil
		for _, one := range set.Backends {
			empty(&one.Weight, 1)
			for _, flag := range one.flags(b.service) {
				empty(flag, false)
			}
			serial := b.instances.byAddress[one.IPAddress].Serial
			rec.Own = append(rec.Own, backendRecord{serial, one.backendOptions})
		}
		if b.isServed(name) && len(b.toTargets(set)) == len(set.Backends) {
			rec.Own = nil
		}
		b.rec.Sets[name] = rec
	}
}

// changeBalancer changes the balancer in the call's path, all of it or nothing, and answers with the work request.
func (s *service) changeBalancer(
	ctx context.Context,
	r *dialect.Request,
	change func(b *balancer) error,
) (*dialect.Answer, error) {
	var operation string
	b, err := dialect.Change(func() (*balancer, error) {
		b, err := s.readBalancer(ctx, r, dialect.InPath(r))
		if err == nil {
			err = b.checkActive()
		}
		return b, err
	}, change, func(b *balancer) error {
		matching := client.OperationInto(client.IfMatch(ctx, b.Version), &operation)
		_, err := r.UpdateLoadBalancer(matching, b.ID, b.toUpdate())
		return err
	})
	if err != nil {
		return nil, err
	}
	return b.answerAccepted(ctx, r, operation)
}

// readBalancer reads the balancer of the service that has an OCID.
func (s *service) readBalancer(ctx context.Context, r *dialect.Request, ocid string) (*balancer, error) {
	lb, err := dialect.Find(ctx, r, s.kind, ocid, r.GetLoadBalancer)
	if err != nil {
		return nil, err
	}
	known, err := readInstances(ctx, r)
	if err != nil {
		return nil, err
	}
	b, err := s.toBalancer(lb, known)
	if err == nil && b == nil {
		err = s.kind.NotFound(ocid)
	}
	return b, err
}

// listBalancers reads the balancers of the service.
func (s *service) listBalancers(ctx context.Context, r *dialect.Request) (all []*balancer, err error) {
	found, err := r.ListLoadBalancers(ctx, client.LoadBalancerFilter{})
	if err != nil {
		return nil, err
	}
	known, err := readInstances(ctx, r)
	for i := range found {
		b, unreadable := s.toBalancer(&found[i], known)
		if b != nil {
			all = append(all, b)
		}
		err = errors.Join(err, unreadable)
	}
	return all, err
}

// state is OCI's word for the state that a balancer is in.
func (b *balancer) state() string {
	switch b.State {
	case api.LoadBalancerProvisioning:
		return "CREATING"
	case api.LoadBalancerDeleting:
		return "DELETING"
	case api.LoadBalancerError:
		return "FAILED"
	case api.LoadBalancerUpdating:
		if b.service == nlbService {
			return "UPDATING"
		}
	}
	return "ACTIVE"
}

// checkActive refuses a change of a balancer that is being made, changed or deleted.
func (b *balancer) checkActive() error {
	if b.State == api.LoadBalancerActive || b.State == api.LoadBalancerError {
		return nil
	}
	return &cloud.Error{Code: cloud.WrongState, Message: fmt.Sprintf(
		"%s %s is %s: wait for its work request", b.service.kind.Name, b.service.kind.Write(b.Serial), b.State,
	)}
}

// checkIPVersion refuses what is not IPv4, in a field.
func checkIPVersion(field string, version *string) error {
	if version != nil && *version != "" && *version != ipv4 {
		return dialect.Invalid(field, "%s is not supported: this imitation has %s", *version, ipv4)
	}
	return nil
}

const ipv4 = "IPV4"

// creation is what both services read of a balancer that is created.
type creation struct {
	CompartmentID           string                `json:"compartmentId"`
	DisplayName             string                `json:"displayName"`
	IsPrivate               *bool                 `json:"isPrivate,omitempty"`
	ReservedIPs             []reservedIP          `json:"reservedIps"`
	Listeners               map[string]listener   `json:"listeners"`
	BackendSets             map[string]backendSet `json:"backendSets"`
	NetworkSecurityGroupIDs []string              `json:"networkSecurityGroupIds"`
	tags
}

type reservedIP struct {
	ID string `json:"id"`
}

// createBalancer makes the balancer that q asks for, and answers with its work request. Certificates are those of a
// load balancer, by name. Rec has what else was asked for.
func (s *service) createBalancer(
	ctx context.Context,
	r *dialect.Request,
	q creation,
	certificates map[string]certificateDetails,
	rec record,
) (*dialect.Answer, error) {
	if err := checkCompartment(r, q.CompartmentID); err != nil {
		return nil, err
	}
	network, err := subnetKind.NativeID(ctx, r, rec.Subnet)
	if err != nil {
		return nil, dialect.Invalid("subnetIds", "have %q, which is no subnet", rec.Subnet)
	}
	rec.Certificates = map[string]string{}
	for called := range certificates {
		rec.Certificates[called] = "" // It is made when all else is right.
	}
	b, err := s.newBalancer(ctx, r, q, rec)
	if err != nil {
		return nil, err
	}
	reserved, err := findReserved(ctx, r, q.ReservedIPs)
	if err != nil {
		return nil, err
	}
	if err := b.createCertificates(ctx, r, certificates); err != nil {
		return nil, err
	}
	u := b.toUpdate()
	create := api.LoadBalancerCreate{
		Tags: api.Tags{dialect.TagName: q.DisplayName}, Algorithm: *u.Algorithm,
		Listeners: *u.Listeners, Targets: *u.Targets, Records: u.Records, AddressID: reserved,
	}
	isPrivate := api.ValueOf(q.IsPrivate)
	if isPrivate {
		create.Scheme = api.SchemeInternal
	}
	if isPrivate || s == nlbService {
		create.NetworkID = network
	}
	operation, err := b.createOnce(ctx, r, create)
	if err != nil {
		return nil, err
	}
	answer, err := b.answerAccepted(ctx, r, operation)
	if err == nil && s == nlbService {
		answer.Body, err = b.show(ctx, r)
	}
	return answer, err
}

// findReserved gives the native ID of the one address that a balancer is to have, if any.
func findReserved(ctx context.Context, r *dialect.Request, ips []reservedIP) (string, error) {
	if len(ips) == 0 {
		return "", nil
	}
	id, err := publicIPKind.NativeID(ctx, r, ips[0].ID)
	if err != nil || len(ips) > 1 {
		return "", dialect.Invalid("reservedIps", "must be one existing public IP, not %v", ips)
	}
	return id, nil
}

// createOnce makes the balancer in the cloud, and gives the operation. Who sends a retry token again gets the
// balancer that was made for it, while that is there.
func (b *balancer) createOnce(
	ctx context.Context,
	r *dialect.Request,
	create api.LoadBalancerCreate,
) (operation string, err error) {
	create.Name = nativeName(r, "oci-"+b.service.name+"-")
	created, refused := r.CreateLoadBalancer(client.OperationInto(ctx, &operation), create)
	if refused == nil {
		b.LoadBalancer = created
		return operation, nil
	}
	refused = errors.Join(refused, forgetCertificates(ctx, r, b.rec.Certificates))
	all, err := b.service.listBalancers(ctx, r)
	at := slices.IndexFunc(all, func(made *balancer) bool { return made.Name == create.Name })
	switch {
	case err != nil || at < 0 || all[at].State == api.LoadBalancerDeleting:
		return "", refused
	case all[at].rec.Asked != b.rec.Asked:
		return "", errTokenReused
	}
	*b = *all[at]
	operations, err := r.ListOperations(ctx, client.OperationFilter{Resource: b.ID})
	for _, op := range operations {
		if op.Type == "createLoadBalancer" {
			operation = op.ID
		}
	}
	return operation, err
}

// newBalancer gives what a request asks for, which is not in the cloud yet.
func (s *service) newBalancer(ctx context.Context, r *dialect.Request, q creation, rec record) (*balancer, error) {
	if err := checkSecurityGroups(ctx, r, q.NetworkSecurityGroupIDs); err != nil {
		return nil, err
	}
	rec.Service, rec.tags, rec.SecurityGroups = s.name, q.tags, q.NetworkSecurityGroupIDs
	known, err := readInstances(ctx, r)
	b := &balancer{
		LoadBalancer: &api.LoadBalancer{}, service: s, rec: rec, instances: known,
		listeners: map[string]listener{}, sets: map[string]*backendSet{},
	}
	for name, set := range q.BackendSets {
		err = errors.Join(err, b.putSet(name, set))
	}
	for name, l := range q.Listeners {
		if err == nil {
			err = b.putListener(name, l)
		}
	}
	return b, err
}

// deleteBalancer deletes the balancer in the call's path, and answers with the work request.
func (s *service) deleteBalancer(ctx context.Context, r *dialect.Request, _ struct{}) (*dialect.Answer, error) {
	b, err := s.readBalancer(ctx, r, dialect.InPath(r))
	if err != nil {
		return nil, err
	}
	if b.State == api.LoadBalancerUpdating {
		return nil, b.checkActive()
	}
	var operation string
	if _, err = r.DeleteLoadBalancer(client.OperationInto(ctx, &operation), b.ID); err != nil {
		return nil, err
	}
	if err := forgetCertificates(ctx, r, b.rec.Certificates); err != nil {
		return nil, err
	}
	return b.answerAccepted(ctx, r, operation)
}

// ipAddress is an address on which a balancer serves.
type ipAddress struct {
	IPAddress  string      `json:"ipAddress"`
	IsPublic   bool        `json:"isPublic"`
	IPVersion  string      `json:"ipVersion"`
	ReservedIP *reservedIP `json:"reservedIp,omitempty"`
}

// ipAddresses are those on which the balancer serves, or will when it is made.
func (b *balancer) ipAddresses(ctx context.Context, r *dialect.Request) ([]ipAddress, error) {
	all := []ipAddress{}
	if b.Scheme == api.SchemePublic || b.PrivateAddress == "" {
		public := ipAddress{IPAddress: b.Address, IsPublic: b.Scheme == api.SchemePublic, IPVersion: ipv4}
		if b.AddressID != "" {
			held, err := r.Cloud.Addresses.Get(ctx, r.Project, b.AddressID)
			if err != nil {
				return nil, err
			}
			public.ReservedIP = &reservedIP{publicIPKind.Write(held.Serial)}
		}
		all = append(all, public)
	}
	if b.PrivateAddress != "" {
		all = append(all, ipAddress{IPAddress: b.PrivateAddress, IPVersion: ipv4})
	}
	return all, nil
}
