package cloud

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/store"
)

// maxAttached is how many reserved addresses can be attached to one instance or balancer. An Oxide rack has
// the same limit for instances.
const maxAttached = 32

// ReservedAddress is an address of the load balancers' pool that a project owns, whether
// or not something holds it.
type ReservedAddress struct{ api.ReservedAddress }

func (a ReservedAddress) describe() description {
	row := rowOf(api.ResourceAddress, a.Metadata)
	row.State, row.Address, row.RefersTo = string(a.State), textOrNull(a.IP), textOrNull(a.holder().ID)
	return description{row, ""}
}

// holder is zero while the address is available.
func (a ReservedAddress) holder() api.AddressHolder { return api.ValueOf(a.Holder) }

func (a ReservedAddress) addr() netip.Addr {
	ip, _ := netip.ParseAddr(a.IP)
	return ip
}

func (c *Cloud) addresses() Kind[ReservedAddress, api.ReservedAddressCreate, api.ResourceUpdate] {
	return Kind[ReservedAddress, api.ReservedAddressCreate, api.ResourceUpdate]{
		cloud: c, idPrefix: "a", namePrefix: "address-", quota: QuotaAddresses,
		check: func(spec api.ReservedAddressCreate) (api.ResourceUpdate, error) {
			return api.ResourceUpdate{Name: spec.Name, Tags: spec.Tags, Records: spec.Records}, nil
		},
		build: func(
			ctx context.Context,
			tx *changeTx,
			p Project,
			spec api.ReservedAddressCreate,
		) (a ReservedAddress, err error) {
			ip, err := c.chooseReservedIP(ctx, tx.Tx, p, api.ValueOf(spec.IP))
			rule, _ := findRule(AddressRules, addressNone, Create)
			a.Region, a.IP, a.State = c.cfg.Region, ip.String(), rule.To
			return a, err
		},
		beforeDelete: func(_ context.Context, tx *changeTx, _ Project, a ReservedAddress) error {
			if _, ok := findRule(AddressRules, a.State, Delete); !ok {
				return a.refuseInUse("detach it, or delete the balancer, first")
			}
			c.usedIPv4.markFree(tx.Tx, a.addr())
			return nil
		},
		complete: c.setUnreachableReason,
	}
}

// chooseReservedIP takes the address asked for, if it is free, or the lowest free one.
func (c *Cloud) chooseReservedIP(ctx context.Context, tx *store.Tx, p Project, want string) (netip.Addr, error) {
	pool := c.cfg.LoadBalancerCIDR
	if want == "" {
		return c.usedIPv4.takeLowestFree(tx, pool)
	}
	ip, err := netip.ParseAddr(want)
	if err != nil || !isHostOf(pool, ip) {
		return ip, refuse(
			InvalidRequest, "%q cannot be reserved: choose an address of %s that is neither its first nor its last",
			want, pool,
		).withField("ip", "is not in the pool, %s", pool)
	}
	return ip, c.takeWanted(ctx, tx, p, "ip", ip)
}

// AttachAddress gives an available address to an instance that is not terminating, or to a public load
// balancer that is not being deleted, as one more address to serve on. What has it already keeps it, and
// nothing changes.
func (c *Cloud) AttachAddress(ctx context.Context, p Project, id string, to api.AddressAttach) (ReservedAddress, error) {
	return c.changeAttachment(ctx, p, id, func(ctx context.Context, tx *changeTx, a *ReservedAddress) error {
		if to.LoadBalancerID != "" {
			return c.attachToBalancer(ctx, tx, p, a, api.AddressHolder{Kind: api.HolderLoadBalancer, ID: to.LoadBalancerID})
		}
		return c.attachToInstance(ctx, tx, p, a, api.AddressHolder{Kind: api.HolderInstance, ID: to.InstanceID})
	})
}

func (c *Cloud) attachToInstance(
	ctx context.Context,
	tx *changeTx,
	p Project,
	a *ReservedAddress,
	to api.AddressHolder,
) error {
	in, err := instanceToAttach(ctx, tx.Tx, p, to.ID)
	switch {
	case err != nil || a.holder() == to:
		return err
	case len(in.External) >= maxAttached:
		return refuseMoreAddresses(to, in.Name, "instanceId")
	}
	if err := holdAddress(ctx, tx, a, to); err != nil {
		return err
	}
	in.External = append(in.External, a.addr())
	return saveResource(ctx, tx, in.State, &in)
}

