package oxide

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	"github.com/oxidecomputer/oxide.go/oxide"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
	"github.com/ccmlab/ccmlab/fakecloud/cloud"
	"github.com/ccmlab/ccmlab/fakecloud/dialect"
	"github.com/ccmlab/ccmlab/fakecloud/identity"
)

// runStates are Oxide's words for the states of instances.
var runStates = map[api.InstanceState]oxide.InstanceState{
	api.InstancePending:     oxide.InstanceStateStarting,
	api.InstanceRunning:     oxide.InstanceStateRunning,
	api.InstanceStopping:    oxide.InstanceStateStopping,
	api.InstanceStopped:     oxide.InstanceStateStopped,
	api.InstanceTerminating: oxide.InstanceStateStopping,
	api.InstanceError:       oxide.InstanceStateFailed,
}

// findInstance reads an instance by its UUID or name. One that is terminated is not found: a rack keeps
// no instances that were deleted.
func findInstance(ctx context.Context, r *dialect.Request, reference string) (*api.Instance, error) {
	in, err := findResource(ctx, r, api.ResourceInstance, reference, r.GetInstance,
		func(ctx context.Context, name string) ([]api.Instance, error) {
			all, err := r.ListInstances(ctx, client.InstanceFilter{Name: name})
			return slices.DeleteFunc(all, dialect.IsGone), err
		})
	if err == nil && dialect.IsGone(*in) {
		return nil, dialect.NotFound("not found: instance with id %q", reference)
	}
	return in, err
}

func viewInstance(ctx context.Context, r *dialect.Request, _ struct{}) (any, error) {
	in, err := findInstance(ctx, r, dialect.InPath(r))
	if err != nil {
		return nil, err
	}
	_, size := dialect.SizeOf(in.Type)
	return oxide.Instance{
		Id: identity.UUID(in.Serial).String(), Name: oxide.Name(in.Name), Hostname: in.Name,
		ProjectId: projectID(r), RunState: runStates[in.State], AutoRestartEnabled: new(false),
		EnableJumboFrames: new(false),
		TimeCreated:       &in.CreatedAt, TimeModified: &in.UpdatedAt, TimeRunStateUpdated: &in.UpdatedAt,
		Ncpus:  oxide.InstanceCpuCount(size.Vcpus),        //nolint:gosec // A few.
		Memory: oxide.ByteCount(size.MemoryMiB) * 1 << 20, //nolint:gosec // Not negative.
	}, nil
}

func listNetworkInterfaces(ctx context.Context, r *dialect.Request, _ struct{}) (any, error) {
	in, err := findInstance(ctx, r, r.HTTP.URL.Query().Get("instance"))
	if err != nil {
		return nil, err
	}
	network, err := r.Cloud.Networks.Get(ctx, r.Project, in.NetworkID)
	if err != nil {
		return nil, err
	}
	page := oxide.InstanceNetworkInterfaceResultsPage{Items: []oxide.InstanceNetworkInterface{}}
	for _, a := range in.Addresses {
		if a.Type != api.AddressInternal || len(page.Items) > 0 { // A further one is left out.
			continue
		}
		page.Items = append(page.Items, oxide.InstanceNetworkInterface{
			// An interface lasts as long as its instance, and can have its number.
			Id: identity.UUID(in.Serial).String(), InstanceId: identity.UUID(in.Serial).String(), Name: "net0",
			Mac: macOf(a.IP), Primary: new(true),
			VpcId: identity.UUID(network.Serial).String(), SubnetId: identity.UUID(network.Serial).String(),
			IpStack: oxide.PrivateIpStack{Value: &oxide.PrivateIpStackV4{
				Value: oxide.PrivateIpv4Stack{Ip: a.IP, TransitIps: []oxide.Ipv4Net{}},
			}},
			TimeCreated: &in.CreatedAt, TimeModified: &in.CreatedAt,
		})
	}
	return page, nil
}

// macOf gives an interface a MAC address of Oxide's range (A8:40:25).
func macOf(ip string) oxide.MacAddr {
	a, err := netip.ParseAddr(ip)
	if err != nil {
		return ""
	}
	b := a.As16()
	return oxide.MacAddr(fmt.Sprintf("A8:40:25:%02X:%02X:%02X", b[13], b[14], b[15]))
}

func listExternalIPs(ctx context.Context, r *dialect.Request, _ struct{}) (any, error) {
	in, err := findInstance(ctx, r, dialect.InPath(r))
	if err != nil {
		return nil, err
	}
	reserved, err := r.Addresses(ctx)
	if err != nil {
		return nil, err
	}
	page := oxide.ExternalIpResultsPage{Items: []oxide.ExternalIp{}}
	for _, a := range in.Addresses {
		at := slices.IndexFunc(reserved, func(has cloud.ReservedAddress) bool { return has.IP == a.IP })
		if a.Type != api.AddressExternal || at < 0 {
			continue
		}
		ip := oxide.ExternalIpFloating{
			Id: identity.UUID(reserved[at].Serial).String(), Name: oxide.Name(reserved[at].Name),
			Description: reserved[at].Tags[tagDescription], Ip: a.IP, IpPoolId: poolID, ProjectId: projectID(r),
			InstanceId:  identity.UUID(in.Serial).String(),
			TimeCreated: &reserved[at].CreatedAt, TimeModified: &reserved[at].UpdatedAt,
		}
		page.Items = append(page.Items, oxide.ExternalIp{Value: &ip})
	}
	return page, nil
}
