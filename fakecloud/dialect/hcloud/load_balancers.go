package hcloud

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
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
	Selectors      []targetSelector  `json:"selectors,omitempty"`
	// Selected are the servers that are targets because of a selector alone.
	Selected []int64 `json:"selected,omitempty"`
}

const recordVersion = 1

// balancer is a load balancer as both sides see it. An action changes both.
type balancer struct {
	*api.LoadBalancer
	record record
	about  references // what an action is about beside the balancer
	prefix string     // of the fields of a request that are refused
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

// update gives all that actions change.
func (b *balancer) update() api.LoadBalancerUpdate {
	u := api.LoadBalancerUpdate{
		Listeners: &b.Listeners, Targets: &b.Targets, Type: &b.Type, Algorithm: &b.Algorithm, Scheme: &b.Scheme,
		NetworkID: &b.NetworkID, DeletionProtection: &b.DeletionProtection, Records: b.records(),
	}
	if b.PrivateAddress != "" {
		u.PrivateAddress = &b.PrivateAddress
	}
	return u
}

// balancerType is Hetzner's name of a size of balancers of this cloud, which have the limits in Hetzner's price list.
type balancerType struct {
	id           int64
	name         string
	native       api.LoadBalancerType
	certificates int // how many can be assigned
}

var allBalancerTypes = []balancerType{
	{1, "lb11", api.LoadBalancerSmall, 10}, {2, "lb21", api.LoadBalancerMedium, 25},
	{3, "lb31", api.LoadBalancerLarge, 50},
}

var balancerTypes = catalogue(
	"load_balancer_type",
	func(_ context.Context, r *dialect.Request) (all []item[schema.LoadBalancerType], _ error) {
		for _, t := range allBalancerTypes {
			all = append(all, newItem(t.id, t.name, t.show(r)))
		}
		return all, nil
	},
)

func (t balancerType) show(r *dialect.Request) schema.LoadBalancerType {
	shown := schema.LoadBalancerType{
		ID: t.id, Name: t.name, Description: strings.ToUpper(t.name), MaxAssignedCertificates: t.certificates,
		Prices: []schema.PricingLoadBalancerTypePrice{},
	}
	for _, size := range cloud.LoadBalancerSizes {
		if size.Name == t.native {
			shown.MaxServices, shown.MaxTargets, shown.MaxConnections = size.MaxListeners, size.MaxTargets, size.MaxConnections
		}
	}
	for _, z := range r.Cloud.Zones() {
		shown.Prices = append(shown.Prices, schema.PricingLoadBalancerTypePrice{
			Location: z.Name, PriceHourly: free, PriceMonthly: free, IncludedTraffic: includedTraffic, PricePerTBTraffic: free,
		})
	}
	return shown
}

func (t balancerType) identity() (int64, string) { return t.id, t.name }

// findType finds the native type of a balancer's type, which is given by its ID or name.
func findType(of schema.IDOrName) (api.LoadBalancerType, error) {
	t, err := findByIDOrName("load_balancer_type", allBalancerTypes, of)
	return t.native, err
}

// typeOf is the balancer's type; the largest for one without limits, which was made otherwise.
func (b *balancer) typeOf(r *dialect.Request) schema.LoadBalancerType {
	for _, t := range allBalancerTypes {
		if t.native == b.Type {
			return t.show(r)
		}
	}
	return allBalancerTypes[len(allBalancerTypes)-1].show(r)
}

var balancers = collection[api.LoadBalancer, shownBalancer]{
	one: "load_balancer", kind: api.ResourceLoadBalancer, show: toLoadBalancer,
	get: (*dialect.Request).GetLoadBalancer, gone: isDeleted,
	update: func(r *dialect.Request, ctx context.Context, id string, u api.ResourceUpdate) (*api.LoadBalancer, error) {
		return r.UpdateLoadBalancer(ctx, id, api.LoadBalancerUpdate{Name: u.Name, Tags: u.Tags})
	},
	list: func(ctx context.Context, r *dialect.Request, name string) ([]api.LoadBalancer, error) {
		return r.ListLoadBalancers(ctx, client.LoadBalancerFilter{Name: name})
	},
}

var balancerCalls = []dialect.Call{
	dialect.Handle(http.MethodPost, balancers.path(), nil, createLoadBalancer).Answers(http.StatusCreated),
	deleteCall(&balancers, deleteLoadBalancer),
	refusedCall(&balancers, http.MethodGet, "metrics",
		&cloud.Error{Code: unsupported, Message: "no metrics of load balancers are kept"}),
	loadBalancerAction("add_service", addService),
	loadBalancerAction("update_service", updateService),
	loadBalancerAction("delete_service", deleteService),
	loadBalancerAction("add_target", addTarget),
	loadBalancerAction("remove_target", removeTarget),
	loadBalancerAction("change_algorithm", changeAlgorithm),
	loadBalancerAction("change_type", changeType),
	loadBalancerAction("change_dns_ptr", changeDNSPtr),
	loadBalancerAction("change_protection", changeProtection),
	loadBalancerAction("attach_to_network", attachToNetwork),
	loadBalancerAction("detach_from_network", detachFromNetwork),
	loadBalancerAction("enable_public_interface", setPublicInterface(true)),
	loadBalancerAction("disable_public_interface", setPublicInterface(false)),
}

// isDeleted tells whether a balancer is gone as Hetzner's are, at once.
func isDeleted(lb api.LoadBalancer) bool { return lb.State == api.LoadBalancerDeleting }

// shownBalancer is a balancer as it is shown, where what is not there is null.
type shownBalancer struct {
	schema.LoadBalancer
	PublicNet struct {
		Enabled bool          `json:"enabled"`
		IPv4    publicAddress `json:"ipv4"`
		IPv6    publicAddress `json:"ipv6"`
	} `json:"public_net"`
	Services []shownService `json:"services"`
	Targets  []shownTarget  `json:"targets"`
}

type publicAddress struct {
	IP     *string `json:"ip"`
	DNSPtr *string `json:"dns_ptr"`
}

// ipv6 is the balancer's address of IPv6, which Hetzner's always have. Where this cloud has none, it is a record.
func (b *balancer) ipv6() string {
	return cmp.Or(b.IPv6Address, recordedIPv6(b.Serial).Addr().Next().String())
}

func (b *balancer) publicAddress(ip string) (shown publicAddress) {
	if ip == "" {
		return shown
	}
	shown.IP = &ip
	if ptr, has := b.record.DNSPtr[ip]; has {
		shown.DNSPtr = &ptr
	}
	return shown
}

// shownService is a service as it is shown: no host header is null.
type shownService struct {
	schema.LoadBalancerService
	HealthCheck shownCheck `json:"health_check"`
}

type shownCheck struct {
	schema.LoadBalancerServiceHealthCheck
	HTTP *shownCheckHTTP `json:"http"`
}

type shownCheckHTTP struct {
	schema.LoadBalancerServiceHealthCheckHTTP
	Domain *string `json:"domain"`
}

func showService(s schema.LoadBalancerService) shownService {
	shown := shownService{LoadBalancerService: s, HealthCheck: shownCheck{LoadBalancerServiceHealthCheck: *s.HealthCheck}}
	if h := s.HTTP; h != nil && h.Certificates == nil {
		shown.HTTP = new(*h)
		shown.HTTP.Certificates = []int64{}
	}
	if h := s.HealthCheck.HTTP; h != nil {
		shown.HealthCheck.HTTP = &shownCheckHTTP{LoadBalancerServiceHealthCheckHTTP: *h}
		if h.Domain != "" {
			shown.HealthCheck.HTTP.Domain = &h.Domain
		}
	}
	return shown
}

func toLoadBalancer(ctx context.Context, r *dialect.Request, lb *api.LoadBalancer) (out shownBalancer, err error) {
	b, err := toBalancer(lb)
	if err != nil {
		return out, err
	}
	location := cmp.Or(b.record.Location, r.Cloud.Zones()[0].Name)
	out.LoadBalancer = schema.LoadBalancer{
		ID: lb.Serial, Name: lb.Name, Location: locationNamed(r, location), LoadBalancerType: b.typeOf(r),
		IncludedTraffic: includedTraffic,
		Labels:          lb.Tags, Created: lb.CreatedAt, PrivateNet: []schema.LoadBalancerPrivateNet{},
		Algorithm: schema.LoadBalancerAlgorithm{Type: strings.ReplaceAll(string(lb.Algorithm), "-", "_")},
	}
	out.Protection.Delete = lb.DeletionProtection
	out.PublicNet.Enabled = lb.Scheme == api.SchemePublic
	out.PublicNet.IPv4, out.PublicNet.IPv6 = b.publicAddress(lb.Address), b.publicAddress(b.ipv6())
	if lb.NetworkID != "" {
		networks, err := r.NetworkSerials(ctx)
		if err != nil {
			return out, err
		}
		private := schema.LoadBalancerPrivateNet{Network: networks[lb.NetworkID], IP: lb.PrivateAddress}
		out.PrivateNet = append(out.PrivateNet, private)
	}
	out.Services = []shownService{}
	for _, s := range b.services() {
		out.Services = append(out.Services, showService(s))
	}
	out.Targets, err = b.showTargets(ctx, r)
	return out, err
}

// healthByTarget reads the health of a balancer's targets from the domain: Hetzner's answers
// have it always.
func healthByTarget(ctx context.Context, r *dialect.Request, id string) (map[string]api.TargetHealth, error) {
	targets, err := r.Cloud.LoadBalancerHealth(ctx, r.Project, id)
	var refused *cloud.Error
	if errors.As(err, &refused) && refused.Code == cloud.NotFound {
		err = nil // It went meanwhile.
	}
	health := map[string]api.TargetHealth{}
	for _, t := range targets {
		health[t.Name()] = t
	}
	return health, err
}

func algorithmNamed(field, name string) (api.LoadBalancerAlgorithm, error) {
	if name != "round_robin" && name != "least_connections" {
		return "", dialect.Invalid(field, "must be one of round_robin, least_connections")
	}
	return api.LoadBalancerAlgorithm(strings.ReplaceAll(name, "_", "-")), nil
}

// createRequest is what is read of a balancer that is created.
type createRequest struct {
	Name             string                        `json:"name"`
	LoadBalancerType schema.IDOrName               `json:"load_balancer_type"`
	Location         *schema.IDOrName              `json:"location,omitempty"`
	NetworkZone      string                        `json:"network_zone,omitempty"`
	Labels           map[string]string             `json:"labels"`
	Algorithm        *schema.LoadBalancerAlgorithm `json:"algorithm,omitempty"`
	PublicInterface  *bool                         `json:"public_interface,omitempty"`
	Network          *int64                        `json:"network,omitempty"`
	Services         []serviceRequest              `json:"services,omitempty"`
	Targets          []targetRequest               `json:"targets,omitempty"`
}

// toBalancer gives the balancer that is asked for, as actions would make it.
func (q createRequest) toBalancer(ctx context.Context, r *dialect.Request) (*balancer, error) {
	location, err := q.chooseLocation(r)
	if err != nil {
		return nil, err
	}
	b := &balancer{
		LoadBalancer: &api.LoadBalancer{Scheme: api.SchemePublic, Listeners: api.Listeners{}, Targets: []api.Target{}},
		record:       record{Location: location, Services: map[int]schema.LoadBalancerService{}},
	}
	if b.Type, err = findType(q.LoadBalancerType); err != nil {
		return nil, err
	}
	if q.Algorithm != nil {
		if b.Algorithm, err = algorithmNamed("algorithm.type", q.Algorithm.Type); err != nil {
			return nil, err
		}
	}
	if q.Network != nil {
		if err := attachToNetwork(ctx, r, b, attachRequest{Network: *q.Network}); err != nil {
			return nil, err
		}
	}
	if q.PublicInterface != nil && !*q.PublicInterface {
		b.Scheme = api.SchemeInternal // It may be attached to a network later, as its CCM does.
	}
	for i, s := range q.Services {
		b.prefix = fmt.Sprintf("services.%d.", i)
		if err := addService(ctx, r, b, s); err != nil {
			return nil, err
		}
	}
	for i, t := range q.Targets {
		b.prefix = fmt.Sprintf("targets.%d.", i)
		if err := addTarget(ctx, r, b, t); err != nil {
			return nil, err
		}
	}
	return b, b.followSelectors(ctx, r)
}

func createLoadBalancer(ctx context.Context, r *dialect.Request, q createRequest) (any, error) {
	b, err := q.toBalancer(ctx, r)
	if err == nil {
		err = checkLabels(q.Labels)
	}
	if err != nil {
		return nil, err
	}
	var operation string
	create := api.LoadBalancerCreate{
		Name: q.Name, Type: b.Type, Algorithm: b.Algorithm, Scheme: b.Scheme, Listeners: b.Listeners, Targets: b.Targets,
		NetworkID: b.NetworkID, Tags: q.Labels, Records: b.records(), IPFamilies: r.Cloud.IPFamilies(),
	}
	ctxOfCreate := client.OperationInto(ctx, &operation)
	lb, err := r.CreateLoadBalancer(ctxOfCreate, create)
	if client.HasCode(err, api.ProblemCode(cloud.AddressPoolExhausted)) { // Another balancer has the last of IPv6.
		create.IPFamilies = nil
		lb, err = r.CreateLoadBalancer(ctxOfCreate, create)
	}
	if err != nil {
		return nil, err
	}
	action, err := balancers.recordAction(ctx, r, "create_load_balancer", operation, lb, b.about...)
	if err != nil {
		return nil, err
	}
	out, err := toLoadBalancer(ctx, r, lb)
	return struct {
		LoadBalancer shownBalancer `json:"load_balancer"`
		Action       schema.Action `json:"action"`
	}{out, action}, err
}

// chooseLocation gives the location asked for, or the first of the network zone asked for.
func (q createRequest) chooseLocation(r *dialect.Request) (string, error) {
	if (q.Location == nil) == (q.NetworkZone == "") {
		return "", dialect.Invalid("location", "or network_zone must be given, and not both")
	}
	for i, z := range r.Cloud.Zones() {
		if q.Location == nil && q.NetworkZone == z.Region ||
			q.Location != nil && (q.Location.ID == int64(i+1) || q.Location.Name == z.Name) {
			return z.Name, nil
		}
	}
	if q.Location != nil {
		return "", dialect.Invalid("location", "is none that there is")
	}
	return "", dialect.Invalid("network_zone", "%q is none that there is", q.NetworkZone)
}

func deleteLoadBalancer(ctx context.Context, r *dialect.Request, lb *api.LoadBalancer) error {
	_, err := r.DeleteLoadBalancer(ctx, lb.ID)
	return err
}
