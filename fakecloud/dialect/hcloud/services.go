package hcloud

import (
	"cmp"
	"context"
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
	return dialect.Handle(http.MethodPost, path, nil, func(
		ctx context.Context,
		r *dialect.Request,
		q B,
	) (*dialect.Answer, error) {
		b, err := readBalancer(ctx, r)
		if err != nil {
			return nil, err
		}
		if b.State == api.LoadBalancerProvisioning || b.State == api.LoadBalancerUpdating {
			return nil, &cloud.Error{Code: locked, Message: "load balancer is locked: another action is running"}
		}
		if err := change(ctx, r, b, q); err != nil {
			return nil, err
		}
		b.update.Records = b.records()
		var operation string
		// Nobody else's change may get lost, as the update says all of the listeners and targets.
		ctx = client.IfMatch(ctx, b.Version)
		lb, err := r.UpdateLoadBalancer(client.OperationInto(ctx, &operation), b.ID, b.update)
		if err != nil {
			return nil, err
		}
		action, err := actionOf(ctx, r, name, lb, operation)
		return &dialect.Answer{Status: http.StatusCreated, Body: schema.ActionGetResponse{Action: action}}, err
	})
}

// serviceRequest is what is read of a service that is added or updated. All of it is kept; see
// Dialect.Limits for what is not acted on.
type serviceRequest struct {
	Protocol        string              `json:"protocol,omitempty"`
	ListenPort      int                 `json:"listen_port,omitempty"`
	DestinationPort int                 `json:"destination_port,omitempty"`
	Proxyprotocol   *bool               `json:"proxyprotocol,omitempty"`
	HTTP            *serviceHTTP        `json:"http,omitempty"`
	HealthCheck     *serviceHealthCheck `json:"health_check,omitempty"`
}

type serviceHTTP struct {
	CookieName     *string  `json:"cookie_name,omitempty"`
	CookieLifetime *int     `json:"cookie_lifetime,omitempty"`
	Certificates   *[]int64 `json:"certificates,omitempty"`
	RedirectHTTP   *bool    `json:"redirect_http,omitempty"`
	StickySessions *bool    `json:"sticky_sessions,omitempty"`
	TimeoutIdle    *int     `json:"timeout_idle,omitempty"`
}

type serviceHealthCheck struct {
	Protocol *string          `json:"protocol,omitempty"`
	Port     *int             `json:"port,omitempty"`
	Interval *int             `json:"interval,omitempty"`
	Timeout  *int             `json:"timeout,omitempty"`
	Retries  *int             `json:"retries,omitempty"`
	HTTP     *healthCheckHTTP `json:"http,omitempty"`
}

type healthCheckHTTP struct {
	Domain      *string   `json:"domain,omitempty"`
	Path        *string   `json:"path,omitempty"`
	Response    *string   `json:"response,omitempty"`
	StatusCodes *[]string `json:"status_codes,omitempty"`
	TLS         *bool     `json:"tls,omitempty"`
}

// set replaces a field if its new value was sent.
func set[T any](field, sent *T) {
	if sent != nil {
		*field = *sent
	}
}

// applyTo puts what was sent into a service.
func (q serviceRequest) applyTo(s *schema.LoadBalancerService) {
	s.ListenPort = q.ListenPort
	s.Protocol = cmp.Or(q.Protocol, s.Protocol)
	s.DestinationPort = cmp.Or(q.DestinationPort, s.DestinationPort)
	set(&s.Proxyprotocol, q.Proxyprotocol)
	if q.HTTP != nil {
		if s.HTTP == nil {
			s.HTTP = &schema.LoadBalancerServiceHTTP{CookieName: "HCLBSTICKY", CookieLifetime: 300}
		}
		set(&s.HTTP.CookieName, q.HTTP.CookieName)
		set(&s.HTTP.CookieLifetime, q.HTTP.CookieLifetime)
		set(&s.HTTP.Certificates, q.HTTP.Certificates)
		set(&s.HTTP.RedirectHTTP, q.HTTP.RedirectHTTP)
		set(&s.HTTP.StickySessions, q.HTTP.StickySessions)
		set(&s.HTTP.TimeoutIdle, q.HTTP.TimeoutIdle)
	}
	q.HealthCheck.applyTo(s)
}

// The defaults of a health check, as docs.hetzner.cloud has them.
const (
	defaultCheckInterval = 15
	defaultCheckTimeout  = 10
	defaultCheckRetries  = 3
)

func (q *serviceHealthCheck) applyTo(s *schema.LoadBalancerService) {
	if s.HealthCheck == nil {
		s.HealthCheck = &schema.LoadBalancerServiceHealthCheck{
			Protocol: "tcp", Port: s.DestinationPort, Interval: defaultCheckInterval, Timeout: defaultCheckTimeout,
			Retries: defaultCheckRetries,
		}
	}
	if q == nil {
		return
	}
	set(&s.HealthCheck.Protocol, q.Protocol)
	set(&s.HealthCheck.Port, q.Port)
	set(&s.HealthCheck.Interval, q.Interval)
	set(&s.HealthCheck.Timeout, q.Timeout)
	set(&s.HealthCheck.Retries, q.Retries)
	if q.HTTP == nil {
		return
	}
	if s.HealthCheck.HTTP == nil {
		s.HealthCheck.HTTP = &schema.LoadBalancerServiceHealthCheckHTTP{Path: "/", StatusCodes: []string{"2??", "3??"}}
	}
	set(&s.HealthCheck.HTTP.Domain, q.HTTP.Domain)
	set(&s.HealthCheck.HTTP.Path, q.HTTP.Path)
	set(&s.HealthCheck.HTTP.Response, q.HTTP.Response)
	set(&s.HealthCheck.HTTP.StatusCodes, q.HTTP.StatusCodes)
	set(&s.HealthCheck.HTTP.TLS, q.HTTP.TLS)
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
