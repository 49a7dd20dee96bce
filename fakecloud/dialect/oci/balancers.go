package oci

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
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
	unsupportedParts
}

// unsupportedParts are what this cloud has nothing for, and refuses.
type unsupportedParts struct {
	SSLConfiguration *json.RawMessage `json:"sslConfiguration,omitempty"`
	HostnameNames    []string         `json:"hostnameNames,omitempty"`
	RuleSetNames     []string         `json:"ruleSetNames,omitempty"`
}

func (u unsupportedParts) checkSupported() error {
	switch {
	case u.SSLConfiguration != nil && string(*u.SSLConfiguration) != "null":
		return dialect.Invalid("sslConfiguration", "cannot be had: nothing ends TLS in this imitation")
	case len(u.HostnameNames) > 0:
		return dialect.Invalid("hostnameNames", "cannot be had: this imitation has no virtual hosts")
	case len(u.RuleSetNames) > 0:
		return dialect.Invalid("ruleSetNames", "cannot be had: this imitation has no rule sets")
	}
	return nil
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
	setOptions
	unsupportedParts
}

// setOptions are those of a network load balancer's backend set, which are recorded.
type setOptions struct {
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

// backendOptions are recorded. A network load balancer has other names for the same three.
type backendOptions struct {
	Weight    *int  `json:"weight,omitempty"`
	Drain     *bool `json:"drain,omitempty"`
	Backup    *bool `json:"backup,omitempty"`
	Offline   *bool `json:"offline,omitempty"`
	IsDrain   *bool `json:"isDrain,omitempty"`
	IsBackup  *bool `json:"isBackup,omitempty"`
	IsOffline *bool `json:"isOffline,omitempty"`
}

// Defaults of what is left out. See HealthChecker, Backend and Listener in OCI's reference.
const (
	defaultRetries  = 3
	defaultTimeout  = 3000  // of a health check, in milliseconds
	defaultInterval = 10000 // from one health check to the next, in milliseconds
	defaultCode     = 200
	millisASecond   = 1000
)

// withDefaults fills in what is left out of a health checker.
func (h healthChecker) withDefaults() healthChecker {
	fill := func(field **int, value int) {
		if *field == nil {
			*field = &value
		}
	}
	fill(&h.Retries, defaultRetries)
	fill(&h.TimeoutInMillis, defaultTimeout)
	fill(&h.IntervalInMillis, defaultInterval)
	fill(&h.ReturnCode, defaultCode)
	if h.ResponseBodyRegex == nil {
		h.ResponseBodyRegex = new("")
	}
	if h.Protocol == "HTTP" {
		h.URLPath = new(cmp.Or(api.ValueOf(h.URLPath), "/"))
	}
	return h
}

// toNative gives the check as this cloud has it, in whole seconds, on the port of the backends if it has none of its
// own. A check may not take longer than the time until the next.
func (h healthChecker) toNative(port int) (*api.HealthCheck, error) {
	h = h.withDefaults()
	out := &api.HealthCheck{
		Port: cmp.Or(h.Port, port), IntervalSeconds: inSeconds(*h.IntervalInMillis),
		HealthyThreshold: *h.Retries, UnhealthyThreshold: *h.Retries,
	}
	out.TimeoutSeconds = min(inSeconds(*h.TimeoutInMillis), out.IntervalSeconds)
	switch h.Protocol {
	case "HTTP":
		out.Protocol, out.Path, out.ExpectedCodes = api.HealthCheckHTTP, *h.URLPath, strconv.Itoa(*h.ReturnCode)
	case "TCP":
		out.Protocol = api.HealthCheckTCP
	default:
		return nil, dialect.Invalid("healthChecker.protocol", "is %q, and this imitation has HTTP and TCP", h.Protocol)
	}
	return out, nil
}

// inSeconds gives milliseconds in seconds, rounded up.
func inSeconds(millis int) int { return max((millis+millisASecond-1)/millisASecond, 1) }

// toHealthChecker makes the health checker of a native check that was not made by this dialect. Where there is none,
// it is one that asks for nothing: OCI has one always.
func toHealthChecker(native *api.HealthCheck) healthChecker {
	if native == nil {
		return healthChecker{Protocol: "TCP"}.withDefaults()
	}
	h := healthChecker{
		Protocol: strings.ToUpper(string(native.Protocol)), Port: native.Port, Retries: &native.UnhealthyThreshold,
		IntervalInMillis: new(native.IntervalSeconds * millisASecond),
		TimeoutInMillis:  new(native.TimeoutSeconds * millisASecond),
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
	policies      []policy // the first is the default
	protocols     map[string][]api.Protocol
	accepted      int // the status of the answer to a change
}

// policy is a policy and the native algorithm.
type policy struct {
	name      string
	algorithm api.LoadBalancerAlgorithm
}

var (
	lbService = &service{
		name: "lb", kind: newKind("loadbalancer", "load balancer", cloud.LoadBalancerResource),
		requestPrefix: identity.OCID("loadbalancerworkrequest"), accepted: http.StatusNoContent,
		policies: []policy{
			{"ROUND_ROBIN", api.AlgorithmRoundRobin}, {"LEAST_CONNECTIONS", api.AlgorithmLeastConnections},
			{"IP_HASH", api.AlgorithmSourceHash},
		},
		protocols: map[string][]api.Protocol{"TCP": {api.ProtocolTCP}, "HTTP": {api.ProtocolHTTP}},
	}
	nlbService = &service{
		name: "nlb", kind: newKind("networkloadbalancer", "network load balancer", cloud.LoadBalancerResource),
		requestPrefix: identity.OCID("networkloadbalancerworkrequest"), accepted: http.StatusAccepted,
		policies: []policy{
			{"FIVE_TUPLE", api.AlgorithmRoundRobin}, {"TWO_TUPLE", api.AlgorithmSourceHash},
			{"THREE_TUPLE", api.AlgorithmSourceHash},
		},
		protocols: map[string][]api.Protocol{
			"TCP": {api.ProtocolTCP}, "UDP": {api.ProtocolUDP}, "TCP_AND_UDP": {api.ProtocolTCP, api.ProtocolUDP},
		},
	}
)

func (s *service) algorithmOf(name string) (api.LoadBalancerAlgorithm, error) {
	var names []string
	for _, p := range s.policies {
		if p.name == name {
			return p.algorithm, nil
		}
		names = append(names, p.name)
	}
	return "", dialect.Invalid("policy", "%q is none: want one of %s", name, strings.Join(names, ", "))
}

func (s *service) policyOf(algorithm api.LoadBalancerAlgorithm) string {
	at := slices.IndexFunc(s.policies, func(p policy) bool { return p.algorithm == algorithm })
	return s.policies[max(at, 0)].name
}

// record is what a balancer was told and this cloud has otherwise, or not at all. Its form is kept with the
// balancer, so that fields are only ever added.
type record struct {
	Version    int    `json:"version"`
	Service    string `json:"service"`
	RetryToken string `json:"retryToken,omitempty"`
	// Asked is a hash of what was asked for with the retry token.
	Asked          string                      `json:"asked,omitempty"`
	Subnet         string                      `json:"subnet"`
	Shape          shape                       `json:"shape"`
	FreeformTags   map[string]string           `json:"freeformTags,omitempty"`
	DefinedTags    map[string]map[string]any   `json:"definedTags,omitempty"`
	SecurityGroups []string                    `json:"securityGroups,omitempty"`
	PreserveSource *bool                       `json:"preserveSource,omitempty"`
	Listeners      map[string]listener         `json:"listeners"`
	Sets           map[string]backendSetRecord `json:"sets"`
}

// backendSetRecord is a backend set. Its backends are the balancer's targets, on the port; or, where they are not
// those, its own. A thousand of each set would not fit into a record.
type backendSetRecord struct {
	backendSet
	Port int             `json:"port,omitempty"`
	Own  []backendRecord `json:"own,omitempty"`
	// HasOwn tells an Own that is empty from none.
	HasOwn bool `json:"hasOwn,omitempty"`
}

type backendRecord struct {
	Instance int64 `json:"i"` // its serial number
	backendOptions
}

const recordVersion = 1

// balancer is a load balancer as both sides see it.
type balancer struct {
	*api.LoadBalancer
	rec       record
	service   *service
	listeners map[string]listener
	sets      map[string]*backendSet
	instances map[string]cloud.Instance
}

// toBalancer gives a balancer as its service shows it. What was changed by others than this dialect is shown as it
// is now. It is nil if the balancer is one of another service.
func (s *service) toBalancer(lb *api.LoadBalancer, instances map[string]cloud.Instance) (*balancer, error) {
	b := &balancer{
		LoadBalancer: lb, service: s, instances: instances, sets: map[string]*backendSet{},
		rec: record{Service: lbService.name, Shape: shape{ShapeName: defaultShape}},
	}
	if err := dialect.ReadRecord(name, lb.Records, &b.rec); err != nil {
		return nil, err
	}
	if b.rec.Service != s.name {
		return nil, nil
	}
	b.listeners = maps.Clone(b.rec.Listeners)
	if b.listeners == nil {
		b.listeners = map[string]listener{}
	}
	for name, rec := range b.rec.Sets {
		b.sets[name] = b.showSet(rec)
	}
	b.followListeners()
	b.followPolicy()
	return b, nil
}

// showSet gives a set with its backends: those of them that there still are.
func (b *balancer) showSet(rec backendSetRecord) *backendSet {
	set := rec.backendSet
	set.Backends = []backend{}
	add := func(in cloud.Instance, known bool, options backendOptions) {
		if known && in.Address.IsValid() {
			set.Backends = append(set.Backends, b.toBackend(in, rec.Port, options))
		}
	}
	if !rec.HasOwn {
		for _, t := range b.Targets {
			in, known := b.instances[t.InstanceID]
			add(in, known, backendOptions{})
		}
		return &set
	}
	bySerial := map[int64]cloud.Instance{}
	for _, in := range b.instances {
		bySerial[in.Serial] = in
	}
	for _, own := range rec.Own {
		in, known := bySerial[own.Instance]
		add(in, known && (!b.isServed(set.Name) || b.hasTarget(in.ID)), own.backendOptions)
	}
	return &set
}

func (b *balancer) toBackend(in cloud.Instance, port int, options backendOptions) backend {
	out := backend{
		Name: in.Address.String() + ":" + strconv.Itoa(port), IPAddress: in.Address.String(), Port: port,
		backendOptions: options,
	}
	if out.Weight == nil {
		out.Weight = new(1)
	}
	flags := []**bool{&out.Drain, &out.Backup, &out.Offline}
	if b.service == nlbService {
		out.TargetID = new(instanceKind.Write(in.Serial))
		flags = []**bool{&out.IsDrain, &out.IsBackup, &out.IsOffline}
	}
	for _, flag := range flags {
		if *flag == nil {
			*flag = new(false)
		}
	}
	return out
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

func (b *balancer) hasTarget(id string) bool {
	return slices.ContainsFunc(b.Targets, func(t api.Target) bool { return t.InstanceID == id })
}

// followListeners shows listeners as they are now: without those that were removed natively, and with those that
// were added.
func (b *balancer) followListeners() {
	told := map[string]bool{} // native listeners, by protocol and port
	key := func(p api.Protocol, port int) string { return string(p) + "-" + strconv.Itoa(port) }
	for name, l := range b.listeners {
		for _, protocol := range b.service.protocols[l.Protocol] {
			at := slices.IndexFunc(b.Listeners, func(n api.Listener) bool {
				return n.Protocol == protocol && n.Port == l.Port
			})
			if at < 0 {
				delete(b.listeners, name)
				continue
			}
			told[key(protocol, l.Port)] = true
			if set := b.sets[l.DefaultBackendSetName]; set != nil {
				set.followNative(b.Listeners[at])
			}
			b.listeners[name] = l.followNative(b.Listeners[at])
		}
	}
	for _, n := range b.Listeners {
		if told[key(n.Protocol, n.Port)] {
			continue
		}
		name := strings.ToUpper(key(n.Protocol, n.Port))
		b.listeners[name] = listener{
			Name: name, DefaultBackendSetName: name, Port: n.Port, Protocol: strings.ToUpper(string(n.Protocol)),
		}.followNative(n)
		b.sets[name] = b.showSet(backendSetRecord{backendSet: backendSet{
			Name: name, Policy: b.service.policyOf(b.Algorithm), HealthChecker: toHealthChecker(n.HealthCheck),
		}, Port: n.TargetPort})
	}
}

// followNative takes over what a native listener of the set has otherwise.
func (set *backendSet) followNative(n api.Listener) {
	for i := range set.Backends {
		set.Backends[i].Port = n.TargetPort
		set.Backends[i].Name = set.Backends[i].IPAddress + ":" + strconv.Itoa(n.TargetPort)
	}
	told, err := set.HealthChecker.toNative(n.TargetPort)
	if err != nil || n.HealthCheck == nil || *told != *n.HealthCheck {
		set.HealthChecker = toHealthChecker(n.HealthCheck)
	}
}

func (l listener) followNative(n api.Listener) listener {
	if l.proxyProtocol() == n.ProxyProtocol {
		return l
	}
	version := map[api.ProxyProtocol]int{api.ProxyProtocolV1: 1, api.ProxyProtocolV2: 2}[n.ProxyProtocol]
	l.IsPpv2Enabled = nil
	configuration := connectionConfiguration{IdleTimeout: l.idleSeconds()}
	if version != 0 {
		configuration.BackendTCPProxyProtocolVersion = &version
	}
	l.ConnectionConfiguration = &configuration
	return l
}

// followPolicy shows the policies of sets as told, unless the algorithm was changed natively.
func (b *balancer) followPolicy() {
	if told, err := b.algorithm(); err == nil && told == b.Algorithm {
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
func (b *balancer) algorithm() (api.LoadBalancerAlgorithm, error) {
	served := b.servedSets()
	if len(served) == 0 {
		return b.service.policies[0].algorithm, nil
	}
	return b.service.algorithmOf(served[0].Policy)
}

// Idle time-outs that listeners have unless somebody says otherwise, in seconds. See "Connection Management" and
// "Listeners for Network Load Balancers" in OCI's documentation.
const (
	idleHTTP    = 60
	idleTCP     = 300
	idleNetwork = 360
)

// idleSeconds is after how many a connection in which nobody says anything is broken.
func (l listener) idleSeconds() int {
	switch {
	case l.ConnectionConfiguration != nil && l.ConnectionConfiguration.IdleTimeout > 0:
		return l.ConnectionConfiguration.IdleTimeout
	case l.TCPIdleTimeout != nil:
		return *l.TCPIdleTimeout
	case l.IPVersion != nil || l.IsPpv2Enabled != nil: // A network load balancer's.
		return idleNetwork
	case l.Protocol == "HTTP":
		return idleHTTP
	}
	return idleTCP
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

// setBackends gives a set backends as a request has them.
func (b *balancer) setBackends(set *backendSet, given []backend) error {
	byAddress := map[string]cloud.Instance{}
	for _, in := range b.instances {
		if in.Address.IsValid() {
			byAddress[in.Address.String()] = in
		}
	}
	set.Backends = []backend{}
	for i, g := range given {
		if g.IPAddress == "" && g.TargetID != nil {
			serial, _ := instanceKind.Serial(*g.TargetID)
			for _, in := range b.instances {
				if in.Serial == serial && in.Address.IsValid() {
					g.IPAddress = in.Address.String()
				}
			}
		}
		in, known := byAddress[g.IPAddress]
		if !known {
			return dialect.Invalid("backends", "have %q, which no instance has", cmp.Or(g.IPAddress, api.ValueOf(g.TargetID)))
		}
		if g.Port != given[0].Port {
			return dialect.Invalid("backends", "have the ports %d and %d: those of one set have one here", given[0].Port, g.Port)
		}
		if slices.ContainsFunc(given[:i], func(other backend) bool { return other.IPAddress == g.IPAddress }) {
			return dialect.Invalid("backends", "have %s:%d twice", g.IPAddress, g.Port)
		}
		set.Backends = append(set.Backends, b.toBackend(in, g.Port, g.backendOptions))
	}
	return nil
}

// putSet puts a backend set of a request in.
func (b *balancer) putSet(name string, set backendSet) error {
	if name == "" {
		return dialect.Invalid("name", "of a backend set must be given")
	}
	if err := set.checkSupported(); err != nil {
		return err
	}
	set.Name, set.HealthChecker = name, set.HealthChecker.withDefaults()
	set.Policy = cmp.Or(set.Policy, b.service.policies[0].name)
	if _, err := b.service.algorithmOf(set.Policy); err != nil {
		return err
	}
	if err := b.setBackends(&set, set.Backends); err != nil {
		return err
	}
	if _, err := set.HealthChecker.toNative(set.port()); err != nil {
		return err
	}
	b.sets[name] = &set
	return nil
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
	if name == "" {
		return dialect.Invalid("name", "of a listener must be given")
	}
	if err := l.checkSupported(); err != nil {
		return err
	}
	if b.service.protocols[l.Protocol] == nil {
		return dialect.Invalid(
			"protocol", "%q is none that this imitation has: %s", l.Protocol,
			strings.Join(slices.Sorted(maps.Keys(b.service.protocols)), ", "),
		)
	}
	if b.sets[l.DefaultBackendSetName] == nil {
		return dialect.Invalid("defaultBackendSetName", "%q is no backend set of the balancer", l.DefaultBackendSetName)
	}
	l.Name = name
	b.listeners[name] = l
	return nil
}

// toUpdate gives the native change that makes the balancer what b has become.
func (b *balancer) toUpdate() (u api.LoadBalancerUpdate, err error) {
	targets, listeners := b.targets(), api.Listeners{}
	idle := 0
	for _, name := range slices.Sorted(maps.Keys(b.listeners)) {
		l := b.listeners[name]
		idle = max(idle, l.idleSeconds())
		set := b.sets[l.DefaultBackendSetName]
		// Without backends nothing is forwarded to any port.
		port := cmp.Or(set.port(), l.Port)
		check, err := set.HealthChecker.toNative(port)
		if err != nil {
			return u, err
		}
		for _, protocol := range b.service.protocols[l.Protocol] {
			native := api.Listener{Protocol: protocol, Port: l.Port, TargetPort: port, HealthCheck: check}
			if protocol != api.ProtocolUDP {
				native.ProxyProtocol = l.proxyProtocol()
			}
			listeners = append(listeners, native)
		}
	}
	algorithm, err := b.algorithm()
	if err != nil {
		return u, err
	}
	b.recordSets(targets)
	b.rec.Version, b.rec.Listeners = recordVersion, b.listeners
	return api.LoadBalancerUpdate{
		Algorithm: &algorithm, IdleTimeoutSeconds: &idle, Listeners: &listeners, Targets: &targets,
		Records: dialect.WithRecord(name, b.Records, b.rec),
	}, nil
}

// targets are the backends of all sets that are served, each once.
func (b *balancer) targets() api.Targets {
	targets := api.Targets{}
	byAddress := map[string]string{}
	for _, in := range b.instances {
		byAddress[in.Address.String()] = in.ID
	}
	for _, set := range b.servedSets() {
		for _, one := range set.Backends {
			t := api.Target{InstanceID: byAddress[one.IPAddress]}
			if !slices.Contains(targets, t) {
				targets = append(targets, t)
			}
		}
	}
	return targets
}

// recordSets puts the sets into the record, without the backends where they are the balancer's targets.
func (b *balancer) recordSets(targets api.Targets) {
	serials, byAddress := map[string]int64{}, map[string]int64{}
	for id, in := range b.instances {
		serials[id], byAddress[in.Address.String()] = in.Serial, in.Serial
	}
	var all []backendRecord
	for _, t := range targets {
		all = append(all, backendRecord{Instance: serials[t.InstanceID]})
	}
	b.rec.Sets = map[string]backendSetRecord{}
	for name, set := range b.sets {
		rec := backendSetRecord{backendSet: *set, Port: set.port()}
		rec.Backends = nil
		for _, one := range set.Backends {
			rec.Own = append(rec.Own, backendRecord{byAddress[one.IPAddress], one.recordedOptions()})
		}
		if rec.HasOwn = !b.isServed(name) || !slices.Equal(rec.Own, all); !rec.HasOwn {
			rec.Own = nil
		}
		b.rec.Sets[name] = rec
	}
}

// recordedOptions are those that are not as they are by default.
func (o backendOptions) recordedOptions() backendOptions {
	if o.Weight != nil && *o.Weight == 1 {
		o.Weight = nil
	}
	for _, flag := range []**bool{&o.Drain, &o.Backup, &o.Offline, &o.IsDrain, &o.IsBackup, &o.IsOffline} {
		if *flag != nil && !**flag {
			*flag = nil
		}
	}
	return o
}

// with gives the options with those of a change put in that it has.
func (o setOptions) withChange(change setOptions) setOptions {
	return setOptions{
		cmp.Or(change.IPVersion, o.IPVersion), cmp.Or(change.IsPreserveSource, o.IsPreserveSource),
		cmp.Or(change.IsFailOpen, o.IsFailOpen),
		cmp.Or(change.IsInstantFailoverEnabled, o.IsInstantFailoverEnabled),
		cmp.Or(change.IsInstantFailoverTCPResetEnabled, o.IsInstantFailoverTCPResetEnabled),
		cmp.Or(change.AreOperationallyActiveBackendsPreferred, o.AreOperationallyActiveBackendsPreferred),
	}
}

// with gives the listener with those fields of a change put in that it has.
func (l listener) withChange(change listener) listener {
	return listener{
		Name: l.Name, DefaultBackendSetName: cmp.Or(change.DefaultBackendSetName, l.DefaultBackendSetName),
		Port: cmp.Or(change.Port, l.Port), Protocol: cmp.Or(change.Protocol, l.Protocol),
		ConnectionConfiguration: cmp.Or(change.ConnectionConfiguration, l.ConnectionConfiguration),
		IPVersion:               cmp.Or(change.IPVersion, l.IPVersion),
		IsPpv2Enabled:           cmp.Or(change.IsPpv2Enabled, l.IsPpv2Enabled),
		TCPIdleTimeout:          cmp.Or(change.TCPIdleTimeout, l.TCPIdleTimeout),
		UDPIdleTimeout:          cmp.Or(change.UDPIdleTimeout, l.UDPIdleTimeout),
		unsupportedParts:        change.unsupportedParts,
	}
}

// changeBalancer changes the balancer in the call's path, all of it or nothing, and gives the work request.
func (s *service) changeBalancer(
	ctx context.Context,
	r *dialect.Request,
	change func(b *balancer) error,
) (request string, err error) {
	return dialect.Retry(func() (string, error) {
		b, err := s.readBalancer(ctx, r)
		if err == nil {
			err = b.checkActive()
		}
		if err == nil {
			err = change(b)
		}
		if err != nil {
			return "", err
		}
		u, err := b.toUpdate()
		if err != nil {
			return "", err
		}
		var operation string
		matching := client.OperationInto(client.IfMatch(ctx, b.Version), &operation)
		if _, err = r.UpdateLoadBalancer(matching, b.ID, u); err != nil {
			return "", err
		}
		return s.workRequestID(ctx, r, b, operation)
	})
}

// readBalancer reads the balancer in the call's path, which must be one of the service.
func (s *service) readBalancer(ctx context.Context, r *dialect.Request) (*balancer, error) {
	ocid := dialect.InPath(r)
	id, err := s.kind.NativeID(ctx, r, ocid)
	if err != nil {
		return nil, err
	}
	lb, err := r.GetLoadBalancer(ctx, id)
	if err != nil {
		return nil, err
	}
	instances, err := r.Instances(ctx)
	if err != nil {
		return nil, err
	}
	b, err := s.toBalancer(lb, instances)
	if err == nil && b == nil {
		err = s.kind.NotFound(ocid)
	}
	return b, err
}

// listBalancers reads the balancers of the service that have the name, or all if it is empty.
func (s *service) listBalancers(ctx context.Context, r *dialect.Request, named string) (all []*balancer, err error) {
	found, err := r.ListLoadBalancers(ctx, client.LoadBalancerFilter{})
	if err != nil {
		return nil, err
	}
	instances, err := r.Instances(ctx)
	for i := 0; err == nil && i < len(found); i++ {
		var b *balancer
		if b, err = s.toBalancer(&found[i], instances); b != nil && (named == "" || named == b.displayName()) {
			all = append(all, b)
		}
	}
	return all, err
}

func (b *balancer) displayName() string { return dialect.NameOf(b.Name, b.Tags) }

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

// checkSubnets refuses a balancer in other subnets than one of the caller's, and gives the network of that.
func checkSubnets(ctx context.Context, r *dialect.Request, ocids ...string) (network string, err error) {
	if len(ocids) != 1 {
		return "", dialect.Invalid("subnetIds", "must be one: subnets are regional here")
	}
	if network, err = subnetKind.NativeID(ctx, r, ocids[0]); err != nil {
		return "", dialect.Invalid("subnetIds", "have %q, which is no subnet", ocids[0])
	}
	return network, nil
}

// creation is what both services read of a balancer that is created.
type creation struct {
	CompartmentID           string                    `json:"compartmentId"`
	DisplayName             string                    `json:"displayName"`
	IsPrivate               *bool                     `json:"isPrivate,omitempty"`
	ReservedIPs             []reservedIP              `json:"reservedIps"`
	Listeners               map[string]listener       `json:"listeners"`
	BackendSets             map[string]backendSet     `json:"backendSets"`
	NetworkSecurityGroupIDs []string                  `json:"networkSecurityGroupIds"`
	FreeformTags            map[string]string         `json:"freeformTags"`
	DefinedTags             map[string]map[string]any `json:"definedTags"`
}

type reservedIP struct {
	ID string `json:"id"`
}

// createBalancer makes a balancer of a network, and gives it with its work request. Who sends a retry token again
// gets the balancer that was made for it, while that is there.
func (s *service) createBalancer(
	ctx context.Context,
	r *dialect.Request,
	q creation,
	network string,
	rec record,
) (*balancer, string, error) {
	if err := checkCompartment(r, q.CompartmentID); err != nil {
		return nil, "", err
	}
	b, err := s.newBalancer(ctx, r, q, rec)
	if err != nil {
		return nil, "", err
	}
	u, err := b.toUpdate()
	if err != nil {
		return nil, "", err
	}
	create := api.LoadBalancerCreate{
		Name: b.nativeName(), Tags: &api.Tags{dialect.TagName: q.DisplayName}, Algorithm: u.Algorithm,
		IdleTimeoutSeconds: u.IdleTimeoutSeconds, Listeners: *u.Listeners, Targets: u.Targets, Records: u.Records,
	}
	if api.ValueOf(q.IsPrivate) {
		create.Scheme = new(api.SchemeInternal)
	}
	if api.ValueOf(q.IsPrivate) || s == nlbService {
		create.NetworkID = &network
	}
	for _, ip := range q.ReservedIPs {
		id, err := publicIPKind.NativeID(ctx, r, ip.ID)
		if err != nil || len(q.ReservedIPs) > 1 {
			return nil, "", dialect.Invalid("reservedIps", "must be one public IP that there is, and not %q", ip.ID)
		}
		create.AddressID = &id
	}
	var operation string
	made, err := r.CreateLoadBalancer(client.OperationInto(ctx, &operation), create)
	if client.HasCode(err, api.ProblemCode(cloud.NameTaken)) && b.rec.RetryToken != "" {
		return s.findMade(ctx, r, b)
	}
	if err != nil {
		return nil, "", err
	}
	b.LoadBalancer = made
	request, err := s.workRequestID(ctx, r, b, operation)
	return b, request, err
}

// newBalancer gives what a request asks for, which is not in the cloud yet.
func (s *service) newBalancer(ctx context.Context, r *dialect.Request, q creation, rec record) (*balancer, error) {
	instances, err := r.Instances(ctx)
	if err != nil {
		return nil, err
	}
	rec.Service, rec.RetryToken = s.name, r.HTTP.Header.Get("Opc-Retry-Token")
	if asked, err := json.Marshal(q); err == nil && rec.RetryToken != "" {
		sum := sha256.Sum256(asked)
		rec.Asked = hex.EncodeToString(sum[:])
	}
	rec.FreeformTags, rec.DefinedTags = q.FreeformTags, q.DefinedTags
	rec.SecurityGroups = q.NetworkSecurityGroupIDs
	b := &balancer{
		LoadBalancer: &api.LoadBalancer{}, service: s, rec: rec, instances: instances,
		listeners: map[string]listener{}, sets: map[string]*backendSet{},
	}
	if err := checkSecurityGroups(ctx, r, q.NetworkSecurityGroupIDs); err != nil {
		return nil, err
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

// nativeName is the balancer's unique name. It follows from the retry token, so that of two creations with the same
// one the second is refused.
func (b *balancer) nativeName() string {
	if b.rec.RetryToken == "" {
		return dialect.NewName("oci-" + b.service.name + "-")
	}
	sum := sha256.Sum256([]byte(b.rec.RetryToken))
	return "oci-" + b.service.name + "-" + hex.EncodeToString(sum[:16])
}

// findMade finds the balancer that was made with the same retry token, and its work request. One that is being
// deleted is in the way until it is gone.
func (s *service) findMade(ctx context.Context, r *dialect.Request, b *balancer) (*balancer, string, error) {
	found, err := r.ListLoadBalancers(ctx, client.LoadBalancerFilter{Name: b.nativeName()})
	if err != nil {
		return nil, "", err
	}
	for i := range found {
		made, err := s.toBalancer(&found[i], b.instances)
		if err != nil || made == nil || made.State == api.LoadBalancerDeleting {
			continue
		}
		if made.rec.Asked != b.rec.Asked {
			return nil, "", &cloud.Error{
				Code: cloud.IdempotencyKeyReused, Message: "the opc-retry-token was used for another request",
			}
		}
		operations, err := r.ListOperations(ctx, client.OperationFilter{Resource: made.ID})
		if err != nil {
			return nil, "", err
		}
		for _, op := range operations {
			if op.Type == "createLoadBalancer" {
				return made, s.writeRequestID(made.Serial, op.Serial), nil
			}
		}
		return made, s.writeRequestID(made.Serial, 0), nil
	}
	return nil, "", &cloud.Error{
		Code: cloud.WrongState, Message: "the balancer that was made with this opc-retry-token is being deleted",
	}
}

func (s *service) deleteBalancer(ctx context.Context, r *dialect.Request) (request string, err error) {
	b, err := s.readBalancer(ctx, r)
	if err != nil {
		return "", err
	}
	if b.State == api.LoadBalancerUpdating {
		return "", b.checkActive()
	}
	var operation string
	if _, err = r.DeleteLoadBalancer(client.OperationInto(ctx, &operation), b.ID); err != nil {
		return "", err
	}
	return s.workRequestID(ctx, r, b, operation)
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
	if b.Scheme == api.SchemePublic || b.PrivateAddress == nil {
		public := ipAddress{IPAddress: b.Address, IsPublic: b.Scheme == api.SchemePublic, IPVersion: "IPV4"}
		if b.AddressID != nil {
			held, err := r.Cloud.GetAddress(ctx, r.Project, *b.AddressID)
			if err != nil {
				return nil, err
			}
			public.ReservedIP = &reservedIP{publicIPKind.Write(held.Serial)}
		}
		all = append(all, public)
	}
	if b.PrivateAddress != nil {
		all = append(all, ipAddress{IPAddress: *b.PrivateAddress, IPVersion: "IPV4"})
	}
	return all, nil
}
