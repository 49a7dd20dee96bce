package brightbox

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
	"github.com/ccmlab/ccmlab/fakecloud/dialect"
)

// balancerStatuses are Brightbox's words for the states of balancers. One that cannot be built is not "failed",
// which is final there: this cloud keeps trying.
var balancerStatuses = map[api.LoadBalancerState]string{
	api.LoadBalancerProvisioning: "creating",
	api.LoadBalancerActive:       "active",
	api.LoadBalancerUpdating:     "active",
	api.LoadBalancerError:        "creating",
	api.LoadBalancerDeleting:     "deleting",
}

// algorithms are this cloud's for Brightbox's policies.
var algorithms = map[string]api.LoadBalancerAlgorithm{
	"least-connections": api.AlgorithmLeastConnections,
	"round-robin":       api.AlgorithmRoundRobin,
	"source-address":    api.AlgorithmSourceHash,
}

const (
	defaultPolicy       = "least-connections"
	defaultTimeout      = 50_000 // of a listener, in milliseconds
	defaultInterval     = 5000   // of a health check, in milliseconds, as its time-out
	defaultThreshold    = 3
	bufferSize          = 4096
	defaultMinimumTLS   = "TLSv1.2"
	expectedCodes       = "200-399"
	millisecondsASecond = 1000
)

type loadBalancer struct {
	resource
	Locked            bool              `json:"locked"`
	HTTPSRedirect     bool              `json:"https_redirect"`
	SSLMinimumVersion string            `json:"ssl_minimum_version"`
	BufferSize        int               `json:"buffer_size"`
	Policy            string            `json:"policy"`
	Listeners         []listener        `json:"listeners"`
	HealthCheck       healthCheck       `json:"healthcheck"`
	Certificate       *struct{}         `json:"certificate"`
	ACME              acme              `json:"acme"`
	Nodes             []serverReference `json:"nodes"`
	CloudIPs          []cloudIP         `json:"cloud_ips"`
}

// acme is the certificates' status: there are none.
type acme struct {
	Certificate *struct{}  `json:"certificate"`
	Domains     []struct{} `json:"domains"`
}

type listener struct {
	Protocol      string  `json:"protocol"`
	In            int     `json:"in"`
	Out           int     `json:"out"`
	Timeout       int     `json:"timeout"` // in milliseconds
	ProxyProtocol *string `json:"proxy_protocol"`
}

// healthCheck has times in milliseconds.
type healthCheck struct {
	Type          string `json:"type"`
	Port          int    `json:"port"`
	Request       string `json:"request"`
	Interval      int    `json:"interval"`
	Timeout       int    `json:"timeout"`
	ThresholdUp   int    `json:"threshold_up"`
	ThresholdDown int    `json:"threshold_down"`
}

// balancerRequest is what is read of a balancer that is created or changed.
type balancerRequest struct {
	Name              *string      `json:"name,omitempty"`
	Nodes             *[]node      `json:"nodes,omitempty"`
	Policy            *string      `json:"policy,omitempty"`
	Listeners         *[]listener  `json:"listeners,omitempty"`
	HealthCheck       *healthCheck `json:"healthcheck,omitempty"`
	Domains           *[]string    `json:"domains,omitempty"`
	HTTPSRedirect     *bool        `json:"https_redirect,omitempty"`
	SSLMinimumVersion *string      `json:"ssl_minimum_version,omitempty"`
}

type node struct {
	Node string `json:"node"`
}

// record is what a balancer was told and this cloud has otherwise, or not at all. Its form is kept with the
// balancer, so that fields are only ever added.
type record struct {
	Version           int         `json:"version"`
	Nodes             []string    `json:"nodes"` // IDs of servers, in the order in which they were given
	Listeners         []listener  `json:"listeners"`
	HealthCheck       healthCheck `json:"healthcheck"`
	HTTPSRedirect     bool        `json:"httpsRedirect"`
	SSLMinimumVersion string      `json:"sslMinimumVersion"`
}

const recordVersion = 1

func toLoadBalancer(ctx context.Context, r *dialect.Request, lb *api.LoadBalancer) (out loadBalancer, err error) {
	var rec record
	if err := dialect.ReadRecord(name, lb.Records, &rec); err != nil {
		return out, err
	}
	instances, err := r.Instances(ctx)
	if err != nil {
		return out, err
	}
	addresses, err := r.Addresses(ctx)
	out = loadBalancer{
		resource:   loadBalancerKind.newResource(r, lb.Serial, dialect.NameOf(lb.Name, lb.Tags)),
		BufferSize: bufferSize, HTTPSRedirect: rec.HTTPSRedirect, Policy: defaultPolicy,
		SSLMinimumVersion: cmp.Or(rec.SSLMinimumVersion, defaultMinimumTLS),
		Listeners:         rec.showListeners(lb.Listeners), HealthCheck: rec.showHealthCheck(lb.HealthCheck),
		ACME: acme{Domains: []struct{}{}}, CloudIPs: []cloudIP{},
	}
	out.CreatedAt, out.Status = &lb.CreatedAt, balancerStatuses[lb.State]
	for policy, algorithm := range algorithms {
		if algorithm == lb.Algorithm {
			out.Policy = policy
		}
	}
	ids := make([]string, len(lb.Targets))
	for i, t := range lb.Targets {
		ids[i] = t.InstanceID
	}
	out.Nodes = referToServers(r, instances, ids)
	slices.SortStableFunc(out.Nodes, func(a, b serverReference) int {
		return cmp.Compare(slices.Index(rec.Nodes, a.ID), slices.Index(rec.Nodes, b.ID))
	})
	for _, a := range addresses {
		if api.ValueOf(a.Holder).ID == lb.ID {
			out.CloudIPs = append(out.CloudIPs, toCloudIP(r, a.ReservedAddress))
		}
	}
	return out, err
}

