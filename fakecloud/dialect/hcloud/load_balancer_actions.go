package hcloud

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"path"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/hetznercloud/hcloud-go/v2/hcloud/schema"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
	"github.com/ccmlab/ccmlab/fakecloud/cloud"
	"github.com/ccmlab/ccmlab/fakecloud/dialect"
)

// loadBalancerAction makes the call of an action on a balancer. change changes the balancer, natively and its record.
// What runs at Hetzner locks a balancer only for its networks.
func loadBalancerAction[B any](
	action string,
	change func(ctx context.Context, r *dialect.Request, b *balancer, q B) error,
) dialect.Call {
	do := func(ctx context.Context, r *dialect.Request, lb *api.LoadBalancer, q B) (references, error) {
		b, err := toBalancer(lb)
		if err != nil {
			return nil, err
		}
		if err = change(ctx, r, b, q); err == nil {
			err = b.followSelectors(ctx, r)
		}
		if err == nil { // Nobody else's change may get lost, as the update says all of the listeners and targets.
			_, err = r.UpdateLoadBalancer(client.IfMatch(ctx, b.Version), b.ID, b.update())
		}
		return b.about, err
	}
	return actionCall(&balancers, action, action, do)
}

// checkUnlocked refuses a change while another action on the balancer runs.
func (b *balancer) checkUnlocked(ctx context.Context, r *dialect.Request) error {
	running, _, err := r.Cloud.ListOperations(ctx, r.Project, cloud.OperationFilter{
		Resource: b.ID, States: []string{string(api.OperationRunning)}, Limit: cloud.NoLimit,
	})
	if err == nil && slices.ContainsFunc(running, func(op cloud.Operation) bool { return op.Records[name] != nil }) {
		err = &cloud.Error{Code: locked, Message: "load balancer is locked: another action is running"}
	}
	return err
}

// serviceRequest is what is read of a service that is added or updated. All of it is kept; see Dialect.Limits for what
// is not acted on.
type serviceRequest struct {
	schema.LoadBalancerService
	sent []byte
}

func (q *serviceRequest) UnmarshalJSON(sent []byte) error {
	q.sent = slices.Clone(sent)
	return json.Unmarshal(sent, &q.LoadBalancerService)
}

// The defaults of a service, as docs.hetzner.cloud has them.
var (
	defaultHTTP  = schema.LoadBalancerServiceHTTP{CookieName: "HCLBSTICKY", CookieLifetime: 300}
	defaultCheck = schema.LoadBalancerServiceHealthCheck{Protocol: "tcp", Interval: 15, Timeout: 10, Retries: 3}
)

// The ports of a service that is added without, by its protocol. One of tcp must say them.
var (
	defaultListenPorts      = map[string]int{"http": 80, "https": 443}
	defaultDestinationPorts = map[string]int{"http": 80, "https": 80}
)

// applyTo puts what was sent into a service. What is null, and a protocol and a port that are empty, stay.
func (q serviceRequest) applyTo(s *schema.LoadBalancerService) {
	protocol := cmp.Or(q.Protocol, s.Protocol)
	listen := cmp.Or(q.ListenPort, s.ListenPort, defaultListenPorts[protocol])
	port := cmp.Or(q.DestinationPort, s.DestinationPort, defaultDestinationPorts[protocol])
	if s.HTTP == nil {
		s.HTTP = new(defaultHTTP)
	}
	if s.HealthCheck == nil {
		s.HealthCheck = new(defaultCheck)
		s.HealthCheck.Port = port
	}
	checkProtocol := s.HealthCheck.Protocol
	if q.HealthCheck != nil {
		checkProtocol = cmp.Or(q.HealthCheck.Protocol, checkProtocol)
	}
	if s.HealthCheck.HTTP == nil && checkProtocol == "http" {
		s.HealthCheck.HTTP = &schema.LoadBalancerServiceHealthCheckHTTP{Path: "/", StatusCodes: []string{"2??", "3??"}}
	}
	http, check, checkHTTP := s.HTTP, s.HealthCheck, s.HealthCheck.HTTP
	_ = json.Unmarshal(q.sent, s) // It was read before; a body that is empty says nothing.
	s.Protocol, s.ListenPort, s.DestinationPort = protocol, listen, port
	s.HTTP, s.HealthCheck = cmp.Or(s.HTTP, http), cmp.Or(s.HealthCheck, check)
	s.HealthCheck.HTTP, s.HealthCheck.Protocol = cmp.Or(s.HealthCheck.HTTP, checkHTTP), checkProtocol
	if protocol == "tcp" {
		s.HTTP = nil
	}
	if checkProtocol == "tcp" {
		s.HealthCheck.HTTP = nil
	}
}

