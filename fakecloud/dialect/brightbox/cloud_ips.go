package brightbox

import (
	"context"
	"net/http"
	"net/netip"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
	"github.com/ccmlab/ccmlab/fakecloud/cloud"
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

// toCloudIP makes a cloud IP of an address that is mapped to a balancer, or to something else.
func toCloudIP(r *dialect.Request, a cloud.ReservedAddress, mapped *resource) cloudIP {
	byNumber, byDots := dns.NamesOf(a.IP)
	out := cloudIP{
		resource: cloudIPKind.newResource(r, a.Serial, a.Tags[dialect.TagName]),
		PublicIP: a.IP.String(), PublicIPv4: a.IP.String(), PublicIPv6: identity.IPv6Of(a.IP.String()),
		FQDN: byNumber, ReverseDNS: byDots, Mode: "nat", LoadBalancer: mapped,
	}
	out.Status = "unmapped"
	if a.Holder.ID != "" {
		out.Status = "mapped"
	}
	return out
}

// readCloudIP gives the cloud IP that an address is now.
func readCloudIP(ctx context.Context, r *dialect.Request, a cloud.ReservedAddress) (cloudIP, error) {
	switch a.Holder.Kind {
	case cloud.LoadBalancerResource:
		lb, err := r.Cloud.GetLoadBalancer(ctx, r.Project, a.Holder.ID)
		mapped := loadBalancerKind.newResource(r, lb.Serial, dialect.NameOf(lb.Name, lb.Tags))
		mapped.CreatedAt, mapped.Status = &lb.CreatedAt, balancerStatuses[api.LoadBalancerState(lb.State)]
		return toCloudIP(r, a, &mapped), err
	case cloud.InstanceResource:
		in, err := r.Cloud.GetInstance(ctx, r.Project, a.Holder.ID)
		out := toCloudIP(r, a, nil)
		out.Server = new(referToServer(r, in.Serial, in.Name, api.InstanceState(in.State)))
		return out, err
	}
	return toCloudIP(r, a, nil), nil
}

func listCloudIPs(ctx context.Context, r *dialect.Request, _ struct{}) (*dialect.Answer, error) {
	all, err := r.ListAddresses(ctx, client.AddressFilter{})
	out := make([]cloudIP, len(all))
	for i := 0; err == nil && i < len(all); i++ {
		out[i], err = showCloudIP(ctx, r, &all[i])
	}
	return dialect.OK(out), err
}

// showCloudIP gives the cloud IP of what a native call answered.
func showCloudIP(ctx context.Context, r *dialect.Request, a *api.ReservedAddress) (cloudIP, error) {
	address := cloud.ReservedAddress{Metadata: cloud.Metadata{Metadata: api.Metadata{Serial: a.Serial, Tags: a.Tags}}}
	if a.Holder != nil {
		address.Holder = cloud.AddressHolder{Kind: cloud.Resource(a.Holder.Kind), ID: a.Holder.ID}
	}
	var err error
	if address.IP, err = netip.ParseAddr(a.IP); err != nil {
		return cloudIP{}, err
	}
	return readCloudIP(ctx, r, address)
}

// findAddress gives the native ID of the cloud IP in the call's path.
func findAddress(ctx context.Context, r *dialect.Request) (string, error) {
	return cloudIPKind.NativeID(ctx, r, dialect.InPath(r))
}

func getCloudIP(ctx context.Context, r *dialect.Request, _ struct{}) (*dialect.Answer, error) {
	answer := answerCloudIP(ctx, r, http.StatusOK)
	return answer(dialect.Find(ctx, r, cloudIPKind.Kind, dialect.InPath(r), r.GetAddress))
}

func createCloudIP(ctx context.Context, r *dialect.Request, body struct {
	Name *string `json:"name,omitempty"`
}) (*dialect.Answer, error) {
	create := api.ReservedAddressCreate{}
	if body.Name != nil {
		create.Tags = &api.Tags{dialect.TagName: *body.Name}
	}
	return answerCloudIP(ctx, r, http.StatusCreated)(r.ReserveAddress(ctx, create))
}

func mapCloudIP(ctx context.Context, r *dialect.Request, body struct {
	Destination string `json:"destination"`
}) (*dialect.Answer, error) {
	id, err := findAddress(ctx, r)
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
	return answerCloudIP(ctx, r, http.StatusAccepted)(r.AttachAddress(ctx, id, to))
}

func unmapCloudIP(ctx context.Context, r *dialect.Request, _ struct{}) (*dialect.Answer, error) {
	id, err := findAddress(ctx, r)
	if err != nil {
		return nil, err
	}
	return answerCloudIP(ctx, r, http.StatusAccepted)(r.DetachAddress(ctx, id))
}

// answerCloudIP answers a native call about a cloud IP with what that is now.
func answerCloudIP(
	ctx context.Context,
	r *dialect.Request,
	status int,
) func(a *api.ReservedAddress, err error) (*dialect.Answer, error) {
	return func(a *api.ReservedAddress, err error) (*dialect.Answer, error) {
		if err != nil {
			return nil, err
		}
		ip, err := showCloudIP(ctx, r, a)
		return &dialect.Answer{Status: status, Body: ip}, err
	}
}

func deleteCloudIP(ctx context.Context, r *dialect.Request, _ struct{}) (*dialect.Answer, error) {
	id, err := findAddress(ctx, r)
	if err != nil {
		return nil, err
	}
	a, err := r.Cloud.GetAddress(ctx, r.Project, id)
	if err != nil {
		return nil, err
	}
	return dialect.OK(toCloudIP(r, a, nil)), r.ReleaseAddress(ctx, id)
}
