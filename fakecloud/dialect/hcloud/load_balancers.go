package hcloud

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/hetznercloud/hcloud-go/v2/hcloud/schema"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
	"github.com/ccmlab/ccmlab/fakecloud/cloud"
	"github.com/ccmlab/ccmlab/fakecloud/dialect"
)

// record is what a balancer was told and this cloud does not have. Its form is kept with the
// balancer, so that fields are only ever added.
type record struct {
	Version  int    `json:"version"`
	Location string `json:"location"`
	// Services are those of the listeners, by their listen ports.
	Services map[int]schema.LoadBalancerService `json:"services,omitempty"`
	// PrivateTargets are the servers that are reached by their private addresses.
	PrivateTargets []int64           `json:"privateTargets,omitempty"`
	DNSPtr         map[string]string `json:"dnsPtr,omitempty"`
}

const recordVersion = 1

// balancer is a load balancer as both sides see it.
type balancer struct {
	*api.LoadBalancer
	record record
	update api.LoadBalancerUpdate // what an action is about to change, beside the record
}

func toBalancer(lb *api.LoadBalancer) (*balancer, error) {
	b := &balancer{LoadBalancer: lb}
	if err := dialect.ReadRecord(name, lb.Records, &b.record); err != nil {
		return nil, err
	}
	b.record.Services = b.mergeServices()
	return b, nil
}

// records gives the balancer's records, with this dialect's put in.
func (b *balancer) records() api.Records {
	b.record.Version = recordVersion
	return dialect.WithRecord(name, b.Records, b.record)
}

// balancerTypes are Hetzner's names of the cloud's sizes of balancers, which have the limits in
// Hetzner's price list.
var balancerTypes = []struct {
	name   string
	native cloud.LoadBalancerType
}{
	{"lb11", cloud.SmallBalancer}, {"lb21", cloud.MediumBalancer}, {"lb31", cloud.LargeBalancer},
}

// toType gives the type of a number in balancerTypes.
func toType(at int) schema.LoadBalancerType {
	t := schema.LoadBalancerType{
		ID: int64(at + 1), Name: balancerTypes[at].name, Description: strings.ToUpper(balancerTypes[at].name),
	}
	for _, size := range cloud.LoadBalancerSizes {
		if size.Type == balancerTypes[at].native {
			t.MaxServices, t.MaxTargets, t.MaxConnections = size.Listeners, size.Targets, size.Connections
		}
	}
	return t
}

type balancerTypeList struct {
	schema.LoadBalancerTypeListResponse
	Meta schema.Meta `json:"meta"`
}

func listLoadBalancerTypes(_ context.Context, r *dialect.Request, _ struct{}) (*dialect.Answer, error) {
	name := r.HTTP.URL.Query().Get("name")
	var all []schema.LoadBalancerType
	for at, t := range balancerTypes {
		if name == "" || name == t.name {
			all = append(all, toType(at))
		}
	}
	var list balancerTypeList
	var err error
	list.LoadBalancerTypes, list.Meta, err = page(r, all)
	return dialect.OK(list), err
}

func getLoadBalancerType(_ context.Context, r *dialect.Request, _ struct{}) (*dialect.Answer, error) {
	id, err := r.Serial()
	if err != nil {
		return nil, err
	}
	if id > int64(len(balancerTypes)) {
		return nil, dialect.NotFound("load balancer type with ID %d not found", id)
	}
	return dialect.OK(schema.LoadBalancerTypeGetResponse{LoadBalancerType: toType(int(id - 1))}), nil
}

// findType finds the native type of a balancer's type, which is given by its ID or name.
func findType(of schema.IDOrName) (api.LoadBalancerType, error) {
	for at, t := range balancerTypes {
		if of.ID == int64(at+1) || of.ID == 0 && of.Name == t.name {
			return api.LoadBalancerType(t.native), nil
		}
	}
	return "", dialect.Invalid("load_balancer_type", "is none that there is")
}

// typeOf is the balancer's type; the largest for one without limits, which was made otherwise.
func (b *balancer) typeOf() schema.LoadBalancerType {
	for at, t := range balancerTypes {
		if t.native == cloud.LoadBalancerType(b.Type) {
			return toType(at)
		}
	}
	return toType(len(balancerTypes) - 1)
}

type balancerList struct {
	schema.LoadBalancerListResponse
	Meta schema.Meta `json:"meta"`
}

func listLoadBalancers(ctx context.Context, r *dialect.Request, _ struct{}) (*dialect.Answer, error) {
	query := r.HTTP.URL.Query()
	selector, err := parseSelector(query.Get("label_selector"))
	if err != nil {
		return nil, err
	}
	found, err := r.ListLoadBalancers(ctx, client.LoadBalancerFilter{Name: query.Get("name")})
	if err != nil {
		return nil, err
	}
	found = slices.DeleteFunc(found, func(lb api.LoadBalancer) bool {
		return isDeleted(lb) || !selector.matches(lb.Tags)
	})
	shown, meta, err := page(r, found)
	if err != nil {
		return nil, err
	}
	list := balancerList{Meta: meta}
	for _, lb := range shown {
		one, err := toLoadBalancer(ctx, r, &lb)
		if err != nil {
			return nil, err
		}
		list.LoadBalancers = append(list.LoadBalancers, one)
	}
	return dialect.OK(list), nil
}