// check refuses what is wrong with a service. Fields begin with a prefix.
func (q serviceRequest) check(s schema.LoadBalancerService, prefix string) error {
	if !slices.Contains(protocols, s.Protocol) {
		return dialect.Invalid(prefix+"protocol", "must be one of tcp, http, https")
	}
	within := func(field string, n, low, high int) error {
		if n < low || n > high {
			return dialect.Invalid(prefix+field, "must be from %d to %d", low, high)
		}
		return nil
	}
	c := s.HealthCheck
	err := cmp.Or(
		within("listen_port", s.ListenPort, 1, 65535), within("destination_port", s.DestinationPort, 1, 65535),
		within("health_check.port", c.Port, 1, 65535), within("health_check.interval", c.Interval, 3, 60),
		within("health_check.timeout", c.Timeout, 1, 60), within("health_check.retries", c.Retries, 1, 5),
	)
	switch h := s.HTTP; {
	case err != nil:
		return err
	case c.Protocol != "tcp" && c.Protocol != "http":
		return dialect.Invalid(prefix+"health_check.protocol", "must be one of tcp, http")
	case h == nil && q.HTTP != nil && !reflect.ValueOf(*q.HTTP).IsZero():
		return dialect.Invalid(prefix+"http", "is for the protocols http and https only")
	case h == nil:
		return nil
	case h.RedirectHTTP && s.Protocol != "https":
		return dialect.Invalid(prefix+"http.redirect_http", "is for the protocol https only")
	case len(h.Certificates) > 0 && s.Protocol != "https":
		return dialect.Invalid(prefix+"http.certificates", "are for the protocol https only")
	case len(h.Certificates) == 0 && s.Protocol == "https":
		return dialect.Invalid(prefix+"http.certificates", "is missing: https needs a certificate")
	case h.CookieName == "" || strings.ContainsAny(h.CookieName, " \t\",;=\\"):
		return dialect.Invalid(prefix+"http.cookie_name", "is no name of a cookie")
	case h.TimeoutIdle != 0:
		err = within("http.timeout_idle", h.TimeoutIdle, 30, 300)
	}
	return cmp.Or(err, within("http.cookie_lifetime", s.HTTP.CookieLifetime, 1, 86400))
}

// isService tells whether a listener is a service: Hetzner Cloud's have no UDP, and a redirect is an option of one.
func isService(l api.Listener) bool { return l.Protocol != api.ProtocolUDP && l.RedirectPort == 0 }

// mergeServices gives a service for each listener that there is, by port, with what the record has
// of it. A listener that was made otherwise is a service of its protocol.
func (b *balancer) mergeServices() map[int]schema.LoadBalancerService {
	services := map[int]schema.LoadBalancerService{}
	for _, l := range b.Listeners {
		if !isService(l) {
			continue
		}
		s, known := b.record.Services[l.Port]
		if !known {
			s.HealthCheck = new(defaultCheck)
			s.HealthCheck.Port = l.TargetPort
		}
		s.Protocol, s.ListenPort, s.DestinationPort = string(l.Protocol), l.Port, l.TargetPort
		if s.HTTP == nil && s.Protocol != "tcp" {
			s.HTTP = new(defaultHTTP)
		}
		s.Proxyprotocol = l.ProxyProtocol != ""
		services[l.Port] = s
	}
	return services
}

// services gives the balancer's services, by port.
func (b *balancer) services() []schema.LoadBalancerService {
	services := []schema.LoadBalancerService{}
	for _, port := range slices.Sorted(maps.Keys(b.record.Services)) {
		services = append(services, b.record.Services[port])
	}
	return services
}

var errPortUsed = &cloud.Error{Code: portUsed, Message: "source port is already used by another service"}

func addService(ctx context.Context, r *dialect.Request, b *balancer, q serviceRequest) error {
	var s schema.LoadBalancerService
	q.applyTo(&s)
	if b.listensOn(s.ListenPort) {
		return errPortUsed
	}
	return b.putService(ctx, r, q, s)
}

func updateService(ctx context.Context, r *dialect.Request, b *balancer, q serviceRequest) error {
	s, there := b.record.Services[q.ListenPort]
	if !there {
		return dialect.NotFound("no service listens on port %d", q.ListenPort)
	}
	q.applyTo(&s)
	return b.putService(ctx, r, q, s)
}

