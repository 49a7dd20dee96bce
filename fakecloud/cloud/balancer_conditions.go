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

// conditionQueue are the balancers whose condition is to be looked at.
type conditionQueue struct {
	mu         sync.Mutex
	queued     map[string]bool
	reportedAt map[string]time.Time // those told less than conditionPause ago
}

// enqueue has a balancer's condition looked at.
func (s *conditionQueue) enqueue(ids ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, id := range ids {
		s.queued[id] = true
	}
}

// takeReady gives those that are to be looked at now, in an order that repeats.
func (s *conditionQueue) takeReady(now time.Time) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, at := range s.reportedAt {
		// The clock may have been set back.
		if since := now.Sub(at); since < 0 || since >= conditionPause {
			delete(s.reportedAt, id)
		}
	}
	var ids []string
	for id := range s.queued {
		if _, wait := s.reportedAt[id]; !wait {
			ids = append(ids, id)
			delete(s.queued, id)
		}
	}
	slices.Sort(ids)
	return ids
}

// markReported notes that conditions are told now.
func (s *conditionQueue) markReported(now time.Time, ids []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, id := range ids {
		s.reportedAt[id] = now
	}
}

// nextReadyTime is when the first of those is to be looked at that wait; zero if none
// does.
func (s *conditionQueue) nextReadyTime() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	var next time.Time
	for id, at := range s.reportedAt {
		if end := at.Add(conditionPause); s.queued[id] && (next.IsZero() || end.Before(next)) {
			next = end
		}
	}
	return next
}

// queueCondition has the worker look at a balancer's condition soon. It never
// blocks.
func (c *Cloud) queueCondition(id string) {
	c.conditionQueue.enqueue(id)
	c.wakeWorker()
}

// reportConditions makes the reasons of active balancers what their conditions
// are. One whose condition is not known keeps its reason: it would only be told
// the same again a moment later, after a restart say.
func (c *Cloud) reportConditions(ctx context.Context) error {
	var errs []error
	for some := range slices.Chunk(c.conditionQueue.takeReady(c.now()), maxSharedWrites) {
		if err := c.reportConditionsOf(ctx, some); err != nil {
			c.conditionQueue.enqueue(some...)
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// reportConditionsOf writes once for all whose condition differs from what is stored. It
// holds planeMu, so that no balancer that is just being built changes its
// version. The data plane is asked before, as it may take its time, and others
// wait for who reads or writes: a condition that changes meanwhile is told anew.
func (c *Cloud) reportConditionsOf(ctx context.Context, ids []string) error {
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
	c.conditionQueue.markReported(c.now(), differ)
	all := make([]pendingChange, len(differ))
	for i, id := range differ {
		all[i] = func(ctx context.Context, tx *changeTx, now time.Time) error {
			return saveCondition(ctx, tx, id, reasons[id], now)
		}
	}
	return c.changeTogether(ctx, all)
}

// saveCondition writes a balancer's condition, unless the balancer has changed
// meanwhile.
func saveCondition(ctx context.Context, tx *changeTx, id, reason string, now time.Time) error {
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