// showListeners gives listeners as they were told, where they are still so.
func (rec record) showListeners(native []api.Listener) []listener {
	out := []listener{}
	for _, l := range native {
		shown := listener{Protocol: string(l.Protocol), In: l.Port, Out: l.TargetPort, Timeout: defaultTimeout}
		if l.ProxyProtocol != "" {
			shown.ProxyProtocol = new(string(l.ProxyProtocol))
		}
		for _, told := range rec.Listeners {
			if told.Protocol == shown.Protocol && told.In == shown.In && told.Out == shown.Out {
				shown.Timeout, shown.ProxyProtocol = told.Timeout, told.ProxyProtocol
			}
		}
		out = append(out, shown)
	}
	return out
}

// showHealthCheck gives the health check as it was told, where it is still so.
func (rec record) showHealthCheck(native *api.HealthCheck) healthCheck {
	switch {
	case native == nil:
		return healthCheck{Type: "tcp"}
	case rec.HealthCheck.toNative() == *native:
		return rec.HealthCheck
	}
	return healthCheck{
		Type: string(native.Protocol), Port: native.Port, Request: cmp.Or(native.Path, "/"),
		Interval: int(native.IntervalSeconds) * millisecondsASecond, Timeout: int(native.TimeoutSeconds) * millisecondsASecond,
		ThresholdUp: native.HealthyThreshold, ThresholdDown: native.UnhealthyThreshold,
	}
}

// withDefaults fills in what is left out of a health check.
func (h healthCheck) withDefaults() healthCheck {
	h.Request = cmp.Or(h.Request, "/")
	h.Interval, h.Timeout = cmp.Or(h.Interval, defaultInterval), cmp.Or(h.Timeout, defaultInterval)
	h.ThresholdUp = cmp.Or(h.ThresholdUp, defaultThreshold)
	h.ThresholdDown = cmp.Or(h.ThresholdDown, defaultThreshold)
	return h
}

func (h healthCheck) toNative() api.HealthCheck {
	out := dialect.HealthCheck(h.Type, h.Port, h.Interval, h.Timeout, h.ThresholdUp, h.ThresholdDown)
	if out.Protocol == api.HealthCheckHTTP {
		out.Path, out.ExpectedCodes = h.Request, expectedCodes
	}
	return out
}

func listLoadBalancers(ctx context.Context, r *dialect.Request, _ struct{}) ([]loadBalancer, error) {
	all, err := r.ListLoadBalancers(ctx, client.LoadBalancerFilter{})
	if err != nil {
		return nil, err
	}
	return dialect.ShowEach(ctx, r, all, toLoadBalancer)
}

// readBalancer reads the balancer in the call's path.
func readBalancer(ctx context.Context, r *dialect.Request) (*api.LoadBalancer, error) {
	return dialect.Find(ctx, r, loadBalancerKind.Kind, dialect.InPath(r), r.GetLoadBalancer)
}

// getLoadBalancer answers with a balancer that was deleted, too, while this cloud knows of it.
func getLoadBalancer(ctx context.Context, r *dialect.Request, _ struct{}) (any, error) {
	lb, err := readBalancer(ctx, r)
	if err == nil {
		return toLoadBalancer(ctx, r, lb)
	}
	serial, invalid := loadBalancerKind.Serial(dialect.InPath(r))
	if invalid != nil {
		return nil, err
	}
	deleted, unknown := r.Cloud.GetDeletedLoadBalancer(ctx, r.Project, serial)
	if unknown != nil {
		return nil, err
	}
	out := loadBalancer{
		resource:   loadBalancerKind.newResource(r, serial, dialect.NameOf(deleted.Name, deleted.Tags)),
		BufferSize: bufferSize, Policy: defaultPolicy, SSLMinimumVersion: defaultMinimumTLS,
		Listeners: []listener{}, HealthCheck: healthCheck{Type: "tcp"},
		ACME: acme{Domains: []struct{}{}}, Nodes: []serverReference{}, CloudIPs: []cloudIP{},
	}
	out.Status, out.CreatedAt, out.DeletedAt = "deleted", &deleted.CreatedAt, &deleted.UpdatedAt
	return out, nil
}

