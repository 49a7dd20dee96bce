package oxide

import (
	"context"

	"github.com/oxidecomputer/oxide.go/oxide"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
	"github.com/ccmlab/ccmlab/fakecloud/dialect"
	"github.com/ccmlab/ccmlab/fakecloud/identity"
)

// tagDescription is the tag in which an address has its description, which the cloud has no other place for.
const tagDescription = "description"

// findAddress reads the address in the call's path.
func findAddress(ctx context.Context, r *dialect.Request, _ struct{}) (*api.ReservedAddress, error) {
	return findResource(ctx, r, api.ResourceAddress, dialect.InPath(r), r.GetAddress,
		func(ctx context.Context, name string) ([]api.ReservedAddress, error) {
			return r.ListAddresses(ctx, client.AddressFilter{Name: name})
		})
}

// toFloatingIP makes a floating IP of an address. That of a balancer, which this dialect does not know, is
// attached to no instance, and can neither be attached nor deleted.
func toFloatingIP(ctx context.Context, r *dialect.Request, a *api.ReservedAddress) (oxide.FloatingIp, error) {
	out := oxide.FloatingIp{
		Id: identity.UUID(a.Serial).String(), Name: oxide.Name(a.Name), Description: a.Tags[tagDescription],
		Ip: a.IP, IpPoolId: poolID, ProjectId: projectID(r),
		TimeCreated: &a.CreatedAt, TimeModified: &a.UpdatedAt,
	}
	if a.Holder == nil || a.Holder.Kind != api.HolderInstance {
		return out, nil
	}
	in, err := r.Cloud.GetInstance(ctx, r.Project, a.Holder.ID)
	out.InstanceId = identity.UUID(in.Serial).String()
	return out, err
}

func createFloatingIP(ctx context.Context, r *dialect.Request, body oxide.FloatingIpCreate) (*api.ReservedAddress, error) {
	if err := checkProject(r); err != nil {
		return nil, err
	}
	if len(body.Name) > maxName || body.Name == "" {
		return nil, dialect.Invalid("name", "must have 1 to %d characters", maxName)
	}
	create := api.ReservedAddressCreate{Name: new(string(body.Name))}
	if body.Description != "" {
		create.Tags = &api.Tags{tagDescription: body.Description}
	}
	if explicit, ok := body.AddressAllocator.AsExplicit(); ok {
		create.IP = &explicit.Ip
	} else if err := checkAllocator(body.AddressAllocator); err != nil {
		return nil, err
	}
	return r.ReserveAddress(ctx, create)
}

// maxName is the length of a name at Oxide.
const maxName = 63

// checkAllocator refuses an address of another pool than there is. One that is not given is any.
func checkAllocator(from oxide.AddressAllocator) error {
	auto, ok := from.AsAuto()
	if !ok {
		return nil
	}
	if explicit, ok := auto.PoolSelector.AsExplicit(); ok && !isPool(string(explicit.Pool)) {
		return dialect.NotFound("not found: ip-pool with name or id %q", explicit.Pool)
	}
	if version, ok := auto.PoolSelector.AsAuto(); ok && version.IpVersion == oxide.IpVersionV6 {
		return dialect.NotFound("not found: default IPv6 pool for the current silo")
	}
	return nil
}

func attachFloatingIP(ctx context.Context, r *dialect.Request, body oxide.FloatingIpAttach) (*api.ReservedAddress, error) {
	if body.Kind != oxide.FloatingIpParentKindInstance {
		return nil, dialect.Invalid("kind", "%q is none: a floating IP is attached to an instance", body.Kind)
	}
	a, err := findAddress(ctx, r, struct{}{})
	if err != nil {
		return nil, err
	}
	in, err := findInstance(ctx, r, string(body.Parent))
	if err != nil {
		return nil, err
	}
	return r.AttachAddress(ctx, a.ID, api.AddressAttach{InstanceID: in.ID})
}

func detachFloatingIP(ctx context.Context, r *dialect.Request, _ struct{}) (*api.ReservedAddress, error) {
	a, err := findAddress(ctx, r, struct{}{})
	if err != nil {
		return nil, err
	}
	if a.Holder == nil {
		return nil, dialect.Invalid("floating IP", "%q is not attached to anything", a.Name)
	}
	return r.DetachAddress(ctx, a.ID)
}

func deleteFloatingIP(ctx context.Context, r *dialect.Request, _ struct{}) (any, error) {
	a, err := findAddress(ctx, r, struct{}{})
	if err != nil {
		return nil, err
	}
	return nil, r.ReleaseAddress(ctx, a.ID)
}
