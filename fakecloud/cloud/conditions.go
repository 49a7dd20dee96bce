package cloud

import (
	"context"
	"database/sql"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/ccmlab/ccmlab/fakecloud/store"
)

// conditionPause is how long a balancer's condition stays as it was told last,
// so that targets that come and go all the time are no storm of writes.
const conditionPause = time.Second

// conditions are the balancers whose condition is to be looked at.
type conditions struct {
	mu    sync.Mutex
	asked map[string]bool
	told  map[string]time.Time // those told less than conditionPause ago
}

// ask has a balancer's condition looked at.
func (s *conditions) ask(ids ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, id := range ids {
		s.asked[id] = true
	}
}

// take gives those that are to be looked at now, in an order that repeats.
func (s *conditions) take(now time.Time) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, at := range s.told {
		// The clock may have been set back.
		if since := now.Sub(at); since < 0 || since >= conditionPause {
			delete(s.told, id)
		}
	}
	var ids []string
	for id := range s.asked {
		if _, wait := s.told[id]; !wait {
			ids = append(ids, id)
			delete(s.asked, id)
		}
	}
	slices.Sort(ids)
	return ids
}

// tell notes that conditions are told now.
func (s *conditions) tell(now time.Time, ids []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, id := range ids {
		s.told[id] = now
	}
}

// next is when the first of those is to be looked at that wait; zero if none
// does.
func (s *conditions) next() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	var next time.Time
	for id, at := range s.told {
		if end := at.Add(conditionPause); s.asked[id] && (next.IsZero() || end.Before(next)) {
			next = end
		}
	}
	return next
}

// conditionChanged has the worker look at a balancer's condition soon. It never
// blocks.
func (c *Cloud) conditionChanged(id string) {
	c.conditions.ask(id)
	c.nudge()
}

// tellConditions makes the reasons of active balancers what their conditions
// are. One whose condition is not known keeps its reason: it would only be told
// the same again a moment later, after a restart say.
func (c *Cloud) tellConditions(ctx context.Context) error {
	var errs []error
	for some := range slices.Chunk(c.conditions.take(c.now()), shared) {
		if err := c.tellSome(ctx, some); err != nil {
			c.conditions.ask(some...)
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// tellSome writes once for all whose condition differs from what is stored. It
// holds planeMu, so that no balancer that is just being built changes its
// version. The data plane is asked before, as it may take its time, and others
// wait for who reads or writes: a condition that changes meanwhile is told anew.
func (c *Cloud) tellSome(ctx context.Context, ids []string) error {
	c.planeMu.Lock()
	defer c.planeMu.Unlock()
	reasons := map[string]string{} // of those whose condition is known
	for _, id := range ids {
		if reason, known := c.cfg.DataPlane.Condition(id); known {
			reasons[id] = reason
		}
	}
	var differ []string
	err := c.store.Read(ctx, func(tx *store.Tx) error {
		differ = nil
		for _, id := range ids {
			reason, known := reasons[id]
			row, err := tx.GetLoadBalancer(ctx, id)
			switch {
			case errors.Is(err, sql.ErrNoRows):
			case err != nil:
				return err
			case known && LoadBalancerState(row.State) == LoadBalancerActive && row.StateReason != reason:
				differ = append(differ, id)
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	c.conditions.tell(c.now(), differ)
	all := make([]changing, len(differ))
	for i, id := range differ {
		all[i] = func(ctx context.Context, tx *changeTx, now time.Time) error {
			return tellCondition(ctx, tx, id, reasons[id], now)
		}
	}
	return c.changeAll(ctx, all)
}

// tellCondition writes a balancer's condition, unless the balancer has changed
// meanwhile.
func tellCondition(ctx context.Context, tx *changeTx, id, reason string, now time.Time) error {
	row, err := tx.GetLoadBalancer(ctx, id)
	if errors.Is(err, sql.ErrNoRows) {
		return nil
	}
	if err != nil {
		return err
	}
	lb, err := loadBalancerFrom(ctx, tx.Tx, row)
	if err != nil {
		return err
	}
	if lb.State != LoadBalancerActive || lb.StateReason == reason {
		return nil
	}
	lb.StateReason = reason
	return saveLoadBalancer(ctx, tx, lb.State, &lb, now)
}
