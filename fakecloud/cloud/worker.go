package cloud

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/ccmlab/ccmlab/fakecloud/store"
)

// afterTrouble is the pause after a step that failed, so that a full disk is
// not hammered.
const afterTrouble = time.Second

// shared is how many transitions wait for the disk together at most. Others who
// write wait meanwhile.
const shared = 128

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
		if err == nil && !next.IsZero() && !next.After(c.clock.Now()) {
			// The time came before the timer ran. A clock that is set by hand may
			// have gone by more than moments meanwhile, and the timer be as late.
			timer.Stop()
			continue
		}
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
	for some := range slices.Chunk(ids, shared) {
		if err := c.turnBalancers(ctx, some, true); err != nil {
			return err
		}
	}
	return nil
}

// step makes every transition that is due and says when the next will be; zero
// when none is under way. When ctx ends, the transitions under way are its last.
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
		someUntil(ending, instances, func(ids []string) error { return c.elapseInstances(ctx, ids) }),
		someUntil(ending, balancers, func(ids []string) error { return c.turnBalancers(ctx, ids, false) }),
		c.tellConditions(ctx),
	)
	if err != nil {
		return time.Time{}, err
	}
	return c.nextDue(ctx)
}

// someUntil hands out as many as share a write, and stops once ending is closed.
func someUntil(ending <-chan struct{}, ids []string, do func(some []string) error) error {
	var errs []error
	for some := range slices.Chunk(ids, shared) {
		select {
		case <-ending:
			return errors.Join(errs...)
		default:
		}
		errs = append(errs, do(some))
	}
	return errors.Join(errs...)
}

// changing is what a transition writes.
type changing func(ctx context.Context, tx *changeTx, now time.Time) error

// changeAll makes changes in their order, in one write: they wait for the disk
// once. If that fails they are made one by one, so that what cannot be written
// holds up nothing else.
func (c *Cloud) changeAll(ctx context.Context, all []changing) error {
	if len(all) == 0 {
		return nil
	}
	err := c.change(ctx, func(ctx context.Context, tx *changeTx, now time.Time) error {
		for _, one := range all {
			if err := one(ctx, tx, now); err != nil {
				return err
			}
		}
		return nil
	})
	if err == nil || len(all) == 1 {
		return err
	}
	var errs []error
	for _, one := range all {
		errs = append(errs, c.change(ctx, one))
	}
	return errors.Join(errs...)
}

// elapseInstances ends the states that instances are in, if their time has come.
func (c *Cloud) elapseInstances(ctx context.Context, ids []string) error {
	all := make([]changing, len(ids))
	for i, id := range ids {
		all[i] = func(ctx context.Context, tx *changeTx, now time.Time) error {
			return c.elapseInstance(ctx, tx, id, now)
		}
	}
	err := c.changeAll(ctx, all)
	// Even if some failed: others did not.
	c.retarget(ctx, ids...)
	return err
}

func (c *Cloud) elapseInstance(ctx context.Context, tx *changeTx, id string, now time.Time) error {
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
}

// turnBalancers builds those balancers that are due or, if it is early, that
// are not; and lets deleted ones go that are due. The data plane comes first, one
// by one, then what became of all is written.
func (c *Cloud) turnBalancers(ctx context.Context, ids []string, early bool) error {
	c.planeMu.Lock()
	defer c.planeMu.Unlock()
	var all []changing
	var errs []error
	for _, id := range ids {
		outcome, err := c.turnBalancer(ctx, id, early)
		errs = append(errs, err)
		if outcome != nil {
			all = append(all, outcome)
		}
	}
	return errors.Join(append(errs, c.changeAll(ctx, all))...)
}

// turnBalancer gives what is to be written, or nil. What was due when it was
// looked up may have been given a new time since.
func (c *Cloud) turnBalancer(ctx context.Context, id string, early bool) (changing, error) {
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
		return nil, nil
	case err != nil || !early && !isDue(lb.due, c.now()):
		return nil, err
	}
	_, deleting := find(LoadBalancerRules, lb.State, Elapsed)
	if deleting && early {
		return nil, nil
	}
	held, err := c.holdLoadBalancer(ctx, lb)
	switch {
	case err != nil || held && !early:
		return nil, err
	case deleting:
		// The sockets go first: the next balancer may get the address at once.
		c.unforce(id)
		return func(ctx context.Context, tx *changeTx, now time.Time) error { return c.dropBalancer(ctx, tx, id, now) }, nil
	}
	failure, err := c.build(ctx, lb)
	if err != nil || held {
		return nil, err // If held it forwards as before, and is as unfinished.
	}
	return c.recordBuild(lb, failure), nil
}

// dropBalancer ends the life of a deleted balancer.
func (c *Cloud) dropBalancer(ctx context.Context, tx *changeTx, id string, now time.Time) error {
	row, err := tx.GetLoadBalancer(ctx, id)
	if err != nil {
		return err
	}
	lb, err := loadBalancerFrom(ctx, tx.Tx, row)
	if err != nil {
		return err
	}
	if err := tx.DeleteLoadBalancer(ctx, id); err != nil {
		return err
	}
	if lb.AddressID == "" {
		c.addresses.release(tx.Tx, lb.Address)
	}
	c.addresses6.release(tx.Tx, lb.Address6)
	if err := giveBackAll(ctx, tx, id, now); err != nil {
		return err
	}
	lb.Version++
	lb.UpdatedAt = now
	return appendEvent(ctx, tx, Deleted, lb.State, lb)
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
	return earliest(next, c.nextSweep(), c.conditions.next()), err
}

// earliest leaves out those that are zero.
func earliest(times ...time.Time) (first time.Time) {
	for _, t := range times {
		if first.IsZero() || !t.IsZero() && t.Before(first) {
			first = t
		}
	}
	return first
}
