package hcloud

import (
	"cmp"
	"context"
	"encoding/json"
	"maps"
	"net/http"
	"slices"

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
		action, err := actionOf(ctx, r, name, operation, referTo(lb))
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
func toHealthCheck(h schema.LoadBalancerServiceHealthCheck) (*api.HealthCheck, error) {
	check := &api.HealthCheck{
		Protocol: api.HealthCheckProtocol(h.Protocol), Port: h.Port, IntervalSeconds: h.Interval,
		TimeoutSeconds: h.Timeout, HealthyThreshold: h.Retries, UnhealthyThreshold: h.Retries,
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
		return nil, dialect.Invalid("health_check.protocol", "must be tcp, http or https")
	}
	return check, nil
}