// putService puts a service in, as a listener too. What else others have set of that stays.
func (b *balancer) putService(
	ctx context.Context,
	r *dialect.Request,
	q serviceRequest,
	s schema.LoadBalancerService,
) (err error) {
	if err := q.check(s, b.prefix); err != nil {
		return err
	}
	var l api.Listener
	for _, had := range b.Listeners {
		if had.Port == s.ListenPort && isService(had) {
			l = had
		}
	}
	l.Protocol, l.Port, l.TargetPort = api.Protocol(s.Protocol), s.ListenPort, s.DestinationPort
	l.CertificateIDs, l.StickyCookie, l.StickyCookieSeconds, l.IdleTimeoutSeconds = nil, "", 0, 0
	if h := s.HTTP; h != nil {
		for _, serial := range h.Certificates {
			id, err := r.ResourceID(ctx, api.ResourceCertificate, serial)
			if err != nil {
				return err
			}
			l.CertificateIDs = append(l.CertificateIDs, id)
		}
		if h.StickySessions {
			l.StickyCookie, l.StickyCookieSeconds = h.CookieName, api.Seconds(h.CookieLifetime)
		}
		l.IdleTimeoutSeconds = api.Seconds(h.TimeoutIdle)
	}
	if l.HealthCheck, err = toHealthCheck(*s.HealthCheck, b.prefix); err != nil {
		return err
	}
	switch {
	case !s.Proxyprotocol:
		l.ProxyProtocol = ""
	case l.ProxyProtocol == "":
		l.ProxyProtocol = api.ProxyProtocolV1
	}
	b.record.Services[s.ListenPort] = s
	b.dropListener(s.ListenPort)
	b.Listeners = append(b.Listeners, l)
	if s.HTTP == nil || !s.HTTP.RedirectHTTP {
		return nil
	}
	const port = 80
	if b.listensOn(port) {
		return errPortUsed
	}
	b.Listeners = append(b.Listeners, api.Listener{
		Protocol: api.ProtocolHTTP, Port: port, TargetPort: s.DestinationPort, RedirectPort: s.ListenPort,
	})
	return nil
}

// dropListener takes out the listener of a service, and the one that redirects to it.
func (b *balancer) dropListener(port int) {
	b.Listeners = slices.DeleteFunc(slices.Clone(b.Listeners), func(l api.Listener) bool {
		return l.Port == port && isService(l) || l.RedirectPort == port
	})
}

// listensOn tells whether a service or a redirect has the port.
func (b *balancer) listensOn(port int) bool {
	return slices.ContainsFunc(b.Listeners, func(l api.Listener) bool {
		return l.Port == port && l.Protocol != api.ProtocolUDP
	})
}

func deleteService(_ context.Context, _ *dialect.Request, b *balancer, q portRequest) error {
	if _, there := b.record.Services[q.ListenPort]; !there {
		return dialect.NotFound("no service listens on port %d", q.ListenPort)
	}
	delete(b.record.Services, q.ListenPort)
	b.dropListener(q.ListenPort)
	return nil
}

// protocols are those of services.
var protocols = []string{"tcp", "http", "https"}

// toHealthCheck makes a listener's health check of a service's. A check natively ends before the next begins.
func toHealthCheck(h schema.LoadBalancerServiceHealthCheck, prefix string) (api.HealthCheck, error) {
	check := api.HealthCheck{
		Protocol: api.HealthCheckProtocol(h.Protocol), Port: h.Port, IntervalSeconds: api.Seconds(h.Interval),
		TimeoutSeconds: api.Seconds(min(h.Timeout, h.Interval)), HealthyThreshold: h.Retries, UnhealthyThreshold: h.Retries,
	}
	if h.HTTP == nil {
		return check, nil
	}
	if strings.ContainsAny(h.HTTP.Path, " ") || !strings.HasPrefix(cmp.Or(h.HTTP.Path, "/"), "/") {
		return check, dialect.Invalid(prefix+"health_check.http.path", "must begin with / and have no spaces")
	}
	if strings.ContainsAny(h.HTTP.Domain, " %\\") {
		return check, dialect.Invalid(prefix+"health_check.http.domain", "has spaces, percent or backslash symbols")
	}
	check.Path, check.Host, check.Response = cmp.Or(h.HTTP.Path, "/"), h.HTTP.Domain, h.HTTP.Response
	if h.HTTP.TLS {
		check.Protocol = api.HealthCheckHTTPS
	}
	for _, pattern := range h.HTTP.StatusCodes {
		codes := expectedCodes(pattern)
		if len(codes) == 0 {
			return check, dialect.Invalid(prefix+"health_check.http.status_codes", "%q fits no status", pattern)
		}
		check.ExpectedCodes = strings.TrimPrefix(check.ExpectedCodes+","+strings.Join(codes, ","), ",")
	}
	return check, nil
}

// expectedCodes gives the statuses, in ranges, that fit a pattern in which "?" stands for any digit, and "*" for any
// number of them.
func expectedCodes(pattern string) (ranges []string) {
	first := 0
	for code := 200; code <= 600; code++ {
		fits, _ := path.Match(pattern, strconv.Itoa(code))
		switch fits = fits && code < 600; {
		case fits && first == 0:
			first = code
		case !fits && first == code-1:
			ranges, first = append(ranges, strconv.Itoa(first)), 0
		case !fits && first != 0:
			ranges, first = append(ranges, fmt.Sprintf("%d-%d", first, code-1)), 0
		}
	}
	return ranges
}