func refuseMoreAddresses(holder api.AddressHolder, name, field string) error {
	return refuse(
		WrongState, "%s %q (%s) has %d reserved addresses, which is the limit: detach one first",
		kindInWords(Resource(holder.Kind)), name, holder.ID, maxAttached,
	).withField(field, "has %d addresses", maxAttached)
}

// instanceToAttach finds the instance that an address is to be attached to.
func instanceToAttach(ctx context.Context, tx *store.Tx, p Project, id string) (Instance, error) {
	in, err := instanceToUse(ctx, tx, p, id, " to attach the address to", "attach the address to another")
	if err == nil && in.State == api.InstanceTerminating {
		err = refuse(
			WrongState, "instance %q (%s) is terminating: attach the address to another", in.Name, id,
		).withField("instanceId", "is terminating")
	}
	return in, err
}

// DetachAddress takes an address from what it is attached to. An available address stays as it is.
func (c *Cloud) DetachAddress(ctx context.Context, p Project, id string) (ReservedAddress, error) {
	return c.changeAttachment(ctx, p, id, func(ctx context.Context, tx *changeTx, a *ReservedAddress) error {
		switch a.holder().Kind {
		case api.HolderInstance:
		case api.HolderLoadBalancer:
			return c.detachFromBalancer(ctx, tx, a)
		default:
			return nil
		}
		in, err := loadResource[Instance](ctx, tx.Tx, p, a.Holder.ID)
		if err != nil {
			return fmt.Errorf("holder of address %s: %w", a.ID, err)
		}
		if err := freeAddress(ctx, tx, a); err != nil {
			return err
		}
		in.External = slices.DeleteFunc(in.External, func(ip netip.Addr) bool { return ip == a.addr() })
		return saveResource(ctx, tx, in.State, &in)
	})
}

// addressChange changes an address in a transaction.
type addressChange func(ctx context.Context, tx *changeTx, a *ReservedAddress) error

// changeAttachment is changeAddress, after which the data plane follows.
func (c *Cloud) changeAttachment(
	ctx context.Context,
	p Project,
	id string,
	do addressChange,
) (ReservedAddress, error) {
	a, err := c.changeAddress(ctx, p, id, do)
	if err == nil {
		c.followAttachment(context.WithoutCancel(ctx), a.ID)
		c.setUnreachableReason(&a)
	}
	return a, err
}

// changeAddress runs do in a change, with an address that has the version the caller
// expects. It gives the address as do leaves it.
func (c *Cloud) changeAddress(ctx context.Context, p Project, id string, do addressChange) (ReservedAddress, error) {
	var a ReservedAddress
	err := c.change(ctx, func(ctx context.Context, tx *changeTx) (err error) {
		if a, err = loadToChange[ReservedAddress](ctx, tx, p, id); err != nil {
			return err
		}
		return do(ctx, tx, &a)
	})
	if err != nil {
		return ReservedAddress{}, err
	}
	return a, nil
}

func (a *ReservedAddress) refuseInUse(instead string) *Error {
	return refuse(InUse, "address %q (%s) is in use by %s %s: %s", a.Name, a.IP, a.Holder.Kind, a.Holder.ID, instead)
}

// holdAddress gives an available address to a holder.
func holdAddress(ctx context.Context, tx *changeTx, a *ReservedAddress, holder api.AddressHolder) error {
	rule, ok := findRule(AddressRules, a.State, Attach)
	if !ok {
		return a.refuseInUse("detach it first, or choose another")
	}
	from := a.State
	a.State, a.Holder = rule.To, &holder
	return saveResource(ctx, tx, from, a)
}

// freeAddress makes an address that is held available.
func freeAddress(ctx context.Context, tx *changeTx, a *ReservedAddress) error {
	rule, ok := findRule(AddressRules, a.State, Detach)
	if !ok || rule.Same {
		return fmt.Errorf("address %s is %s and cannot be released", a.ID, a.State)
	}
	from := a.State
	a.State, a.Holder = rule.To, nil
	return saveResource(ctx, tx, from, a)
}

