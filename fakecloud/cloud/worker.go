// This file answers: what happens by itself, and when?

package cloud

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/ccmlab/ccmlab/fakecloud/store"
)

// afterTrouble is the pause after a step that failed, so that a full disk is
// not hammered.
const afterTrouble = time.Second

// Run restores the balancers, then makes transitions as they fall due, until
// ctx ends. What was due while no process ran happens at once. With a virtual
// clock, transitions are left to Advance.
func (c *Cloud) Run(ctx context.Context) error {
	if err := c.restore(ctx); err != nil {
		return fmt.Errorf("restoring load balancers: %w", err)
	}
	close(c.ready)
	if c.cfg.Virtual != nil {
		<-ctx.Done()
		return nil
	}
	for ctx.Err() == nil {
		next, err := c.step(ctx)
		wait := afterTrouble
		switch {
		case err != nil:
			c.log.Error("a transition failed and will be tried again", "err", err)
		case next.IsZero():
			wait = time.Hour // Nothing is due; a change will wake us.
		default:
			wait = next.Sub(c.clock.Now())
		}
		timer := c.clock.NewTimer(max(wait, 0))
		select {
		case <-ctx.Done():
		case <-timer.Chan():
		case <-c.wake:
		}
		timer.Stop()
	}
	return nil
}

// restore brings back into force what was forwarding, or about to, when the
// last process ended.
func (c *Cloud) restore(ctx context.Context) error {
	var ids []string
	err := c.store.Read(ctx, func(tx *store.Tx) error {
		all, err := tx.AllLoadBalancerIDs(ctx)
		if err != nil {
			return err
		}
		for _, id := range all {
			row, err := tx.GetLoadBalancer(ctx, id)
			if err != nil {
				return err
			}
			switch LoadBalancerState(row.State) {
			case LoadBalancerActive, LoadBalancerUpdating, LoadBalancerError:
				ids = append(ids, id)
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	for _, id := range ids {
		if err := c.build(ctx, id, true); err != nil {
			return err
		}
	}
	return nil
}

// step makes every transition that is due and says when the next will be; zero
// when none is under way. When ctx ends, the transition under way is its last.
func (c *Cloud) step(ctx context.Context) (next time.Time, err error) {
	ending := ctx.Done()
	ctx = context.WithoutCancel(ctx)
	if err := c.SweepFaults(ctx); err != nil {
		return time.Time{}, err
	}
	now := c.now().UnixMilli()
	var instances, balancers []string
	err = c.store.Read(ctx, func(tx *store.Tx) (err error) {
		if instances, err = tx.InstancesDue(ctx, &now); err != nil {
			return err
		}
		balancers, err = tx.LoadBalancersDue(ctx, &now)
		return err
	})
	if err != nil {
		return time.Time{}, err
	}
	err = errors.Join(
		c.refreshDirty(ctx),
		eachUntil(ending, instances, func(id string) error { return c.elapseInstance(ctx, id) }),
		eachUntil(ending, balancers, func(id string) error { return c.elapseLoadBalancer(ctx, id) }),
	)
	if err != nil {
		return time.Time{}, err
	}
	return c.nextDue(ctx)
}

// eachUntil stops between two items once ending is closed.
func eachUntil(ending <-chan struct{}, ids []string, do func(id string) error) error {
	var errs []error
	for _, id := range ids {
		select {
		case <-ending:
			return errors.Join(errs...)
		default:
		}
		errs = append(errs, do(id))
	}
	return errors.Join(errs...)
}

// elapseInstance ends the state an instance is in, if its time has come.
func (c *Cloud) elapseInstance(ctx context.Context, id string) error {
	err := c.change(ctx, func(ctx context.Context, tx *store.Tx, now time.Time) error {
		row, err := tx.GetInstance(ctx, id)
		if errors.Is(err, sql.ErrNoRows) {
			return nil
		}
		if err != nil {
			return err
		}
		in, err := instanceFrom(row)
		if err != nil || !isDue(in.due, now) {
			return err
		}
		rule, ok := find(InstanceRules, in.State, Elapsed)
		if !ok {
			return fmt.Errorf("instance %s is due in state %s, which does not end by itself", id, in.State)
		}
		return c.endState(ctx, tx, &in, rule, now)
	})
	if err == nil {
		c.retarget(ctx, id)
	}
	return err
}

// elapseLoadBalancer builds a balancer that is due, or lets a deleted one go.
// What was due when it was looked up may have been given a new time since.
func (c *Cloud) elapseLoadBalancer(ctx context.Context, id string) error {
	var lb LoadBalancer
	err := c.store.Read(ctx, func(tx *store.Tx) error {
		row, err := tx.GetLoadBalancer(ctx, id)
		if err != nil {
			return err
		}
		lb, err = loadBalancerFrom(ctx, tx, row)
		return err
	})
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return nil
	case err != nil || !isDue(lb.due, c.now()):
		return err
	}
	if _, deleting := find(LoadBalancerRules, lb.State, Elapsed); !deleting {
		return c.build(ctx, id, false)
	}
	if held, err := c.holdLoadBalancer(ctx, lb); held || err != nil {
		return err
	}
	// The sockets go first: the next balancer may get the address at once.
	c.unforce(id)
	return c.change(ctx, func(ctx context.Context, tx *store.Tx, now time.Time) error {
		row, err := tx.GetLoadBalancer(ctx, id)
		if err != nil {
			return err
		}
		lb, err := loadBalancerFrom(ctx, tx, row)
		if err != nil {
			return err
		}
		if err := tx.DeleteLoadBalancer(ctx, id); err != nil {
			return err
		}
		if lb.AddressID == "" {
			c.addresses.release(tx, lb.Address)
		}
		if err := giveBackAll(ctx, tx, id, now); err != nil {
			return err
		}
		lb.Version++
		lb.UpdatedAt = now
		return loadBalancerEvent(ctx, tx, Deleted, lb.State, lb)
	})
}

func (c *Cloud) nextDue(ctx context.Context) (time.Time, error) {
	var next time.Time
	err := c.store.Read(ctx, func(tx *store.Tx) error {
		for _, query := range []func(context.Context) (*int64, error){tx.NextInstanceDue, tx.NextLoadBalancerDue} {
			due, err := query(ctx)
			if errors.Is(err, sql.ErrNoRows) {
				continue
			}
			if err != nil {
				return err
			}
			if t := fromMillis(*due); next.IsZero() || t.Before(next) {
				next = t
			}
		}
		return nil
	})
	if t := c.nextSweep(); next.IsZero() || !t.IsZero() && t.Before(next) {
		next = t
	}
	return next, err
}
