package cloud

import (
	"context"
	"database/sql"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/store"
)

// conditionPause is the least time between two reports of a balancer's condition. Targets
// that start and stop all the time must not cause a write each.
const conditionPause = time.Second

// conditionQueue holds the IDs of balancers whose condition is to be read from the data
// plane.
type conditionQueue struct {
	mu     sync.Mutex
	queued map[string]bool
	// reportedAt has the balancers whose condition was reported less than conditionPause
	// ago.
	reportedAt map[string]time.Time
}

// enqueue adds balancers to the queue.
func (s *conditionQueue) enqueue(ids ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, id := range ids {
		s.queued[id] = true
	}
}

// takeReady removes from the queue the balancers that need not wait any longer, and gives
// them sorted.
func (s *conditionQueue) takeReady(now time.Time) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, at := range s.reportedAt {
		if now.Sub(at) >= conditionPause {
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

// markReported records that the conditions of balancers are reported now.
func (s *conditionQueue) markReported(now time.Time, ids []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, id := range ids {
		s.reportedAt[id] = now
	}
}

// nextReadyTime is when the first balancer that waits will be ready; zero if none waits.
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

// queueCondition has the worker read a balancer's condition soon. It never blocks.
func (c *Cloud) queueCondition(id string) {
	c.conditionQueue.enqueue(id)
	c.wakeWorker()
}

// reportConditions sets the reasons of active balancers to their conditions. A balancer
// whose condition is not known, after a restart for instance, keeps its reason: otherwise
// it would lose the reason and get it back a moment later.
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

// reportConditionsOf writes the conditions that differ from the stored reasons, all in one
// transaction. It holds planeMu, so that no balancer changes its version while it is being
// built. It asks the data plane before the transaction begins: the data plane may take its
// time, and other readers and writers would wait. A condition that changes in between is
// queued again.
func (c *Cloud) reportConditionsOf(ctx context.Context, ids []string) error {
	c.planeMu.Lock()
	defer c.planeMu.Unlock()
	ids = slices.DeleteFunc(slices.Clone(ids), func(id string) bool { return c.forwarding[id].Kind == AttachedAddress })
	reasons := map[string]string{} // of the balancers whose condition is known
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
			lb, err := resourceByID[LoadBalancer](ctx, tx, id)
			// saveCondition gives the error of one that cannot be read, and the others go on.
			if known && (err != nil || lb.State == api.LoadBalancerActive && lb.StateReason != reason) {
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
		all[i] = func(ctx context.Context, tx *changeTx) error {
			return saveCondition(ctx, tx, id, reasons[id])
		}
	}
	return c.changeTogether(ctx, all)
}

// saveCondition writes a balancer's condition as its reason, unless the balancer has
// changed since it was read.
func saveCondition(ctx context.Context, tx *changeTx, id, reason string) error {
	lb, err := resourceByID[LoadBalancer](ctx, tx.Tx, id)
	if errors.Is(err, sql.ErrNoRows) {
		return nil
	}
	if err != nil {
		return err
	}
	if lb.State != api.LoadBalancerActive || lb.StateReason == reason {
		return nil
	}
	lb.StateReason = reason
	return saveResource(ctx, tx, lb.State, &lb)
}
