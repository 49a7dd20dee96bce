package hcloud

import (
	"cmp"
	"context"
	"encoding/json"
	"maps"
	"net/http"
	"slices"
	"strings"

	"github.com/hetznercloud/hcloud-go/v2/hcloud/schema"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
	"github.com/ccmlab/ccmlab/fakecloud/cloud"
	"github.com/ccmlab/ccmlab/fakecloud/dialect"
)

// loadBalancerAction makes the call of an action on a balancer. change changes the balancer's
// record, and says in its update what else changes.
func loadBalancerAction[B any](
	name string,
	change func(ctx context.Context, r *dialect.Request, b *balancer, q B) error,
) dialect.Call {
	path := "/v1/load_balancers/{id}/actions/" + name
	return dialect.Handle(http.MethodPost, path, nil, func(ctx context.Context, r *dialect.Request, q B) (any, error) {
		lb, err := balancers.find(ctx, r, struct{}{})
		if err != nil {
			return nil, err
		}
		if lb.State == api.LoadBalancerProvisioning || lb.State == api.LoadBalancerUpdating {
			return nil, &cloud.Error{Code: locked, Message: "load balancer is locked: another action is running"}
		}
		b, err := toBalancer(lb)
		if err == nil {
			err = change(ctx, r, b, q)
		}
		if err != nil {
			return nil, err
		}
		b.update.Records = b.records()
		var operation string
		// Nobody else's change may get lost, as the update says all of the listeners and targets.
		ctx = client.IfMatch(ctx, b.Version)
		if lb, err = r.UpdateLoadBalancer(client.OperationInto(ctx, &operation), b.ID, b.update); err != nil {
			return nil, err
		}
		action, err := recordAction(ctx, r, name, operation, lb.ID, slices.Insert(b.others, 0, referTo(lb))...)
		return schema.ActionGetResponse{Action: action}, err
	}).Answers(http.StatusCreated)
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

// applyTo puts what was sent into a service. What is null, and a protocol and a port that are empty, stay.
func (q serviceRequest) applyTo(s *schema.LoadBalancerService) {
	protocol, port := s.Protocol, cmp.Or(q.DestinationPort, s.DestinationPort)
	if s.HTTP == nil && q.HTTP != nil {
		s.HTTP = new(defaultHTTP)
	}
	if s.HealthCheck == nil {
		s.HealthCheck = new(defaultCheck)
		s.HealthCheck.Port = port
	}
	if s.HealthCheck.HTTP == nil && q.HealthCheck != nil && q.HealthCheck.HTTP != nil {
		s.HealthCheck.HTTP = &schema.LoadBalancerServiceHealthCheckHTTP{Path: "/", StatusCodes: []string{"2??", "3??"}}
	}
	http, check, checkHTTP := s.HTTP, s.HealthCheck, s.HealthCheck.HTTP
	_ = json.Unmarshal(q.sent, s) // It was read before; a body that is empty says nothing.
	s.Protocol, s.DestinationPort = cmp.Or(s.Protocol, protocol), port
	s.HTTP, s.HealthCheck = cmp.Or(s.HTTP, http), cmp.Or(s.HealthCheck, check)
	s.HealthCheck.HTTP = cmp.Or(s.HealthCheck.HTTP, checkHTTP)
}

// mergeServices gives a service for each listener that there is, by port, with what the record has
// of it. A listener that was made otherwise is a service of protocol tcp.
func (b *balancer) mergeServices() map[int]schema.LoadBalancerService {
	services := map[int]schema.LoadBalancerService{}
	for _, l := range b.Listeners {
		if l.Protocol != api.ProtocolTCP {
			continue // Hetzner Cloud's have no UDP.
		}
		s, known := b.record.Services[l.Port]
		if !known {
			s = schema.LoadBalancerService{Protocol: "tcp"}
		}
		s.ListenPort, s.DestinationPort = l.Port, l.TargetPort
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

func addService(_ context.Context, _ *dialect.Request, b *balancer, q serviceRequest) error {
	if _, taken := b.record.Services[q.ListenPort]; taken {
		return &cloud.Error{Code: portUsed, Message: "source port is already used by another service"}
	}
	var s schema.LoadBalancerService
	q.applyTo(&s)
	b.record.Services[q.ListenPort] = s
	return b.updateServices()
}

func updateService(_ context.Context, _ *dialect.Request, b *balancer, q serviceRequest) error {
	s, there := b.record.Services[q.ListenPort]
	if !there {
		return dialect.NotFound("no service listens on port %d", q.ListenPort)
	}
	q.applyTo(&s)
	b.record.Services[q.ListenPort] = s
	return b.updateServices()
}

type portRequest struct {
	ListenPort int `json:"listen_port"`
}

func deleteService(_ context.Context, _ *dialect.Request, b *balancer, q portRequest) error {
	if _, there := b.record.Services[q.ListenPort]; !there {
		return dialect.NotFound("no service listens on port %d", q.ListenPort)
	}
	delete(b.record.Services, q.ListenPort)
	return b.updateServices()
}

// protocols are those of services. All carry tcp.
var protocols = []string{"tcp", "http", "https"}

// updateServices makes listeners of the services that the record has. What else others have set of
// a listener stays.
func (b *balancer) updateServices() (err error) {
	listeners, before := api.Listeners{}, map[int]api.Listener{}
	for _, l := range b.Listeners {
		if l.Protocol == api.ProtocolTCP {
			before[l.Port] = l
		} else {
			listeners = append(listeners, l)
		}
	}
	for _, s := range b.services() {
		if !slices.Contains(protocols, s.Protocol) {
			return dialect.Invalid("protocol", "must be tcp, http or https")
		}
		l := before[s.ListenPort]
		l.Protocol, l.Port, l.TargetPort = api.ProtocolTCP, s.ListenPort, s.DestinationPort
		if s.HealthCheck != nil { // One that was made otherwise keeps the balancer's own.
			if l.HealthCheck, err = toHealthCheck(*s.HealthCheck); err != nil {
				return err
			}
		}
		switch {
		case !s.Proxyprotocol:
			l.ProxyProtocol = ""
		case l.ProxyProtocol == "":
			l.ProxyProtocol = api.ProxyProtocolV1
		}
		listeners = append(listeners, l)
	}
	b.update.Listeners = &listeners
	return nil
}

// toHealthCheck makes a listener's health check of a service's.
func toHealthCheck(h schema.LoadBalancerServiceHealthCheck) (api.HealthCheck, error) {
	check := api.HealthCheck{
		Protocol: api.HealthCheckProtocol(h.Protocol), Port: h.Port, IntervalSeconds: api.Seconds(h.Interval),
		TimeoutSeconds: api.Seconds(h.Timeout), HealthyThreshold: h.Retries, UnhealthyThreshold: h.Retries,
	}
	switch h.Protocol {
	case "tcp":
	case "http", "https":
		check.Protocol, check.Path = api.HealthCheckHTTP, "/"
		if h.HTTP != nil {
			check.Path = cmp.Or(h.HTTP.Path, "/")
			check.ExpectedCodes = expectedCodes(h.HTTP.StatusCodes)
		}
	default:
		return check, dialect.Invalid("health_check.protocol", "must be tcp, http or https")
	}
	return check, nil
}

// expectedCodes makes ranges of statuses of patterns in which "?" stands for any digit, as in
// "2??".
func expectedCodes(patterns []string) string {
	var codes []string
	for _, p := range patterns {
		low, high := strings.ReplaceAll(p, "?", "0"), strings.ReplaceAll(p, "?", "9")
		if low != high {
			low += "-" + high
		}
		codes = append(codes, low)
	}
	return strings.Join(codes, ",")
}

type targetRequest struct {
	Type   string `json:"type"`
	Server *struct {
		ID int64 `json:"id"`
	} `json:"server,omitempty"`
	UsePrivateIP *bool `json:"use_private_ip,omitempty"`
}

// find gives the server of a target. Other types of targets are refused.
func (q targetRequest) find(ctx context.Context, r *dialect.Request) (*api.Instance, error) {
	if q.Type != "server" {
		return nil, &cloud.Error{Code: unsupported, Message: "this imitation has targets of type server only"}
	}
	if q.Server == nil {
		return nil, dialect.Invalid("server", "must be given")
	}
	return servers.readSerial(ctx, r, q.Server.ID)
}

func addTarget(ctx context.Context, r *dialect.Request, b *balancer, q targetRequest) error {
	in, err := q.find(ctx, r)
	if err != nil {
		return err
	}
	target := api.Target{InstanceID: in.ID}
	private := q.UsePrivateIP != nil && *q.UsePrivateIP
	hasPublic := slices.ContainsFunc(in.Addresses, func(a api.Address) bool { return a.Type == api.AddressExternal })
	switch {
	case slices.Contains(b.Targets, target):
		return &cloud.Error{Code: targetDefined, Message: "load balancer target is already defined"}
	case private && b.NetworkID == "":
		return &cloud.Error{Code: notAttached, Message: "load balancer is not attached to a network"}
	case !private && !hasPublic:
		return &cloud.Error{Code: missingIPv4, Message: "server " + in.Name + " has no public IPv4 address"}
	}
	b.others = append(b.others, schema.ActionResourceReference{ID: in.Serial, Type: servers.one})
	if private {
		b.record.PrivateTargets = append(b.record.PrivateTargets, in.Serial)
	}
	targets := append(slices.Clone(b.Targets), target)
	b.update.Targets = &targets
	return nil
}

func removeTarget(ctx context.Context, r *dialect.Request, b *balancer, q targetRequest) error {
	if q.Type != "server" || q.Server == nil {
		return dialect.Invalid("server", "must be given, with type server")
	}
	// A server that is gone may still be a target.
	id, err := r.ResourceID(ctx, api.ResourceInstance, q.Server.ID)
	if err != nil {
		return err
	}
	b.others = append(b.others, schema.ActionResourceReference{ID: q.Server.ID, Type: servers.one})
	target := api.Target{InstanceID: id}
	if !slices.Contains(b.Targets, target) {
		return dialect.NotFound("server %d is no target of the load balancer", q.Server.ID)
	}
	b.record.PrivateTargets = slices.DeleteFunc(b.record.PrivateTargets, func(s int64) bool { return s == q.Server.ID })
	targets := slices.DeleteFunc(slices.Clone(b.Targets), func(t api.Target) bool { return t == target })
	b.update.Targets = &targets
	return nil
}

func changeAlgorithm(
	_ context.Context,
	_ *dialect.Request,
	b *balancer,
	q schema.LoadBalancerActionChangeAlgorithmRequest,
) error {
	algorithm, err := algorithmNamed(q.Type)
	b.update.Algorithm = &algorithm
	return err
}

func changeType(
	_ context.Context,
	_ *dialect.Request,
	b *balancer,
	q schema.LoadBalancerActionChangeTypeRequest,
) error {
	kind, err := findType(q.LoadBalancerType)
	b.update.Type = &kind
	return err
}

func changeDNSPtr(
	_ context.Context,
	_ *dialect.Request,
	b *balancer,
	q schema.LoadBalancerActionChangeDNSPtrRequest,
) error {
	if q.IP != b.Address && (b.IPv6Address == "" || q.IP != b.IPv6Address) {
		return dialect.Invalid("ip", "%q is no public address of the load balancer", q.IP)
	}
	if b.record.DNSPtr == nil {
		b.record.DNSPtr = map[string]string{}
	}
	delete(b.record.DNSPtr, q.IP)
	if q.DNSPtr != nil {
		b.record.DNSPtr[q.IP] = *q.DNSPtr
	}
	return nil
}

type attachRequest struct {
	Network int64   `json:"network"`
	IP      *string `json:"ip,omitempty"`
	IPRange *string `json:"ip_range,omitempty"`
}

func attachToNetwork(ctx context.Context, r *dialect.Request, b *balancer, q attachRequest) error {
	n, err := networks.readSerial(ctx, r, q.Network)
	if err != nil {
		return err
	}
	if b.NetworkID != "" {
		return &cloud.Error{Code: alreadyAttached, Message: "load balancer is already attached to a network"}
	}
	if q.IPRange != nil && *q.IPRange != n.Cidr {
		return dialect.Invalid("ip_range", "%q is no subnet of the network: it has %s alone", *q.IPRange, n.Cidr)
	}
	b.others = append(b.others, referToNetwork(n))
	b.update.NetworkID, b.update.PrivateAddress = &n.ID, q.IP
	return nil
}

type detachRequest struct {
	Network int64 `json:"network"`
}

func detachFromNetwork(ctx context.Context, r *dialect.Request, b *balancer, q detachRequest) error {
	network, err := r.ResourceID(ctx, api.ResourceNetwork, q.Network)
	switch {
	case err != nil:
		return err
	case b.NetworkID == "" || b.NetworkID != network:
		return &cloud.Error{Code: notAttached, Message: "load balancer is not attached to the network"}
	case len(b.record.PrivateTargets) > 0:
		return &cloud.Error{Code: cloud.InUse, Message: "load balancer has targets with use_private_ip"}
	}
	b.others = append(b.others, schema.ActionResourceReference{ID: q.Network, Type: networks.one})
	b.update.NetworkID = new("")
	return nil
}

// schemeOf is the scheme of a balancer whose public interface is on, or off.
func schemeOf(public bool) *api.LoadBalancerScheme {
	if public {
		return new(api.SchemePublic)
	}
	return new(api.SchemeInternal)
}

// setPublicInterface gives the change of an action that switches the public interface on or off.
func setPublicInterface(enabled bool) func(context.Context, *dialect.Request, *balancer, struct{}) error {
	return func(_ context.Context, _ *dialect.Request, b *balancer, _ struct{}) error {
		b.update.Scheme = schemeOf(enabled)
		return nil
	}
}
