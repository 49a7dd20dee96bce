package hcloud

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"

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
	update api.LoadBalancerUpdate           // what an action is about to change, beside the record
	others []schema.ActionResourceReference // what else the action is about
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

// balancerType is Hetzner's name of a size of balancers of this cloud, which have the limits in Hetzner's price list.
type balancerType struct {
	id     int64
	name   string
	native cloud.LoadBalancerType
}

var allBalancerTypes = []balancerType{
	{1, "lb11", api.LoadBalancerSmall}, {2, "lb21", api.LoadBalancerMedium}, {3, "lb31", api.LoadBalancerLarge},
}

var balancerTypes = collection[balancerType, schema.LoadBalancerType]{
	one: "load_balancer_type",
	list: func(_ context.Context, _ *dialect.Request, name string) (all []balancerType, _ error) {
		for _, t := range allBalancerTypes {
			if name == "" || name == t.name {
				all = append(all, t)
			}
		}
		return all, nil
	},
	read: func(_ context.Context, _ *dialect.Request, id int64) (*balancerType, error) {
		if id > int64(len(allBalancerTypes)) {
			return nil, dialect.NotFound("load balancer type with ID %d not found", id)
		}
		return &allBalancerTypes[id-1], nil
	},
	show: func(_ context.Context, _ *dialect.Request, t *balancerType) (schema.LoadBalancerType, error) {
		return t.show(), nil
	},
}

func (t balancerType) show() schema.LoadBalancerType {
	shown := schema.LoadBalancerType{ID: t.id, Name: t.name, Description: strings.ToUpper(t.name)}
	for _, size := range cloud.LoadBalancerSizes {
		if size.Type == t.native {
			shown.MaxServices, shown.MaxTargets, shown.MaxConnections = size.Listeners, size.Targets, size.Connections
		}
	}
	return shown
}

// findType finds the native type of a balancer's type, which is given by its ID or name.
func findType(of schema.IDOrName) (api.LoadBalancerType, error) {
	for _, t := range allBalancerTypes {
		if of.ID == t.id || of.ID == 0 && of.Name == t.name {
			return t.native, nil
		}
	}
	return "", dialect.Invalid("load_balancer_type", "is none that there is")
}

// typeOf is the balancer's type; the largest for one without limits, which was made otherwise.
func (b *balancer) typeOf() schema.LoadBalancerType {
	for _, t := range allBalancerTypes {
		if t.native == b.Type {
			return t.show()
		}
	}
	return allBalancerTypes[len(allBalancerTypes)-1].show()
}

var balancers = collection[api.LoadBalancer, schema.LoadBalancer]{
	one: "load_balancer", kind: api.ResourceLoadBalancer, show: toLoadBalancer,
	get: (*dialect.Request).GetLoadBalancer, gone: isDeleted,
	list: func(ctx context.Context, r *dialect.Request, name string) ([]api.LoadBalancer, error) {
		return r.ListLoadBalancers(ctx, client.LoadBalancerFilter{Name: name})
	},
	labels: func(lb api.LoadBalancer) api.Tags { return lb.Tags },
}

