package hcloud

import (
	"context"
	"net/http"
	"net/netip"
	"slices"
	"strings"

	"github.com/hetznercloud/hcloud-go/v2/hcloud/schema"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
	"github.com/ccmlab/ccmlab/fakecloud/cloud"
	"github.com/ccmlab/ccmlab/fakecloud/dialect"
)

var networks = collection[api.Network, schema.Network]{
	one: "network", kind: api.ResourceNetwork, get: (*dialect.Request).GetNetwork, show: toNetwork,
	list: func(ctx context.Context, r *dialect.Request, name string) ([]api.Network, error) {
		return r.ListNetworks(ctx, client.NetworkFilter{Name: name})
	},
	labels: func(n api.Network) api.Tags { return n.Tags },
}

var networkActions = []dialect.Call{
	dialect.Handle(http.MethodPost, "/v1/networks/{id}/actions/add_route", nil, addRoute).Answers(http.StatusCreated),
	dialect.Handle(http.MethodPost, "/v1/networks/{id}/actions/delete_route", nil, deleteRoute).Answers(http.StatusCreated),
}

// toNetwork makes a network with its servers and routes. A route whose instance is gone has the
// address that the instance had, for its gateway: its name says it (see routeName).
func toNetwork(ctx context.Context, r *dialect.Request, n *api.Network) (schema.Network, error) {
	network := schema.Network{
		ID: n.Serial, Name: n.Name, Created: n.CreatedAt, IPRange: n.Cidr, Labels: n.Tags,
		Subnets: []schema.NetworkSubnet{{
			Type: "cloud", IPRange: n.Cidr, Gateway: firstHost(n.Cidr), NetworkZone: regionOf(r),
		}},
		Routes: []schema.NetworkRoute{}, Servers: []int64{}, LoadBalancers: []int64{},
	}
	instances, err := r.Instances(ctx)
	if err != nil {
		return network, err
	}
	for _, in := range instances {
		if in.Network == n.ID && in.Address.IsValid() {
			network.Servers = append(network.Servers, in.Serial)
		}
	}
	slices.Sort(network.Servers)
	routes, err := r.ListRoutes(ctx, client.RouteFilter{})
	if err != nil {
		return network, err
	}
	for _, route := range routes {
		if route.NetworkID != n.ID {
			continue
		}
		network.Routes = append(network.Routes, schema.NetworkRoute{
			Destination: route.Destination, Gateway: gatewayOf(route, instances),
		})
	}
	return network, nil
}

// firstHost is the first address of a CIDR that a host can have: the gateway's.
func firstHost(cidr string) string {
	prefix, err := netip.ParsePrefix(cidr)
	if err != nil {
		return ""
	}
	return prefix.Masked().Addr().Next().String()
}

// regionOf is the region of all of this cloud's zones.
func regionOf(r *dialect.Request) string { return r.Cloud.Zones()[0].Region }

func gatewayOf(route api.Route, instances map[string]cloud.Instance) string {
	if in := instances[route.InstanceID]; in.Address.IsValid() {
		return in.Address.String()
	}
	return gatewayInName(route)
}

// routeName names a route, which has no name at Hetzner, by its gateway and destination.
func routeName(gateway, destination netip.Prefix) string {
	text := strings.NewReplacer("/", "-", ".", "-")
	return "hcloud-" + gateway.Addr().String() + "-" + text.Replace(destination.String())
}

// gatewayInName reads the gateway from a route's name. It is the unspecified address for a
// route that was made otherwise.
func gatewayInName(route api.Route) string {
	gateway, _, _ := strings.Cut(strings.TrimPrefix(route.Name, "hcloud-"), "-")
	if _, err := netip.ParseAddr(gateway); err != nil {
		return netip.IPv4Unspecified().String()
	}
	return gateway
}

func referToNetwork(n *api.Network) schema.ActionResourceReference {
	return schema.ActionResourceReference{ID: n.Serial, Type: networks.one}
}

type routeRequest struct {
	Destination string `json:"destination"`
	Gateway     string `json:"gateway"`
}

func (q routeRequest) parse() (destination, gateway netip.Prefix, err error) {
	destination, err = netip.ParsePrefix(q.Destination)
	if err != nil || destination != destination.Masked() {
		return destination, gateway, dialect.Invalid("destination", "%q is no network in CIDR notation", q.Destination)
	}
	address, err := netip.ParseAddr(q.Gateway)
	if err != nil {
		return destination, gateway, dialect.Invalid("gateway", "%q is no IP address", q.Gateway)
	}
	return destination, netip.PrefixFrom(address, address.BitLen()), nil
}

func addRoute(ctx context.Context, r *dialect.Request, q routeRequest) (any, error) {
	destination, gateway, err := q.parse()
	if err != nil {
		return nil, err
	}
	n, err := networks.find(ctx, r, struct{}{})
	if err != nil {
		return nil, err
	}
	instances, err := r.Instances(ctx)
	if err != nil {
		return nil, err
	}
	var hop string
	for id, in := range instances {
		if in.Network == n.ID && in.Address == gateway.Addr() {
			hop = id
		}
	}
	if hop == "" {
		return nil, dialect.Invalid("gateway", "%s is no address of a server in network %s", q.Gateway, n.Name)
	}
	if _, err := r.CreateRoute(ctx, api.RouteCreate{
		Name: routeName(gateway, destination), Destination: destination.String(), InstanceID: hop,
	}); err != nil {
		return nil, err
	}
	action, err := recordAction(ctx, r, "add_route", "", n.ID, referToNetwork(n))
	return schema.ActionGetResponse{Action: action}, err
}

func deleteRoute(ctx context.Context, r *dialect.Request, q routeRequest) (any, error) {
	destination, _, err := q.parse()
	if err != nil {
		return nil, err
	}
	n, err := networks.find(ctx, r, struct{}{})
	if err != nil {
		return nil, err
	}
	instances, err := r.Instances(ctx)
	if err != nil {
		return nil, err
	}
	routes, err := r.ListRoutes(ctx, client.RouteFilter{})
	if err != nil {
		return nil, err
	}
	at := slices.IndexFunc(routes, func(route api.Route) bool {
		return route.NetworkID == n.ID && route.Destination == destination.String() &&
			gatewayOf(route, instances) == q.Gateway
	})
	if at < 0 {
		return nil, dialect.NotFound("network %s has no route to %s via %s", n.Name, q.Destination, q.Gateway)
	}
	if err := r.DeleteRoute(ctx, routes[at].ID); err != nil {
		return nil, err
	}
	action, err := recordAction(ctx, r, "delete_route", "", n.ID, referToNetwork(n))
	return schema.ActionGetResponse{Action: action}, err
}
