package brightbox

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
	"github.com/ccmlab/ccmlab/fakecloud/cloud"
	"github.com/ccmlab/ccmlab/fakecloud/dialect"
	"github.com/ccmlab/ccmlab/fakecloud/dns"
	"github.com/ccmlab/ccmlab/fakecloud/identity"
)

// serverStatuses are Brightbox's words for the states of instances. One in error is not "failed", which says
// that it is gone.
var serverStatuses = map[api.InstanceState]string{
	api.InstancePending:     "creating",
	api.InstanceRunning:     "active",
	api.InstanceStopping:    "active",
	api.InstanceStopped:     "inactive",
	api.InstanceTerminating: "deleting",
	api.InstanceTerminated:  "deleted",
	api.InstanceError:       "unavailable",
}

// serverReference is what is shown of a server within another resource.
type serverReference struct {
	resource
	Hostname string `json:"hostname"`
	FQDN     string `json:"fqdn"`
	Locked   bool   `json:"locked"`
}

type server struct {
	serverReference
	ServerType   serverType         `json:"server_type"`
	Zone         zone               `json:"zone"`
	Interfaces   []networkInterface `json:"interfaces"`
	CloudIPs     []cloudIP          `json:"cloud_ips"`
	ServerGroups []resource         `json:"server_groups"`
}

type serverType struct {
	ID     string `json:"id"`
	Name   string `json:"name"`
	Handle string `json:"handle"`
	Cores  int    `json:"cores"`
	RAM    int    `json:"ram"` // MiB
}

type zone struct {
	ID     string `json:"id"`
	Handle string `json:"handle"`
}

type networkInterface struct {
	ID          string `json:"id"`
	MACAddress  string `json:"mac_address"`
	IPv4Address string `json:"ipv4_address"`
	IPv6Address string `json:"ipv6_address"`
}

// findServer reads an instance by its ID, which stays readable while this cloud keeps it, or by its name.
func findServer(ctx context.Context, r *dialect.Request, reference string) (*api.Instance, error) {
	if id, err := serverKind.NativeID(ctx, r, reference); err == nil {
		return r.GetInstance(ctx, id)
	}
	all, err := r.ListInstances(ctx, client.InstanceFilter{Name: reference})
	if err != nil {
		return nil, err
	}
	all = slices.DeleteFunc(all, dialect.IsGone)
	if len(all) == 0 {
		return nil, dialect.NotFound("server %q not found", reference)
	}
	return &all[0], nil
}

func getServer(ctx context.Context, r *dialect.Request, _ struct{}) (any, error) {
	in, err := findServer(ctx, r, dialect.InPath(r))
	if err != nil {
		return nil, err
	}
	addresses, err := r.Addresses(ctx)
	if err != nil {
		return nil, err
	}
	s := server{
		serverReference: referToServer(r, in.Serial, in.Name, in.State),
		Zone:            zone{ID: "zon-" + in.Zone, Handle: in.Zone}, ServerType: serverTypeNamed(in.Type),
		Interfaces: []networkInterface{}, CloudIPs: []cloudIP{}, ServerGroups: []resource{},
	}
	s.CreatedAt = &in.CreatedAt
	if in.State == api.InstanceTerminated {
		s.DeletedAt = &in.UpdatedAt
	}
	for _, a := range in.Addresses {
		if a.Type == api.AddressInternal && len(s.Interfaces) == 0 { // A further one is left out.
			s.Interfaces = append(s.Interfaces, interfaceOf(in.Serial, a.IP))
		}
	}
	for _, a := range addresses {
		if api.ValueOf(a.Holder).ID == in.ID {
			s.CloudIPs = append(s.CloudIPs, toCloudIP(r, a.ReservedAddress))
		}
	}
	return s, nil
}

func referToServer(r *dialect.Request, serial int64, name string, state api.InstanceState) serverReference {
	ref := serverReference{
		resource: serverKind.newResource(r, serial, name), Hostname: name, FQDN: name + "." + dns.Domain,
	}
	ref.Status = serverStatuses[state]
	return ref
}

func serverTypeNamed(name api.InstanceType) serverType {
	_, size := dialect.SizeOf(name)
	return serverType{
		ID: "typ-" + string(name), Name: string(name), Handle: string(name), Cores: size.Vcpus, RAM: size.MemoryMiB,
	}
}

func interfaceOf(serial int64, ip string) networkInterface {
	b := strings.Split(ip, ".")
	return networkInterface{
		ID: "int-" + identity.Code(serial), IPv4Address: ip, IPv6Address: identity.IPv6Of(ip),
		MACAddress: fmt.Sprintf("02:24:%02s:%02s:%02s:%02s", b[0], b[1], b[2], b[3]),
	}
}

// referToServers gives what is shown of instances within another resource. One that is not kept any more is left out.
func referToServers(r *dialect.Request, instances map[string]cloud.Instance, ids []string) []serverReference {
	refs := []serverReference{}
	for _, id := range ids {
		if in, ok := instances[id]; ok {
			refs = append(refs, referToServer(r, in.Serial, in.Name, in.State))
		}
	}
	return refs
}