func changeAlgorithm(_ context.Context, _ *dialect.Request, b *balancer, q schema.LoadBalancerAlgorithm) (err error) {
	b.Algorithm, err = algorithmNamed("type", q.Type)
	return err
}

func changeType(
	_ context.Context,
	r *dialect.Request,
	b *balancer,
	q schema.LoadBalancerActionChangeTypeRequest,
) (err error) {
	if b.Type, err = findType(q.LoadBalancerType); err != nil {
		return err
	}
	if size := b.typeOf(r); len(b.record.Services) > size.MaxServices || len(b.Targets) > size.MaxTargets {
		return &cloud.Error{Code: unfitType, Message: "load balancer type does not fit: it has too few services or targets"}
	}
	return nil
}

func changeProtection(_ context.Context, _ *dialect.Request, b *balancer, q protectionRequest) error {
	if q.Delete != nil {
		b.DeletionProtection = *q.Delete
	}
	return nil
}

func changeDNSPtr(_ context.Context, _ *dialect.Request, b *balancer, q dnsPtrRequest) error {
	if q.IP != b.Address && q.IP != b.ipv6() {
		return dialect.Invalid("ip", "%q is no public address of the load balancer", q.IP)
	}
	return q.putInto(&b.record.DNSPtr)
}

type (
	portRequest   = schema.LoadBalancerDeleteServiceRequest
	attachRequest = schema.LoadBalancerActionAttachToNetworkRequest
	detachRequest = schema.LoadBalancerActionDetachFromNetworkRequest
)

func attachToNetwork(ctx context.Context, r *dialect.Request, b *balancer, q attachRequest) error {
	n, err := networks.readSerial(ctx, r, q.Network)
	if err == nil {
		err = b.checkUnlocked(ctx, r)
	}
	if err != nil {
		return err
	}
	if b.NetworkID != "" {
		return &cloud.Error{Code: alreadyAttached, Message: "load balancer is already attached to a network"}
	}
	b.about = append(b.about, schema.ActionResourceReference{ID: n.Serial, Type: networks.one})
	b.NetworkID, b.PrivateAddress = n.ID, api.ValueOf(q.IP)
	if q.IP == nil {
		b.PrivateAddress, err = freeAddressIn(ctx, r, n, api.ValueOf(q.IPRange))
	}
	return err
}

// detachFromNetwork takes the targets out, too, that are reached by their private addresses.
func detachFromNetwork(ctx context.Context, r *dialect.Request, b *balancer, q detachRequest) error {
	network, err := r.ResourceID(ctx, api.ResourceNetwork, q.Network)
	if err == nil {
		err = b.checkUnlocked(ctx, r)
	}
	if err != nil {
		return err
	}
	if b.NetworkID == "" || b.NetworkID != network {
		return &cloud.Error{Code: notAttached, Message: "load balancer is not attached to the network"}
	}
	instances, err := r.Instances(ctx)
	if err != nil {
		return err
	}
	b.Targets = slices.DeleteFunc(slices.Clone(b.Targets), func(t api.Target) bool {
		return slices.Contains(b.record.PrivateTargets, instances[t.InstanceID].Serial)
	})
	b.record.PrivateTargets = nil
	b.record.Selectors = slices.DeleteFunc(b.record.Selectors, func(s targetSelector) bool { return s.Private })
	b.about = append(b.about, schema.ActionResourceReference{ID: q.Network, Type: networks.one})
	b.NetworkID, b.PrivateAddress = "", ""
	return nil
}

// setPublicInterface gives the change of an action that switches the public interface on or off.
func setPublicInterface(enabled bool) func(context.Context, *dialect.Request, *balancer, struct{}) error {
	return func(ctx context.Context, r *dialect.Request, b *balancer, _ struct{}) error {
		b.Scheme = api.SchemePublic
		if enabled {
			return nil
		}
		b.Scheme = api.SchemeInternal
		servers, err := b.serverTargets(ctx, r)
		switch {
		case err != nil:
			return err
		case b.NetworkID == "":
			return &cloud.Error{Code: notAttached, Message: "load balancer is not attached to a network"}
		case slices.ContainsFunc(b.record.Selectors, func(s targetSelector) bool { return !s.Private }),
			slices.ContainsFunc(servers, func(serial int64) bool { return !slices.Contains(b.record.PrivateTargets, serial) }):
			return &cloud.Error{Code: publicTargets, Message: "load balancer has targets that use the public IP"}
		}
		return nil
	}
}
