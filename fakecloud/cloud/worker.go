package cloud

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/store"
	"github.com/ccmlab/ccmlab/fakecloud/store/db"
)

// pauseAfterError is the pause after a step that failed, so that a full disk is not
// written to all the time.
const pauseAfterError = time.Second

// maxSharedWrites is how many transitions share one commit at most. Other writers wait for
// it.
const maxSharedWrites = 128

// Run restores the balancers, then makes transitions as they fall due, until ctx ends.
// What fell due while no process ran happens at once. With a virtual clock, Advance makes
// the transitions.
func (c *Cloud) Run(ctx context.Context) error {
	if c.cfg.Virtual == nil {
		if err := c.change(ctx, c.boundDueTimes); err != nil {
			return err
		}
	}
	if err := c.restoreBalancers(ctx); err != nil {
		return fmt.Errorf("restoring load balancers: %w", err)
	}
	close(c.ready)
	if c.cfg.Virtual != nil {
		<-ctx.Done()
		return nil
	}
	for ctx.Err() == nil {
		next, err := c.runDueTransitions(ctx)
		wait := pauseAfterError
		switch {
		case err != nil:
			c.log.Error("a transition failed, retrying", "err", err)
		case next.IsZero():
			wait = time.Hour // Nothing is due. A change wakes the worker.
		default:
			wait = next.Sub(c.clock.Now())
		}
		timer := c.clock.NewTimer(max(wait, 0))
		if err == nil && !next.IsZero() && !next.After(c.clock.Now()) {
			// The time came before the timer was set. A fake clock may have been moved far
			// meanwhile, and the timer would be as late.
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

// boundDueTimes makes due now what would wait for longer than any wait is: the clock was ahead when that was stored.
func (c *Cloud) boundDueTimes(ctx context.Context, tx *changeTx) error {
	longest := maxRetryAfter
	for _, delay := range c.cfg.Profile.Delays {
		longest = max(longest, time.Duration(float64(delay)*(1+c.cfg.Profile.Jitter)))
	}
	ms := tx.now.UnixMilli()
	return tx.BoundDueTimes(ctx, db.BoundDueTimesParams{
		Now: &ms, Held: &heldDue, Retained: tx.now.Add(c.cfg.Retention).UnixMilli(), Latest: tx.now.Add(longest).UnixMilli(),
	})
}

// restoreBalancers puts back in force the balancers that were forwarding, or about to,
// when the last process ended, and the attached addresses.
func (c *Cloud) restoreBalancers(ctx context.Context) error {
	ids, err := readOne(ctx, c, func(tx *store.Tx) (ids []string, err error) {
		all, err := tx.AllLoadBalancers(ctx)
		for _, lb := range all {
			switch api.LoadBalancerState(lb.State) {
			case api.LoadBalancerActive, api.LoadBalancerUpdating, api.LoadBalancerError:
				ids = append(ids, lb.ID)
			}
		}
		return ids, err
	})
	if err != nil {
		return err
	}
	for some := range slices.Chunk(ids, maxSharedWrites) {
		if err := c.advanceBalancers(ctx, some, true); err != nil {
			return err
		}
	}
	return c.forwardAttachedAddresses(ctx)
}

// runDueTransitions makes every transition that is due and gives the time of the next;
// zero when none is under way. When ctx ends, it finishes the transitions it has begun and
// makes no others.
func (c *Cloud) runDueTransitions(ctx context.Context) (next time.Time, err error) {
	ending := ctx.Done()
	ctx = context.WithoutCancel(ctx)
	if err := c.SweepFaults(ctx); err != nil {
		return time.Time{}, err
	}
	now := c.now()
	due := map[Resource][]string{} // IDs
	err = c.store.Read(ctx, func(tx *store.Tx) error {
		rows, err := tx.ResourcesDue(ctx, millisOrNull(&now))
		for _, row := range rows {
			due[Resource(row.Kind)] = append(due[Resource(row.Kind)], row.ID)
		}
		return err
	})
	if err != nil {
		return time.Time{}, err
	}
	err = errors.Join(
		c.refreshStaleBalancers(ctx),
		forEachChunkUntil(ending, due[api.ResourceInstance], func(ids []string) error {
			return c.elapseInstances(ctx, ids)
		}),
		forEachChunkUntil(ending, due[api.ResourceLoadBalancer], func(ids []string) error {
			return c.advanceBalancers(ctx, ids, false)
		}),
		c.reportConditions(ctx),
	)
	if err != nil {
		return time.Time{}, err
	}
	return c.nextWakeTime(ctx)
}

// forEachChunkUntil passes IDs to do, as many at a time as share a write, and stops once
// ending is closed.
func forEachChunkUntil(ending <-chan struct{}, ids []string, do func(some []string) error) error {
	var errs []error
	for some := range slices.Chunk(ids, maxSharedWrites) {
		select {
		case <-ending:
			return errors.Join(errs...)
		default:
		}
		errs = append(errs, do(some))
	}
	return errors.Join(errs...)
}

// pendingChange is what a transition writes.
type pendingChange func(ctx context.Context, tx *changeTx) error

// changeTogether makes changes in their order, in one transaction. If that fails, it makes
// each in a transaction of its own, so that one that cannot be written holds up no other.
func (c *Cloud) changeTogether(ctx context.Context, all []pendingChange) error {
	if len(all) == 0 {
		return nil
	}
	err := c.change(ctx, func(ctx context.Context, tx *changeTx) error {
		for _, one := range all {
			if err := one(ctx, tx); err != nil {
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

// balancersPerWrite is how many balancers lose targets in one transaction. One with a
// thousand targets takes tens of milliseconds, for which other writers wait.
const balancersPerWrite = 16

// removeTargetsInSteps takes instances that are about to be terminated out of the targets
// of balancers, if they are targets of many. Each step is a transaction of its own. After a
// crash the instances are still due, and the steps that are missing follow.
func (c *Cloud) removeTargetsInSteps(ctx context.Context, ids []string) error {
	for first, more := true, true; more; first = false {
		err := c.change(ctx, func(ctx context.Context, tx *changeTx) (err error) {
			more, err = c.removeSomeTargets(ctx, tx, ids, first)
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// removeSomeTargets makes one step. The first leaves few targets to the transitions of
// their instances, so that the change of an instance and those of its balancers are one. An instance
// that a fault keeps from ending stays a target.
func (c *Cloud) removeSomeTargets(ctx context.Context, tx *changeTx, ids []string, first bool) (more bool, err error) {
	ending, err := tx.DueTerminating(ctx, db.DueTerminatingParams{Ids: listJSON(ids), Now: millisOrNull(&tx.now)})
	if f := c.currentFaults(); f != nil {
		ending = slices.DeleteFunc(ending, func(id string) bool {
			in, readErr := resourceByID[Instance](ctx, tx.Tx, id)
			err = errors.Join(err, readErr)
			return f.Stuck(instanceSubject(in), tx.now, tx.OnRollback)
		})
	}
	if err != nil || len(ending) == 0 {
		return false, err
	}
	if first {
		n, err := tx.CountTargets(ctx, listJSON(ending))
		if err != nil || n <= balancersPerWrite {
			return false, err
		}
	}
	balancers, err := resourcesFrom[LoadBalancer](tx.LoadBalancersTargetingAny(
		ctx, db.LoadBalancersTargetingAnyParams{Ids: listJSON(ending), Max: balancersPerWrite},
	))
	if err != nil {
		return false, err
	}
	return len(balancers) == balancersPerWrite, removeTargets(ctx, tx, balancers, ending)
}

// elapseInstances ends the states of those instances whose states have run out.
func (c *Cloud) elapseInstances(ctx context.Context, ids []string) error {
	if err := c.removeTargetsInSteps(ctx, ids); err != nil {
		return err
	}
	all := make([]pendingChange, len(ids))
	for i, id := range ids {
		all[i] = func(ctx context.Context, tx *changeTx) error {
			return c.elapseInstance(ctx, tx, id)
		}
	}
	err := c.changeTogether(ctx, all)
	// Also after an error: some may have been changed.
	c.refreshBalancersOf(ctx, ids...)
	return err
}

func (c *Cloud) elapseInstance(ctx context.Context, tx *changeTx, id string) error {
	in, err := resourceByID[Instance](ctx, tx.Tx, id)
	if errors.Is(err, sql.ErrNoRows) {
		return nil
	}
	if err != nil || !isDue(in.due, tx.now) {
		return err
	}
	rule, ok := findRule(InstanceRules, in.State, Elapsed)
	if !ok {
		return fmt.Errorf("instance %s is due in state %s, which does not end by itself", id, in.State)
	}
	return c.endInstanceState(ctx, tx, &in, rule)
}

// advanceBalancers builds the balancers that are due and removes the deleted ones that are
// due. If early, it builds balancers whether or not they are due, and removes none. It
// calls the data plane for one after the other, and then writes all results.
func (c *Cloud) advanceBalancers(ctx context.Context, ids []string, early bool) error {
	c.planeMu.Lock()
	defer c.planeMu.Unlock()
	var all []pendingChange
	var errs []error
	for _, id := range ids {
		outcome, err := c.advanceBalancer(ctx, id, early)
		errs = append(errs, err)
		if outcome != nil {
			all = append(all, outcome)
		}
	}
	return errors.Join(append(errs, c.changeTogether(ctx, all))...)
}

// advanceBalancer gives the change to write for one balancer, or nil. A balancer that was
// due when it was listed may have been given a new time since.
func (c *Cloud) advanceBalancer(ctx context.Context, id string, early bool) (pendingChange, error) {
	lb, err := readOne(ctx, c, func(tx *store.Tx) (LoadBalancer, error) {
		return resourceByID[LoadBalancer](ctx, tx, id)
	})
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return nil, nil
	case err != nil || !early && !isDue(lb.due, c.now()):
		return nil, err
	}
	_, deleting := findRule(LoadBalancerRules, lb.State, Elapsed)
	if deleting && early {
		return nil, nil
	}
	held, err := c.holdIfStuck(ctx, lb)
	switch {
	case err != nil || held && !early:
		return nil, err
	case deleting:
		// The sockets go first: the next balancer may get the address at once.
		c.stopForwarding(id)
		return func(ctx context.Context, tx *changeTx) error {
			return c.removeBalancer(ctx, tx, id)
		}, nil
	}
	failure, err := c.buildBalancer(ctx, lb)
	if err != nil || held {
		return nil, err // A balancer that is held forwards as before and stays unfinished.
	}
	return c.recordBuild(lb, failure), nil
}

// removeBalancer removes a deleted balancer.
func (c *Cloud) removeBalancer(ctx context.Context, tx *changeTx, id string) error {
	lb, err := resourceByID[LoadBalancer](ctx, tx.Tx, id)
	if err != nil {
		return err
	}
	if lb.AddressID == "" {
		c.usedIPv4.markFree(tx.Tx, addressOrZero(lb.Address))
	}
	c.usedIPv6.markFree(tx.Tx, addressOrZero(lb.IPv6Address))
	c.usedIPv4.markFree(tx.Tx, addressOrZero(lb.PrivateAddress))
	if err := freeAddressesHeldBy(ctx, tx, id); err != nil {
		return err
	}
	return deleteResource(ctx, tx, &lb)
}

func (c *Cloud) nextWakeTime(ctx context.Context) (time.Time, error) {
	next, err := readOne(ctx, c, func(tx *store.Tx) (time.Time, error) {
		due, err := tx.NextDue(ctx)
		switch {
		case errors.Is(err, sql.ErrNoRows):
			return time.Time{}, nil
		case err != nil:
			return time.Time{}, err
		}
		return fromMillis(*due), nil
	})
	return earliestNonZero(next, c.nextSweep(), c.conditionQueue.nextReadyTime()), err
}

// earliestNonZero gives the earliest of the times that are not zero.
func earliestNonZero(times ...time.Time) (first time.Time) {
	for _, t := range times {
		if first.IsZero() || !t.IsZero() && t.Before(first) {
			first = t
		}
	}
	return first
}
