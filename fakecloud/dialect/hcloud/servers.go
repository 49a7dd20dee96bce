package hcloud

import (
	"context"
	"slices"
	"strings"

	"github.com/hetznercloud/hcloud-go/v2/hcloud/schema"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
	"github.com/ccmlab/ccmlab/fakecloud/dialect"
)

// locations are numbered as the zones are ordered.
var locations = collection[api.Zone, schema.Location]{
	one: "location",
	list: func(ctx context.Context, r *dialect.Request, name string) ([]api.Zone, error) {
		zones, err := r.ListZones(ctx)
		return slices.DeleteFunc(zones, func(z api.Zone) bool { return name != "" && name != z.Name }), err
	},
	read: func(_ context.Context, r *dialect.Request, id int64) (*api.Zone, error) {
		zones := r.Cloud.Zones()
		if id > int64(len(zones)) {
			return nil, dialect.NotFound("location with ID %d not found", id)
		}
		return &api.Zone{Name: zones[id-1].Name}, nil
	},
	show: func(_ context.Context, r *dialect.Request, z *api.Zone) (schema.Location, error) {
		return locationNamed(r, z.Name), nil
	},
}

// locationNamed gives the location of a zone.
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

// servers are without those that are terminated: Hetzner Cloud keeps no servers that were deleted.
var servers = collection[api.Instance, schema.Server]{
	one: "server", kind: api.ResourceInstance, filters: []string{"status"}, show: toServer,
	get: (*dialect.Request).GetInstance, gone: dialect.IsGone,
	list: func(ctx context.Context, r *dialect.Request, name string) ([]api.Instance, error) {
		found, err := r.ListInstances(ctx, client.InstanceFilter{Name: name})
		wanted := r.HTTP.URL.Query()["status"]
		return slices.DeleteFunc(found, func(in api.Instance) bool {
			return len(wanted) > 0 && !slices.Contains(wanted, serverStatuses[in.State])
		}), err
	},
	labels: func(in api.Instance) api.Tags { return in.Tags },
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

func toServer(ctx context.Context, r *dialect.Request, in *api.Instance) (schema.Server, error) {
	networks, err := r.NetworkSerials(ctx)
	s := schema.Server{
		ID: in.Serial, Name: in.Name, Status: serverStatuses[in.State], Created: in.CreatedAt, Labels: in.Tags,
		Location: locationNamed(r, in.Zone), ServerType: serverTypeNamed(in.Type),
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
	return s, err
}

// serverTypeNamed gives the server type of an instance type. Both have one name.
func serverTypeNamed(name api.InstanceType) schema.ServerType {
	number, size := dialect.SizeOf(name)
	return schema.ServerType{
		ID: int64(number), Name: string(name), Description: string(name), Cores: size.VCPUs,
		Memory: float32(size.MemoryMiB) / 1024,
	}
}