func getLoadBalancer(ctx context.Context, r *dialect.Request, _ struct{}) (*dialect.Answer, error) {
	b, err := readBalancer(ctx, r)
	if err != nil {
		return nil, err
	}
	lb, err := toLoadBalancer(ctx, r, b.LoadBalancer)
	return dialect.OK(schema.LoadBalancerGetResponse{LoadBalancer: lb}), err
}

// readBalancer reads the balancer of the call's path.
func readBalancer(ctx context.Context, r *dialect.Request) (*balancer, error) {
	serial, err := r.Serial()
	if err != nil {
		return nil, err
	}
	id, err := r.ResourceID(ctx, cloud.LoadBalancerResource, serial)
	if err != nil {
		return nil, err
	}
	lb, err := r.GetLoadBalancer(ctx, id)
	if err != nil {
		return nil, err
	}
	if isDeleted(*lb) {
		return nil, dialect.NotFound("load balancer with ID %d not found", serial)
	}
	return toBalancer(lb)
}

// isDeleted tells whether a balancer is gone as Hetzner's are, at once.
func isDeleted(lb api.LoadBalancer) bool { return lb.State == api.LoadBalancerDeleting }

func toLoadBalancer(ctx context.Context, r *dialect.Request, lb *api.LoadBalancer) (schema.LoadBalancer, error) {
	b, err := toBalancer(lb)
	if err != nil {
		return schema.LoadBalancer{}, err
	}
	instances, err := r.Instances(ctx)
	if err != nil {
		return schema.LoadBalancer{}, err
	}
	location := cmp.Or(b.record.Location, r.Cloud.Zones()[0].Name)
	out := schema.LoadBalancer{
		ID: lb.Serial, Name: lb.Name, Location: locationNamed(r, location), LoadBalancerType: b.typeOf(),
		Labels: lb.Tags, Created: lb.CreatedAt, PrivateNet: []schema.LoadBalancerPrivateNet{},
		Services: b.services(), Targets: []schema.LoadBalancerTarget{},
		Algorithm: schema.LoadBalancerAlgorithm{Type: algorithmNames[lb.Algorithm]},
	}
	out.Protection.Delete = lb.DeletionProtection
	out.PublicNet.Enabled = lb.Scheme == api.SchemePublic
	out.PublicNet.IPv4 = schema.LoadBalancerPublicNetIPv4{IP: lb.Address, DNSPtr: b.record.DNSPtr[lb.Address]}
	if lb.IPv6Address != nil {
		out.PublicNet.IPv6 = schema.LoadBalancerPublicNetIPv6{
			IP: *lb.IPv6Address, DNSPtr: b.record.DNSPtr[*lb.IPv6Address],
		}
	}
	if lb.NetworkID != nil {
		n, err := r.Cloud.Networks.Get(ctx, r.Project, *lb.NetworkID)
		if err != nil {
			return out, err
		}
		out.PrivateNet = append(out.PrivateNet, schema.LoadBalancerPrivateNet{Network: n.Serial, IP: *lb.PrivateAddress})
	}
	health, err := healthByInstance(ctx, r, lb.ID)
	if err != nil {
		return out, err
	}
	for _, t := range lb.Targets {
		out.Targets = append(out.Targets, b.toTarget(instances[t.InstanceID], health[t.InstanceID]))
	}
	return out, nil
}

// healthByInstance reads the health of a balancer's targets from the domain: Hetzner's answers
// have it always.
func healthByInstance(ctx context.Context, r *dialect.Request, id string) (map[string]cloud.TargetHealth, error) {
	targets, err := r.Cloud.LoadBalancerHealth(ctx, r.Project, id)
	var refused *cloud.Error
	if errors.As(err, &refused) && refused.Code == cloud.NotFound {
		err = nil // It went meanwhile.
	}
	health := map[string]cloud.TargetHealth{}
	for _, t := range targets {
		health[t.Target] = t
	}
	return health, err
}

func (b *balancer) toTarget(in cloud.Instance, health cloud.TargetHealth) schema.LoadBalancerTarget {
	t := schema.LoadBalancerTarget{
		Type: "server", Server: &schema.LoadBalancerTargetServer{ID: in.Serial},
		UsePrivateIP: slices.Contains(b.record.PrivateTargets, in.Serial),
		HealthStatus: []schema.LoadBalancerTargetHealthStatus{},
	}
	for _, l := range b.Listeners {
		status := health.Health
		for _, h := range health.Listeners {
			if h.Port == l.Port {
				status = h.Health
			}
		}
		t.HealthStatus = append(t.HealthStatus, schema.LoadBalancerTargetHealthStatus{
			ListenPort: l.Port, Status: string(cmp.Or(status, cloud.Unknown)),
		})
	}
	return t
}

// algorithmNames are Hetzner's words for algorithms.
var algorithmNames = map[api.LoadBalancerAlgorithm]string{
	api.AlgorithmRoundRobin:       "round_robin",
	api.AlgorithmLeastConnections: "least_connections",
}

