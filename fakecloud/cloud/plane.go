// This file answers: how do load balancers reach the data plane?

package cloud

import (
	"context"
	"database/sql"
	"errors"
	"net/netip"
	"time"

	"github.com/ccmlab/ccmlab/fakecloud/store"
)

// Forwarding is what the data plane needs to know of a balancer.
type Forwarding struct {
	ID        string
	Address   netip.Addr
	Listeners []Listener
	// Backends are the addresses of the targets that run.
	Backends []netip.Addr
}

// DataPlane forwards packets for load balancers. Calls for one balancer do not
// overlap.
type DataPlane interface {
	// Apply puts a balancer's forwarding in force. It does so wholly, or returns
	// an error, a sentence a person can act on, and leaves what was in force
	// before. Connections that need not end do not.
	Apply(Forwarding) error
	// Remove ends a balancer's listeners and connections. An unknown one is fine.
	Remove(id string)
	// Stats gives the counters of a balancer's listeners.
	Stats(id string) []ListenerStats
}

// forced is a balancer's configuration as it is forwarding now. It differs
// from the stored one while an update has not been built yet or cannot be.
type forced struct {
	address   netip.Addr
	listeners []Listener
	targets   []string
}

// build brings a balancer's stored configuration into force and records how
// that ended.
func (c *Cloud) build(ctx context.Context, id string) error {
	c.planeMu.Lock()
	defer c.planeMu.Unlock()
	var lb LoadBalancer
	var backends []netip.Addr
	err := c.store.Read(ctx, func(tx *store.Tx) error {
		row, err := tx.GetLoadBalancer(ctx, id)
		if err != nil {
			return err
		}
		if lb, err = loadBalancerFrom(ctx, tx, row); err != nil {
			return err
		}
		backends, err = runningOf(ctx, tx, lb.Targets)
		return err
	})
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return nil
	case err != nil:
		return err
	}
	if _, ok := find(LoadBalancerRules, lb.State, Built); !ok {
		return nil // It is being deleted.
	}
	failure := c.cfg.DataPlane.Apply(Forwarding{ID: id, Address: lb.Address, Listeners: lb.Listeners, Backends: backends})
	if failure == nil {
		c.inForce[id] = forced{lb.Address, lb.Listeners, lb.Targets}
	}
	return c.recordBuild(ctx, lb, failure)
}

// recordBuild writes the outcome, unless the balancer has changed meanwhile:
// then it is built again.
func (c *Cloud) recordBuild(ctx context.Context, built LoadBalancer, failure error) error {
	on, reason := Built, ""
	if failure != nil {
		on, reason = Failed, failure.Error()
	}
	return c.change(ctx, func(ctx context.Context, tx *store.Tx, now time.Time) error {
		row, err := tx.GetLoadBalancer(ctx, built.ID)
		if err != nil {
			return err
		}
		lb, err := loadBalancerFrom(ctx, tx, row)
		if err != nil || lb.Version != built.Version {
			return err
		}
		rule, ok := find(LoadBalancerRules, lb.State, on)
		if !ok || rule.Same {
			return nil
		}
		from, before := lb.State, lb.StateReason
		lb.State, lb.StateReason, lb.due = rule.To, reason, c.after(now, rule.Wait)
		if from == lb.State && before == reason {
			return updateLoadBalancerRow(ctx, tx, lb) // Only the next try moves.
		}
		if failure != nil {
			c.log.Warn("load balancer cannot be built", "id", lb.ID, "name", lb.Name, "reason", reason)
		}
		return saveLoadBalancer(ctx, tx, from, &lb, now)
	})
}

func runningOf(ctx context.Context, tx *store.Tx, targets []string) ([]netip.Addr, error) {
	rows, err := tx.RunningAddresses(ctx, listJSON(targets))
	if err != nil {
		return nil, err
	}
	return mapAll(rows, func(a *string) (netip.Addr, error) { return netip.ParseAddr(*a) })
}

// retarget tells the balancers that forward to an instance that it may have
// started or ceased to run.
func (c *Cloud) retarget(ctx context.Context, instance string) {
	c.planeMu.Lock()
	defer c.planeMu.Unlock()
	for id, f := range c.inForce {
		for _, t := range f.targets {
			if t == instance {
				c.refresh(ctx, id, f)
			}
		}
	}
}

// refresh forwards as before, to those targets that run now.
func (c *Cloud) refresh(ctx context.Context, id string, f forced) {
	var backends []netip.Addr
	err := c.store.Read(ctx, func(tx *store.Tx) (err error) {
		backends, err = runningOf(ctx, tx, f.targets)
		return err
	})
	if err == nil {
		err = c.cfg.DataPlane.Apply(Forwarding{ID: id, Address: f.address, Listeners: f.listeners, Backends: backends})
	}
	if err != nil {
		c.log.Error("load balancer keeps targets that do not run", "id", id, "err", err)
	}
}

// unforce ends a balancer's forwarding.
func (c *Cloud) unforce(id string) {
	c.planeMu.Lock()
	defer c.planeMu.Unlock()
	c.cfg.DataPlane.Remove(id)
	delete(c.inForce, id)
}