// freeAddressesHeldBy makes all addresses of a holder available, as the holder ends.
func freeAddressesHeldBy(ctx context.Context, tx *changeTx, holder string) error {
	held, err := resourcesReferringTo[ReservedAddress](ctx, tx.Tx, holder)
	if err != nil {
		return err
	}
	for _, a := range held {
		if err := freeAddress(ctx, tx, &a); err != nil {
			return err
		}
	}
	return nil
}

// releaseExternalAddresses frees an instance's addresses, as the instance ends.
func releaseExternalAddresses(ctx context.Context, tx *changeTx, in *Instance) error {
	if len(in.External) == 0 {
		return nil
	}
	in.External = nil
	return freeAddressesHeldBy(ctx, tx, in.ID)
}

// balancerAddress gives the address of a new balancer: the reserved one that it asks for,
// or else the lowest free one and a nil reservation.
func (c *Cloud) balancerAddress(
	ctx context.Context,
	tx *store.Tx,
	p Project,
	spec api.LoadBalancerCreate,
) (string, *ReservedAddress, error) {
	if spec.AddressID == "" && spec.Address == "" {
		ip, err := c.usedIPv4.takeLowestFree(tx, c.cfg.LoadBalancerCIDR)
		return ip.String(), nil, err
	}
	field, findAddress, want := "addressId", resourceByID[ReservedAddress], spec.AddressID
	if spec.AddressID == "" {
		field, findAddress, want = "address", addressByIP, spec.Address
	}
	a, err := findAddress(ctx, tx, want)
	switch {
	case errors.Is(err, sql.ErrNoRows) || err == nil && a.Project != p.ID:
		return "", nil, refuse(
			UnknownAddress, "project %q has not reserved an address %q: reserve it first, or leave it out", p.Name,
			want,
		).withField(field, "is not a reserved address of the project")
	case err != nil:
		return "", nil, err
	}
	if a.State != api.AddressAvailable {
		err = refuse(
			AddressInUse, "address %q (%s) is in use by %s %s: choose another", a.Name, a.IP, a.Holder.Kind,
			a.Holder.ID,
		).withField(field, "is in use")
	}
	return a.IP, &a, err
}

// checkAddressChoice refuses to name an address in two ways, and a reserved address for an
// internal balancer.
func checkAddressChoice(spec api.LoadBalancerCreate) error {
	if spec.AddressID != "" && spec.Address != "" {
		return refuse(InvalidRequest, "a reserved address by its ID and one by its IP: give one of the two").
			withField("address", "cannot be given beside addressId")
	}
	if spec.Scheme == api.SchemeInternal && spec.AddressID+spec.Address != "" {
		field := "addressId"
		if spec.AddressID == "" {
			field = "address"
		}
		return refuse(InvalidRequest, "reserved addresses are public: leave it out, or make the balancer public").
			withField(field, "is not for an internal balancer")
	}
	return nil
}

// checkReservable refuses to make a balancer internal that holds a reserved address.
func checkReservable(lb LoadBalancer) error {
	reserved := slices.Clone(lb.AttachedAddresses)
	if lb.AddressID != "" {
		reserved = append(reserved, lb.Address)
	}
	if lb.Scheme == api.SchemeInternal && len(reserved) > 0 {
		return refuse(
			InvalidRequest,
			"load balancer %q has the reserved address %s, which is public: create another balancer for internal use",
			lb.Name, reserved[0],
		).withField("scheme", "must be public, as is its reserved address")
	}
	return nil
}

// checkSameAddress refuses an update that names another address than the balancer has.
func checkSameAddress(lb LoadBalancer, u api.LoadBalancerUpdate) error {
	final := func(field string) error {
		return refuse(
			InvalidRequest, "the address of load balancer %q is final (%s): leave it out, or create another balancer",
			lb.Name, lb.Address,
		).withField(field, "is final")
	}
	var errs []error
	if u.AddressID != nil && *u.AddressID != lb.AddressID {
		errs = append(errs, final("addressId"))
	}
	if u.Address != nil && *u.Address != lb.Address {
		errs = append(errs, final("address"))
	}
	return joinRefusals(errs...)
}

func addressByIP(ctx context.Context, tx *store.Tx, ip string) (ReservedAddress, error) {
	row, err := tx.AddressByIP(ctx, &ip)
	if err != nil {
		return ReservedAddress{}, err
	}
	return resourceFrom[ReservedAddress](row)
}