func algorithmNamed(name string) (api.LoadBalancerAlgorithm, error) {
	for algorithm, its := range algorithmNames {
		if its == name {
			return algorithm, nil
		}
	}
	return "", dialect.Invalid("type", "must be round_robin or least_connections")
}

// createRequest is what is read of a balancer that is created. The CCM creates it empty.
type createRequest struct {
	Name             string            `json:"name"`
	LoadBalancerType schema.IDOrName   `json:"load_balancer_type"`
	Location         string            `json:"location,omitempty"`
	NetworkZone      string            `json:"network_zone,omitempty"`
	Labels           map[string]string `json:"labels"`
	Algorithm        *struct {
		Type string `json:"type"`
	} `json:"algorithm,omitempty"`
	PublicInterface *bool `json:"public_interface,omitempty"`
}

func createLoadBalancer(ctx context.Context, r *dialect.Request, q createRequest) (*dialect.Answer, error) {
	location, err := q.chooseLocation(r)
	if err != nil {
		return nil, err
	}
	kind, err := findType(q.LoadBalancerType)
	if err != nil {
		return nil, err
	}
	create := api.LoadBalancerCreate{Name: q.Name, Type: &kind, Listeners: api.Listeners{}}
	if q.Labels != nil {
		create.Tags = (*api.Tags)(&q.Labels)
	}
	if q.Algorithm != nil {
		algorithm, err := algorithmNamed(q.Algorithm.Type)
		if err != nil {
			return nil, err
		}
		create.Algorithm = &algorithm
	}
	if q.PublicInterface != nil {
		create.Scheme = schemeOf(*q.PublicInterface)
	}
	b := &balancer{LoadBalancer: &api.LoadBalancer{}, record: record{Location: location}}
	create.Records = b.records()
	var operation string
	lb, err := r.CreateLoadBalancer(client.OperationInto(ctx, &operation), create)
	if err != nil {
		return nil, err
	}
	action, err := actionOf(ctx, r, "create_load_balancer", lb, operation)
	if err != nil {
		return nil, err
	}
	out, err := toLoadBalancer(ctx, r, lb)
	return &dialect.Answer{Status: http.StatusCreated, Body: schema.LoadBalancerCreateResponse{
		LoadBalancer: out, Action: action,
	}}, err
}

// chooseLocation gives the location asked for, or the first of the network zone asked for.
func (q createRequest) chooseLocation(r *dialect.Request) (string, error) {
	if (q.Location == "") == (q.NetworkZone == "") {
		return "", dialect.Invalid("location", "or network_zone must be given, and not both")
	}
	for _, z := range r.Cloud.Zones() {
		if q.Location == z.Name || q.NetworkZone == z.Region {
			return z.Name, nil
		}
	}
	if q.Location != "" {
		return "", dialect.Invalid("location", "%q is none that there is", q.Location)
	}
	return "", dialect.Invalid("network_zone", "%q is none that there is", q.NetworkZone)
}

// actionOf makes the action of a change: of its operation, or a finished one if it changed
// nothing that takes time.
func actionOf(
	ctx context.Context,
	r *dialect.Request,
	command string,
	lb *api.LoadBalancer,
	operation string,
) (schema.Action, error) {
	if operation == "" {
		return finishedAction(command, lb.Serial, time.Now().UTC()), nil
	}
	op, err := r.Cloud.GetOperation(ctx, r.Project, operation)
	if err != nil {
		return schema.Action{}, err
	}
	a := toAction(op.Serial, string(op.Type), string(op.State), op.Error, op.CreatedAt, op.EndedAt)
	a.Command = command
	a.Resources = append(a.Resources, schema.ActionResourceReference{ID: lb.Serial, Type: "load_balancer"})
	return a, nil
}

type updateRequest struct {
	Name   *string            `json:"name,omitempty"`
	Labels *map[string]string `json:"labels,omitempty"`
}

func updateLoadBalancer(ctx context.Context, r *dialect.Request, q updateRequest) (*dialect.Answer, error) {
	b, err := readBalancer(ctx, r)
	if err != nil {
		return nil, err
	}
	if q.Name != nil || q.Labels != nil {
		u := api.LoadBalancerUpdate{Name: q.Name, Tags: (*api.Tags)(q.Labels)}
		if b.LoadBalancer, err = r.UpdateLoadBalancer(ctx, b.ID, u); err != nil {
			return nil, err
		}
	}
	lb, err := toLoadBalancer(ctx, r, b.LoadBalancer)
	return dialect.OK(schema.LoadBalancerUpdateResponse{LoadBalancer: lb}), err
}

func deleteLoadBalancer(ctx context.Context, r *dialect.Request, _ struct{}) (*dialect.Answer, error) {
	b, err := readBalancer(ctx, r)
	if err != nil {
		return nil, err
	}
	if _, err := r.DeleteLoadBalancer(ctx, b.ID); err != nil {
		return nil, err
	}
	return &dialect.Answer{Status: http.StatusNoContent}, nil
}
