package hcloud

import (
	"cmp"
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
	update: (*dialect.Request).UpdateNetwork,
	record: func(records api.Records, q updateRequest) (api.Records, error) {
		return withRecord(records, func(n *networkRecord) error {
			n.ExposeRoutes = api.ValueOf(q.ExposeRoutes)
			return nil
		})
	},
}

// networkRecord is what a network was told and this cloud does not have. Fields are only ever added.
type networkRecord struct {
	// Subnets are nil of a network that was made otherwise, which is one subnet.
	Subnets *[]schema.NetworkSubnet `json:"subnets,omitempty"`
	// Routes are those via what is no server.
	Routes []schema.NetworkRoute `json:"routes,omitempty"`
	// IPRange is what the network was extended to; "" if it has its first range.
	IPRange      string     `json:"ipRange,omitempty"`
	ExposeRoutes bool       `json:"exposeRoutes,omitempty"`
	Protection   protection `json:"protection,omitzero"`
}

// subnets gives the network's subnets, which may be changed.
func (n *networkRecord) subnets(r *dialect.Request, native *api.Network) []schema.NetworkSubnet {
	if n.Subnets == nil {
		return []schema.NetworkSubnet{{Type: "cloud", IPRange: native.Cidr, NetworkZone: regionOf(r)}}
	}
	return slices.Clone(*n.Subnets)
}

var networkActions = []dialect.Call{
	dialect.Handle(http.MethodPost, "/v1/networks", nil, createNetwork).Answers(http.StatusCreated),
	deleteCall(&networks, deleteNetwork),
	resourceAction(&networks, "add_subnet", addSubnet), resourceAction(&networks, "delete_subnet", deleteSubnet),
	resourceAction(&networks, "change_ip_range", changeIPRange),
	changeAction(&networks, "change_protection", func(n *networkRecord, q protectionRequest) error {
		return q.applyTo(&n.Protection)
	}),
	actionCall(&networks, "add_route", "add_route", addRoute),
	actionCall(&networks, "delete_route", "delete_route", deleteRoute),
}