func createLoadBalancer(ctx context.Context, r *dialect.Request, body balancerRequest) (*api.LoadBalancer, error) {
	lb := &api.LoadBalancer{Metadata: api.Metadata{Tags: api.Tags{}}, Algorithm: algorithms[defaultPolicy]}
	u, err := body.toUpdate(ctx, r, lb)
	if err != nil {
		return nil, err
	}
	create := api.LoadBalancerCreate{
		Name: dialect.NewName("lba-"), Algorithm: *cmp.Or(u.Algorithm, &lb.Algorithm), Tags: api.ValueOf(u.Tags),
		IdleTimeoutSeconds: api.ValueOf(u.IdleTimeoutSeconds), HealthCheck: u.HealthCheck, Records: u.Records,
		Targets: api.ValueOf(u.Targets), Listeners: api.Listeners{},
	}
	if u.Listeners != nil {
		create.Listeners = *u.Listeners
	}
	return r.CreateLoadBalancer(ctx, create)
}

func updateLoadBalancer(ctx context.Context, r *dialect.Request, body balancerRequest) (*api.LoadBalancer, error) {
	lb, err := readBalancer(ctx, r)
	if err != nil {
		return nil, err
	}
	u, err := body.toUpdate(ctx, r, lb)
	if err != nil {
		return nil, err
	}
	return r.UpdateLoadBalancer(ctx, lb.ID, u)
}

func deleteLoadBalancer(ctx context.Context, r *dialect.Request, _ struct{}) (*api.LoadBalancer, error) {
	lb, err := readBalancer(ctx, r)
	if err != nil {
		return nil, err
	}
	return r.DeleteLoadBalancer(ctx, lb.ID)
}

// toUpdate gives the native change of a balancer that a request asks for.
func (q balancerRequest) toUpdate(
	ctx context.Context,
	r *dialect.Request,
	lb *api.LoadBalancer,
) (u api.LoadBalancerUpdate, err error) {
	var rec record
	if err := dialect.ReadRecord(name, lb.Records, &rec); err != nil {
		return u, err
	}
	rec.Version = recordVersion
	if q.HTTPSRedirect != nil {
		rec.HTTPSRedirect = *q.HTTPSRedirect
	}
	if q.SSLMinimumVersion != nil {
		rec.SSLMinimumVersion = *q.SSLMinimumVersion
	}
	if q.Name != nil {
		u.Tags = new(maps.Clone(lb.Tags))
		(*u.Tags)[dialect.TagName] = *q.Name
	}
	if q.Policy != nil {
		algorithm, known := algorithms[*q.Policy]
		if !known {
			return u, dialect.Invalid("policy", "%q is none: want least-connections, round-robin or source-address", *q.Policy)
		}
		u.Algorithm = &algorithm
	}
	if q.Listeners != nil {
		if err := rec.setListeners(*q.Listeners, &u); err != nil {
			return u, err
		}
	}
	if q.Nodes != nil {
		if err := rec.setNodes(ctx, r, *q.Nodes, &u); err != nil {
			return u, err
		}
	}
	if q.HealthCheck != nil {
		rec.HealthCheck = q.HealthCheck.withDefaults()
		u.HealthCheck = new(rec.HealthCheck.toNative())
	}
	u.Records = dialect.WithRecord(name, lb.Records, rec)
	return u, nil
}

// setListeners has the listeners in the record and in a change. This cloud has one idle time-out for all of a
// balancer: the longest.
func (rec *record) setListeners(listeners []listener, u *api.LoadBalancerUpdate) error {
	rec.Listeners = slices.Clone(listeners)
	native, idle := api.Listeners{}, api.Seconds(0)
	for i := range rec.Listeners {
		l := &rec.Listeners[i]
		l.Timeout = cmp.Or(l.Timeout, defaultTimeout)
		idle = max(idle, dialect.Seconds(l.Timeout))
		to := api.Listener{Protocol: api.Protocol(l.Protocol), Port: l.In, TargetPort: l.Out}
		switch l.Protocol {
		case "http", "tcp":
		case "https":
			return dialect.Invalid("listeners", "of protocol https need certificates, which this imitation does not have")
		default:
			return dialect.Invalid("listeners", "have the protocol %q: want http, tcp or https", l.Protocol)
		}
		if l.ProxyProtocol != nil {
			version, _, _ := strings.Cut(*l.ProxyProtocol, "-") // What v2-ssl says beside v2 is of https.
			to.ProxyProtocol = api.ProxyProtocol(version)
		}
		native = append(native, to)
	}
	u.Listeners, u.IdleTimeoutSeconds = &native, &idle
	return nil
}

func (rec *record) setNodes(ctx context.Context, r *dialect.Request, nodes []node, u *api.LoadBalancerUpdate) error {
	rec.Nodes = nil
	targets := api.Targets{}
	for _, n := range nodes {
		id, err := serverKind.NativeID(ctx, r, n.Node)
		if err != nil {
			return dialect.Invalid("nodes", "%q is no server", n.Node)
		}
		rec.Nodes = append(rec.Nodes, n.Node)
		targets = append(targets, api.Target{InstanceID: id})
	}
	u.Targets = &targets
	return nil
}
