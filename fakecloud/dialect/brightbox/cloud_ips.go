package brightbox

import (
	"context"
	"net/netip"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
	"github.com/ccmlab/ccmlab/fakecloud/dialect"
	"github.com/ccmlab/ccmlab/fakecloud/dns"
	"github.com/ccmlab/ccmlab/fakecloud/identity"
)

type cloudIP struct {
	resource
	PublicIP     string           `json:"public_ip"`
	PublicIPv4   string           `json:"public_ipv4"`
	PublicIPv6   string           `json:"public_ipv6"`
	FQDN         string           `json:"fqdn"`
	ReverseDNS   string           `json:"reverse_dns"`
	Mode         string           `json:"mode"`
	LoadBalancer *resource        `json:"load_balancer"`
	Server       *serverReference `json:"server"`
}

// toCloudIP makes a cloud IP of an address, without what it is mapped to.
func toCloudIP(r *dialect.Request, a api.ReservedAddress) cloudIP {
	ip, _ := netip.ParseAddr(a.IP)
	byNumber, byDots := dns.NamesOf(ip)
	out := cloudIP{
		resource: cloudIPKind.newResource(r, a.Serial, a.Tags[dialect.TagName]),
		PublicIP: a.IP, PublicIPv4: a.IP, PublicIPv6: identity.IPv6Of(a.IP),
		FQDN: byNumber, ReverseDNS: byDots, Mode: "nat",
	}
	out.Status = "unmapped"
	if a.Holder != nil {
		out.Status = "mapped"
	}
	return out
}

// showCloudIP gives the cloud IP of what a native call answered.
func showCloudIP(ctx context.Context, r *dialect.Request, a *api.ReservedAddress) (out cloudIP, err error) {
	out = toCloudIP(r, *a)
	switch api.ValueOf(a.Holder).Kind {
	case api.HolderLoadBalancer:
		lb, err := r.Cloud.GetLoadBalancer(ctx, r.Project, a.Holder.ID)
		mapped := loadBalancerKind.newResource(r, lb.Serial, dialect.NameOf(lb.Name, lb.Tags))
		mapped.CreatedAt, mapped.Status = &lb.CreatedAt, balancerStatuses[lb.State]
		out.LoadBalancer = &mapped
		return out, err
	case api.HolderInstance:
		in, err := r.Cloud.GetInstance(ctx, r.Project, a.Holder.ID)
		out.Server = new(referToServer(r, in.Serial, in.Name, in.State))
		return out, err
	}
	return out, nil
}

func listCloudIPs(ctx context.Context, r *dialect.Request, _ struct{}) ([]cloudIP, error) {
	all, err := r.ListAddresses(ctx, client.AddressFilter{})
	if err != nil {
		return nil, err
	}
	return dialect.ShowEach(ctx, r, all, showCloudIP)
}

// readAddress reads the address of the cloud IP in the call's path.
func readAddress(ctx context.Context, r *dialect.Request, _ struct{}) (*api.ReservedAddress, error) {
	return dialect.Find(ctx, r, cloudIPKind.Kind, dialect.InPath(r), r.GetAddress)
}

func createCloudIP(ctx context.Context, r *dialect.Request, body struct {
	Name *string `json:"name,omitempty"`
}) (*api.ReservedAddress, error) {
	create := api.ReservedAddressCreate{}
	if body.Name != nil {
		create.Tags = &api.Tags{dialect.TagName: *body.Name}
	}
	return r.ReserveAddress(ctx, create)
}

func mapCloudIP(ctx context.Context, r *dialect.Request, body struct {
	Destination string `json:"destination"`
}) (*api.ReservedAddress, error) {
	id, err := cloudIPKind.NativeID(ctx, r, dialect.InPath(r))
	if err != nil {
		return nil, err
	}
	var to api.AddressAttach
	if _, isServer := serverKind.Read(body.Destination); isServer {
		to.InstanceID, err = serverKind.NativeID(ctx, r, body.Destination)
	} else {
		to.LoadBalancerID, err = loadBalancerKind.NativeID(ctx, r, body.Destination)
	}
	if err != nil {
		return nil, dialect.Invalid("destination", "%q is no server and no load balancer", body.Destination)
	}
	return r.AttachAddress(ctx, id, to)
}

func unmapCloudIP(ctx context.Context, r *dialect.Request, _ struct{}) (*api.ReservedAddress, error) {
	return dialect.Find(ctx, r, cloudIPKind.Kind, dialect.InPath(r), r.DetachAddress)
}

func deleteCloudIP(ctx context.Context, r *dialect.Request, _ struct{}) (any, error) {
	id, err := cloudIPKind.NativeID(ctx, r, dialect.InPath(r))
	if err != nil {
		return nil, err
	}
	a, err := r.Cloud.Addresses.Get(ctx, r.Project, id)
	if err != nil {
		return nil, err
	}
	return toCloudIP(r, a.ReservedAddress), r.ReleaseAddress(ctx, id)
}