// toNetwork makes a network with its servers and routes. A route whose instance is gone has the
// address that the instance had, for its gateway: its name says it (see routeName).
func toNetwork(ctx context.Context, r *dialect.Request, n *api.Network) (schema.Network, error) {
	record, err := readRecord[networkRecord](n.Records)
	if err != nil {
		return schema.Network{}, err
	}
	ipRange, subnets := cmp.Or(record.IPRange, n.Cidr), record.subnets(r, n)
	for i := range subnets {
		subnets[i].Gateway = firstHost(ipRange)
	}
	network := schema.Network{
		ID: n.Serial, Name: n.Name, Created: n.CreatedAt, IPRange: ipRange, Labels: n.Tags, Subnets: subnets,
		Protection:            schema.NetworkProtection{Delete: record.Protection.Delete},
		ExposeRoutesToVSwitch: record.ExposeRoutes,
		Routes:                append([]schema.NetworkRoute{}, record.Routes...), Servers: []int64{},
		LoadBalancers: []int64{},
	}
	instances, err := r.Instances(ctx)
	if err != nil {
		return network, err
	}
	for _, in := range instances {
		if in.Network == n.ID && in.Address.IsValid() && isThere(in) && !isDetached(in) {
			network.Servers = append(network.Servers, in.Serial)
		}
	}
	slices.Sort(network.Servers)
	balancers, err := r.LoadBalancers(ctx)
	if err != nil {
		return network, err
	}
	for _, lb := range balancers {
		if lb.NetworkID == n.ID {
			network.LoadBalancers = append(network.LoadBalancers, lb.Serial)
		}
	}
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

// isDetached tells whether a server is shown to be in no network.
func isDetached(in cloud.Instance) bool {
	record, err := readRecord[serverRecord](in.Records)
	return err == nil && record.Detached
}

func createNetwork(ctx context.Context, r *dialect.Request, q schema.NetworkCreateRequest) (any, error) {
	if err := checkLabels(api.ValueOf(q.Labels)); err != nil {
		return nil, err
	}
	record := networkRecord{Subnets: &[]schema.NetworkSubnet{}, ExposeRoutes: q.ExposeRoutesToVSwitch}
	n := api.Network{Cidr: q.IPRange}
	for _, s := range q.Subnets {
		if err := addSubnet(ctx, r, &n, &record, s); err != nil {
			return nil, err
		}
	}
	for _, route := range q.Routes {
		if err := recordRoute(&n, &record, route); err != nil {
			return nil, err
		}
	}
	made, err := r.CreateNetwork(ctx, api.NetworkCreate{
		Name: q.Name, Cidr: q.IPRange, Tags: (*api.Tags)(q.Labels), Records: dialect.WithRecord(name, nil, record),
	})
	if err != nil {
		return nil, err
	}
	return networks.answer(ctx, r, made)
}

func deleteNetwork(ctx context.Context, r *dialect.Request, n *api.Network) error {
	if err := detachBalancers(ctx, r, n); err != nil {
		return err
	}
	return r.DeleteNetwork(ctx, n.ID)
}

// addSubnet records a subnet. If no range is asked for, it is the first free /24 of the network.
func addSubnet(
	_ context.Context,
	r *dialect.Request,
	n *api.Network,
	record *networkRecord,
	q schema.NetworkSubnet,
) error {
	whole, err := netip.ParsePrefix(cmp.Or(record.IPRange, n.Cidr))
	switch {
	case err != nil:
		return dialect.Invalid("ip_range", "%q is no network in CIDR notation", n.Cidr)
	case q.NetworkZone != regionOf(r):
		return dialect.Invalid("network_zone", "%q is none that there is", q.NetworkZone)
	case q.Type == "vswitch":
		return &cloud.Error{Code: "service_error", Message: "vswitch not found"}
	case q.Type != "cloud" && q.Type != "server":
		return dialect.Invalid("type", "must be cloud, server or vswitch")
	}
	subnets := record.subnets(r, n)
	taken := func(p netip.Prefix) bool {
		return slices.ContainsFunc(subnets, func(s schema.NetworkSubnet) bool {
			has, err := netip.ParsePrefix(s.IPRange)
			return err == nil && has.Overlaps(p)
		})
	}
	if q.IPRange == "" {
		for at := whole.Addr(); whole.Contains(at); at = lastOf(netip.PrefixFrom(at, 24)).Next() {
			if p := netip.PrefixFrom(at, max(24, whole.Bits())); !taken(p) {
				q.IPRange = p.String()
				break
			}
		}
	}
	p, err := netip.ParsePrefix(q.IPRange)
	if err != nil || p != p.Masked() || !whole.Contains(p.Addr()) || p.Bits() < whole.Bits() || taken(p) {
		return dialect.Invalid("ip_range", "%q must be a range in %s that overlaps with no other subnet", q.IPRange, whole)
	}
	record.Subnets = new(append(subnets, q))
	return nil
}

// lastOf is the last address of a prefix of IPv4.
func lastOf(p netip.Prefix) netip.Addr {
	b := p.Masked().Addr().As4()
	for i := p.Bits(); i < 32; i++ {
		b[i/8] |= 1 << (7 - i%8)
	}
	return netip.AddrFrom4(b)
}

func deleteSubnet(
	_ context.Context,
	r *dialect.Request,
	n *api.Network,
	record *networkRecord,
	q schema.NetworkActionDeleteSubnetRequest,
) error {
	subnets := record.subnets(r, n)
	at := slices.IndexFunc(subnets, func(s schema.NetworkSubnet) bool { return s.IPRange == q.IPRange })
	if at < 0 {
		return dialect.NotFound("network has no subnet %s", q.IPRange)
	}
	record.Subnets = new(slices.Delete(subnets, at, at+1))
	return nil
}

// changeIPRange records a longer range, which begins as the network's does. Servers have addresses of the first range.
func changeIPRange(
	_ context.Context,
	_ *dialect.Request,
	n *api.Network,
	record *networkRecord,
	q schema.NetworkActionChangeIPRangeRequest,
) error {
	has, err := netip.ParsePrefix(cmp.Or(record.IPRange, n.Cidr))
	if err != nil {
		return err
	}
	to, err := netip.ParsePrefix(q.IPRange)
	if err != nil || to != to.Masked() || to.Addr() != has.Addr() || to.Bits() > has.Bits() {
		return dialect.Invalid("ip_range", "%q must be %s or begin as it and be larger", q.IPRange, has)
	}
	record.IPRange = q.IPRange
	return nil
}

// freeAddressIn gives an address for a server or balancer in the network's subnets, or in the one that is asked for,
// but for the gateway's. It is "" for one in whatever range the network has, if that was made otherwise.
func freeAddressIn(ctx context.Context, r *dialect.Request, n *api.Network, wanted string) (string, error) {
	record, err := readRecord[networkRecord](n.Records)
	if err != nil {
		return "", err
	}
	if record.Subnets == nil && (wanted == "" || wanted == n.Cidr) {
		return "", nil
	}
	subnets := slices.DeleteFunc(slices.Clone(api.ValueOf(record.Subnets)), func(s schema.NetworkSubnet) bool {
		return wanted != "" && s.IPRange != wanted
	})
	if wanted != "" && len(subnets) == 0 {
		return "", dialect.Invalid("ip_range", "%q is no subnet of the network", wanted)
	}
	instances, err := r.Instances(ctx)
	if err != nil {
		return "", err
	}
	balancers, err := r.LoadBalancers(ctx)
	if err != nil {
		return "", err
	}
	used := map[string]bool{firstHost(n.Cidr): true}
	for _, in := range instances {
		for _, a := range in.Internal() {
			used[a.String()] = true
		}
	}
	for _, lb := range balancers {
		used[lb.PrivateAddress] = true
	}
	network, err := netip.ParsePrefix(n.Cidr)
	if err != nil {
		return "", err
	}
	for _, s := range subnets {
		subnet, err := netip.ParsePrefix(s.IPRange)
		if err != nil {
			return "", err
		}
		for a := subnet.Addr().Next(); a != lastOf(subnet) && subnet.Contains(a) && network.Contains(a); a = a.Next() {
			if !used[a.String()] {
				return a.String(), nil
			}
		}
	}
	return "", &cloud.Error{
		Code: "no_subnet_available", Message: "no subnet or IP is available within the network",
	}
}

// detachBalancers takes the load balancers out of a network that is deleted.
func detachBalancers(ctx context.Context, r *dialect.Request, n *api.Network) error {
	all, err := r.LoadBalancers(ctx)
	if err != nil {
		return err
	}
	for _, lb := range all {
		if lb.NetworkID != n.ID {
			continue
		}
		b, err := toBalancer(&lb.LoadBalancer)
		if err == nil {
			err = detachFromNetwork(ctx, r, b, detachRequest{Network: n.Serial})
		}
		if err == nil {
			_, err = r.UpdateLoadBalancer(client.IfMatch(ctx, b.Version), b.ID, b.update())
		}
		if err != nil {
			return err
		}
	}
	return nil
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

func parseRoute(q schema.NetworkRoute) (destination, gateway netip.Prefix, err error) {
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

func addRoute(ctx context.Context, r *dialect.Request, n *api.Network, q schema.NetworkRoute) (references, error) {
	destination, gateway, err := parseRoute(q)
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
		err = changeRecord(ctx, r, &networks, n, func(record *networkRecord) error {
			return recordRoute(n, record, q)
		})
	} else {
		_, err = r.CreateRoute(ctx, api.RouteCreate{
			Name: routeName(gateway, destination), Destination: destination.String(), InstanceID: hop,
		})
	}
	return nil, err
}

// recordRoute records a route via what is no server of the network.
func recordRoute(n *api.Network, record *networkRecord, q schema.NetworkRoute) error {
	destination, gateway, err := parseRoute(q)
	if err != nil {
		return err
	}
	ipRange, err := netip.ParsePrefix(cmp.Or(record.IPRange, n.Cidr))
	switch {
	case err != nil:
		return dialect.Invalid("ip_range", "%q is no network in CIDR notation", n.Cidr)
	case !ipRange.Contains(gateway.Addr()) || gateway.Addr().String() == firstHost(ipRange.String()):
		return dialect.Invalid("gateway", "%s must be an address in %s, and not the first", q.Gateway, ipRange)
	case slices.ContainsFunc(record.Routes, func(has schema.NetworkRoute) bool {
		p, err := netip.ParsePrefix(has.Destination)
		return err == nil && p.Overlaps(destination)
	}) || slices.ContainsFunc(api.ValueOf(record.Subnets), func(s schema.NetworkSubnet) bool {
		p, err := netip.ParsePrefix(s.IPRange)
		return err == nil && p.Overlaps(destination)
	}):
		return dialect.Invalid("destination", "%s overlaps with a subnet or the destination of another route", destination)
	}
	record.Routes = append(record.Routes, q)
	return nil
}

func deleteRoute(ctx context.Context, r *dialect.Request, n *api.Network, q schema.NetworkRoute) (references, error) {
	destination, _, err := parseRoute(q)
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
	if at >= 0 {
		err = r.DeleteRoute(ctx, routes[at].ID)
	} else {
		err = changeRecord(ctx, r, &networks, n, func(record *networkRecord) error {
			at := slices.Index(record.Routes, q)
			if at < 0 {
				return dialect.NotFound("network %s has no route to %s via %s", n.Name, q.Destination, q.Gateway)
			}
			record.Routes = slices.Delete(record.Routes, at, at+1)
			return nil
		})
	}
	return nil, err
}