var balancerCalls = []dialect.Call{
	dialect.Handle(http.MethodPost, balancers.path(), nil, createLoadBalancer).Answers(http.StatusCreated),
	dialect.Handle(
		http.MethodPut, balancers.path()+"/{id}", nil, dialect.Show(balancers.answer, updateLoadBalancer),
	),
	dialect.Handle(http.MethodDelete, balancers.path()+"/{id}", nil, deleteLoadBalancer).Answers(http.StatusNoContent),
	loadBalancerAction("add_service", addService),
	loadBalancerAction("update_service", updateService),
	loadBalancerAction("delete_service", deleteService),
	loadBalancerAction("add_target", addTarget),
	loadBalancerAction("remove_target", removeTarget),
	loadBalancerAction("change_algorithm", changeAlgorithm),
	loadBalancerAction("change_type", changeType),
	loadBalancerAction("change_dns_ptr", changeDNSPtr),
	loadBalancerAction("attach_to_network", attachToNetwork),
	loadBalancerAction("detach_from_network", detachFromNetwork),
	loadBalancerAction("enable_public_interface", setPublicInterface(true)),
	loadBalancerAction("disable_public_interface", setPublicInterface(false)),
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
	if lb.IPv6Address != "" {
		out.PublicNet.IPv6 = schema.LoadBalancerPublicNetIPv6{
			IP: lb.IPv6Address, DNSPtr: b.record.DNSPtr[lb.IPv6Address],
		}
	}
	if lb.NetworkID != "" {
		n, err := r.Cloud.Networks.Get(ctx, r.Project, lb.NetworkID)
		if err != nil {
			return out, err
		}
		out.PrivateNet = append(out.PrivateNet, schema.LoadBalancerPrivateNet{Network: n.Serial, IP: lb.PrivateAddress})
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
func healthByInstance(ctx context.Context, r *dialect.Request, id string) (map[string]api.TargetHealth, error) {
	targets, err := r.Cloud.LoadBalancerHealth(ctx, r.Project, id)
	var refused *cloud.Error
	if errors.As(err, &refused) && refused.Code == cloud.NotFound {
		err = nil // It went meanwhile.
	}
	health := map[string]api.TargetHealth{}
	for _, t := range targets {
		health[t.InstanceID] = t
	}
	return health, err
}

func (b *balancer) toTarget(in cloud.Instance, health api.TargetHealth) schema.LoadBalancerTarget {
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
			ListenPort: l.Port, Status: string(cmp.Or(status, api.TargetUnknown)),
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

func createLoadBalancer(ctx context.Context, r *dialect.Request, q createRequest) (any, error) {
	location, err := q.chooseLocation(r)
	if err != nil {
		return nil, err
	}
	kind, err := findType(q.LoadBalancerType)
	if err != nil {
		return nil, err
	}
	create := api.LoadBalancerCreate{Name: q.Name, Type: kind, Listeners: api.Listeners{}, Tags: q.Labels}
	if q.Algorithm != nil {
		algorithm, err := algorithmNamed(q.Algorithm.Type)
		if err != nil {
			return nil, err
		}
		create.Algorithm = algorithm
	}
	if q.PublicInterface != nil {
		create.Scheme = *schemeOf(*q.PublicInterface)
	}
	b := &balancer{LoadBalancer: &api.LoadBalancer{}, record: record{Location: location}}
	create.Records = b.records()
	var operation string
	lb, err := r.CreateLoadBalancer(client.OperationInto(ctx, &operation), create)
	if err != nil {
		return nil, err
	}
	action, err := recordAction(ctx, r, "create_load_balancer", operation, lb.ID, referTo(lb))
	if err != nil {
		return nil, err
	}
	out, err := toLoadBalancer(ctx, r, lb)
	return schema.LoadBalancerCreateResponse{LoadBalancer: out, Action: action}, err
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

func referTo(lb *api.LoadBalancer) schema.ActionResourceReference {
	return schema.ActionResourceReference{ID: lb.Serial, Type: balancers.one}
}

type updateRequest struct {
	Name   *string            `json:"name,omitempty"`
	Labels *map[string]string `json:"labels,omitempty"`
}

func updateLoadBalancer(ctx context.Context, r *dialect.Request, q updateRequest) (*api.LoadBalancer, error) {
	lb, err := balancers.find(ctx, r, struct{}{})
	if err != nil || q.Name == nil && q.Labels == nil {
		return lb, err
	}
	return r.UpdateLoadBalancer(ctx, lb.ID, api.LoadBalancerUpdate{Name: q.Name, Tags: (*api.Tags)(q.Labels)})
}

func deleteLoadBalancer(ctx context.Context, r *dialect.Request, _ struct{}) (any, error) {
	lb, err := balancers.find(ctx, r, struct{}{})
	if err == nil {
		_, err = r.DeleteLoadBalancer(ctx, lb.ID)
	}
	return nil, err
}
