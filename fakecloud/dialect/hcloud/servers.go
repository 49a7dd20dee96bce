package hcloud

import (
	"context"
	"slices"
	"strings"

	"github.com/hetznercloud/hcloud-go/v2/hcloud/schema"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
	"github.com/ccmlab/ccmlab/fakecloud/cloud"
	"github.com/ccmlab/ccmlab/fakecloud/dialect"
)

type locationList struct {
	schema.LocationListResponse
	Meta schema.Meta `json:"meta"`
}

func listLocations(ctx context.Context, r *dialect.Request, _ struct{}) (*dialect.Answer, error) {
	zones, err := r.ListZones(ctx)
	if err != nil {
		return nil, err
	}
	name := r.HTTP.URL.Query().Get("name")
	var all []schema.Location
	for _, z := range zones {
		if name == "" || name == z.Name {
			all = append(all, locationNamed(r, z.Name))
		}
	}
	var list locationList
	list.Locations, list.Meta, err = page(r, all)
	return dialect.OK(list), err
}

func getLocation(_ context.Context, r *dialect.Request, _ struct{}) (*dialect.Answer, error) {
	id, err := r.Serial()
	if err != nil {
		return nil, err
	}
	zones := r.Cloud.Zones()
	if id > int64(len(zones)) {
		return nil, dialect.NotFound("location with ID %d not found", id)
	}
	return dialect.OK(schema.LocationGetResponse{Location: locationNamed(r, zones[id-1].Name)}), nil
}

// locationNamed gives the location of a zone. Locations are numbered as the zones are ordered.
func locationNamed(r *dialect.Request, zone string) schema.Location {
	for i, z := range r.Cloud.Zones() {
		if z.Name == zone {
			return schema.Location{
				ID: int64(i + 1), Name: z.Name, Description: "fakecloud's zone " + z.Name, NetworkZone: z.Region,
			}
		}
	}
	return schema.Location{Name: zone}
}

type serverList struct {
	schema.ServerListResponse
	Meta schema.Meta `json:"meta"`
}

func listServers(ctx context.Context, r *dialect.Request, _ struct{}) (*dialect.Answer, error) {
	query := r.HTTP.URL.Query()
	selector, err := parseSelector(query.Get("label_selector"))
	if err != nil {
		return nil, err
	}
	instances, err := r.ListInstances(ctx, client.InstanceFilter{Name: query.Get("name")})
	if err != nil {
		return nil, err
	}
	networks, err := r.NetworkSerials(ctx)
	if err != nil {
		return nil, err
	}
	var servers []schema.Server
	for _, in := range instances {
		s := toServer(r, in, networks)
		wanted := query["status"]
		if dialect.IsGone(in) || !selector.matches(in.Tags) || len(wanted) > 0 && !slices.Contains(wanted, s.Status) {
			continue
		}
		servers = append(servers, s)
	}
	var list serverList
	list.Servers, list.Meta, err = page(r, servers)
	return dialect.OK(list), err
}

func getServer(ctx context.Context, r *dialect.Request, _ struct{}) (*dialect.Answer, error) {
	serial, err := r.Serial()
	if err != nil {
		return nil, err
	}
	in, err := readInstance(ctx, r, serial)
	if err != nil {
		return nil, err
	}
	networks, err := r.NetworkSerials(ctx)
	if err != nil {
		return nil, err
	}
	return dialect.OK(schema.ServerGetResponse{Server: toServer(r, *in, networks)}), nil
}

// readInstance reads an instance by its serial number. One that is terminated is not found:
// Hetzner Cloud keeps no servers that were deleted.
func readInstance(ctx context.Context, r *dialect.Request, serial int64) (*api.Instance, error) {
	id, err := r.ResourceID(ctx, cloud.InstanceResource, serial)
	if err != nil {
		return nil, err
	}
	in, err := r.GetInstance(ctx, id)
	if err != nil {
		return nil, err
	}
	if dialect.IsGone(*in) {
		return nil, dialect.NotFound("server with ID %d not found", serial)
	}
	return in, nil
}

// serverStatuses are Hetzner's words for the states of instances.
var serverStatuses = map[api.InstanceState]string{
	api.InstancePending:     "initializing",
	api.InstanceRunning:     "running",
	api.InstanceStopping:    "stopping",
	api.InstanceStopped:     "off",
	api.InstanceTerminating: "deleting",
	api.InstanceError:       "unknown",
}

func toServer(r *dialect.Request, in api.Instance, networks map[string]int64) schema.Server {
	s := schema.Server{
		ID: in.Serial, Name: in.Name, Status: serverStatuses[in.State], Created: in.CreatedAt, Labels: in.Tags,
		Location: locationNamed(r, in.Zone), ServerType: serverTypeNamed(cloud.InstanceType(in.Type)),
		Volumes: []int64{}, LoadBalancers: []int64{}, PrivateNet: []schema.ServerPrivateNet{},
	}
	s.PublicNet.FloatingIPs, s.PublicNet.Firewalls = []int64{}, []schema.ServerFirewall{}
	for _, a := range in.Addresses {
		switch {
		case strings.Contains(a.IP, ":"): // Hetzner's private networks have no IPv6 addresses.
		case a.Type == api.AddressInternal && len(s.PrivateNet) > 0:
			s.PrivateNet[0].AliasIPs = append(s.PrivateNet[0].AliasIPs, a.IP)
		case a.Type == api.AddressInternal:
			s.PrivateNet = append(s.PrivateNet, schema.ServerPrivateNet{
				Network: networks[in.NetworkID], IP: a.IP, AliasIPs: []string{},
			})
		default:
			s.PublicNet.IPv4.ID, s.PublicNet.IPv4.IP = in.Serial, a.IP
		}
	}
	return s
}

// serverTypeNamed gives the server type of an instance type. Both have one name.
func serverTypeNamed(name cloud.InstanceType) schema.ServerType {
	for i, size := range cloud.InstanceSizes {
		if size.Type == name {
			return schema.ServerType{
				ID: int64(i + 1), Name: string(name), Description: string(name), Cores: size.VCPUs,
				Memory: float32(size.MemoryMiB) / 1024,
			}
		}
	}
	return schema.ServerType{Name: string(name)}
}
