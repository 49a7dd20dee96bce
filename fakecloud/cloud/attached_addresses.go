package cloud

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/store"
)

// AttachedAddress is no kind of load balancers. With it the data plane passes all that comes to a
// reserved address on to the instance that the address is attached to, whatever the protocol and port.
const AttachedAddress LoadBalancerKind = "attached-address"

// setUnreachableReason says why nothing is passed on to the instance that the address is attached to, if so.
func (c *Cloud) setUnreachableReason(a *ReservedAddress) {
	if a.holder().Kind != api.HolderInstance {
		return
	}
	if err := c.cfg.DataPlane.CanForward(AttachedAddress); err != nil {
		a.StateReason = new(err.Error())
	}
}

// followAttachment has the data plane know that an address was attached or detached. What fails is tried
// again by the worker.
func (c *Cloud) followAttachment(ctx context.Context, id string) {
	c.planeMu.Lock()
	defer c.planeMu.Unlock()
	if err := c.forwardAttachedAddress(ctx, id); err != nil {
		c.retryForwarding(id, err)
	}
}

// forwardAttachedAddress has the data plane pass on what comes to a reserved address, or stop that, as the
// store has it. planeMu is held.
func (c *Cloud) forwardAttachedAddress(ctx context.Context, id string) error {
	if unreachable := c.cfg.DataPlane.CanForward(AttachedAddress); unreachable != nil {
		return nil //nolint:nilerr // setUnreachableReason tells it.
	}
	a, err := readOne(ctx, c, func(tx *store.Tx) (ReservedAddress, error) {
		a, err := resourceByID[ReservedAddress](ctx, tx, id)
		if errors.Is(err, sql.ErrNoRows) { // It was released, and is held by nothing.
			return ReservedAddress{}, nil
		}
		return a, err
	})
	switch {
	case err != nil:
		return err
	case a.holder().Kind != api.HolderInstance:
		c.stopForwarding(id)
		return nil
	}
	forwarder := LoadBalancer{LoadBalancer: api.LoadBalancer{
		Metadata: api.Metadata{ID: id}, Kind: AttachedAddress, Scheme: api.SchemePublic, Address: a.IP,
		Targets: []api.Target{{InstanceID: a.Holder.ID}},
	}}
	c.markForwarding(forwarder)
	failure, err := c.applyForwarding(ctx, &forwarder)
	if err := cmp.Or(failure, err); err != nil {
		return fmt.Errorf("address %s still leads to its previous holder: %w", id, err)
	}
	return nil
}

// forwardAttachedAddresses does so for all addresses, as the cloud starts.
func (c *Cloud) forwardAttachedAddresses(ctx context.Context) error {
	c.planeMu.Lock()
	defer c.planeMu.Unlock()
	ids, err := readOne(ctx, c, func(tx *store.Tx) ([]string, error) { return tx.HeldAddresses(ctx) })
	if err != nil {
		return err
	}
	for _, id := range ids {
		if err := c.forwardAttachedAddress(ctx, id); err != nil {
			c.retryForwarding(id, err)
		}
	}
	return nil
}

// attachToBalancer has a balancer serve on one more address.
func (c *Cloud) attachToBalancer(
	ctx context.Context,
	tx *changeTx,
	p Project,
	a *ReservedAddress,
	to api.AddressHolder,
) error {
	const field = "loadBalancerId"
	lb, err := loadResource[LoadBalancer](ctx, tx.Tx, p, to.ID)
	var refused *Error
	rule, ok := findRule(LoadBalancerRules, lb.State, Update)
	switch {
	case errors.As(err, &refused):
		return refuse(InvalidRequest, "no load balancer %q in project %q to attach the address to", to.ID, p.Name).
			withField(field, "is not a load balancer of the project")
	case err != nil || a.holder() == to:
		return err
	case !ok:
		return refuse(
			WrongState, "load balancer %q (%s) is %s: attach the address to another", lb.Name, lb.ID, lb.State,
		).withField(field, "is %s", lb.State)
	case lb.Scheme == api.SchemeInternal:
		return refuse(InvalidRequest, "load balancer %q is internal, and reserved addresses are public", lb.Name).
			withField(field, "is internal")
	case len(lb.AttachedAddresses) >= maxAttached:
		return refuseMoreAddresses(to, lb.Name, field)
	}
	if err := holdAddress(ctx, tx, a, to); err != nil {
		return err
	}
	lb.AttachedAddresses = append(lb.AttachedAddresses, a.IP)
	return c.saveToRebuild(ctx, tx, &lb, rule)
}

// detachFromBalancer has a balancer serve on one address less. One that is being deleted serves no more.
func (c *Cloud) detachFromBalancer(ctx context.Context, tx *changeTx, a *ReservedAddress) error {
	lb, err := resourceByID[LoadBalancer](ctx, tx.Tx, a.Holder.ID)
	switch {
	case err != nil:
		return fmt.Errorf("holder of address %s: %w", a.ID, err)
	case lb.AddressID == a.ID:
		return a.refuseInUse("its own address cannot be detached: delete the load balancer first")
	}
	if err := freeAddress(ctx, tx, a); err != nil {
		return err
	}
	lb.AttachedAddresses = slices.DeleteFunc(lb.AttachedAddresses, func(ip string) bool { return ip == a.IP })
	rule, ok := findRule(LoadBalancerRules, lb.State, Update)
	if !ok {
		return saveResource(ctx, tx, lb.State, &lb)
	}
	return c.saveToRebuild(ctx, tx, &lb, rule)
}
