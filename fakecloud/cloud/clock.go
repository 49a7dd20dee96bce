package cloud

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/jonboulle/clockwork"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/store"
	"github.com/ccmlab/ccmlab/fakecloud/store/db"
)

const (
	// MaxAdvance is how far one call moves a virtual clock at most.
	MaxAdvance = 366 * 24 * time.Hour
	// maxTransitions is after how many transitions one call stops early.
	maxTransitions = 1_000_000
)

// VirtualTime is a clock that stands still until Advance moves it. Its time is stored with
// the data: a change and the time at which it was made are one transaction.
type VirtualTime struct {
	clock  *clockwork.FakeClock
	starts int64
	mu     sync.Mutex // held while it is moved
}

// StartVirtualTime puts the store's data under a virtual clock. The clock continues where
// the data's last virtual clock stood. If the data had none, or was under the real clock
// since, it starts at now or at where the last one stood, whichever is later. Data with
// health checks is refused, as those run in real time.
func StartVirtualTime(ctx context.Context, s *store.Store, now time.Time) (*VirtualTime, error) {
	var row db.StartVirtualClockRow
	err := s.Write(ctx, func(tx *store.Tx) error {
		checked, err := tx.CheckedLoadBalancers(ctx)
		if err != nil {
			return err
		}
		if len(checked) > 0 {
			var names []string
			for _, lb := range checked {
				names = append(names, fmt.Sprintf("%q (%s)", lb.Name, lb.ID))
			}
			return fmt.Errorf(
				"load balancer %s has a health check, which runs in real time and would disagree with a virtual clock: use the real clock and remove it first, or other data",
				strings.Join(names, ", "),
			)
		}
		row, err = tx.StartVirtualClock(ctx, now.UnixMilli())
		return err
	})
	if err != nil {
		return nil, err
	}
	return &VirtualTime{clock: clockwork.NewFakeClockAt(fromMillis(row.Now)), starts: row.Starts}, nil
}

// StartRealTime puts the store's data under the real clock. Data whose virtual time is in
// the future is refused: its time would run backwards.
func StartRealTime(ctx context.Context, s *store.Store, now time.Time) error {
	return s.Write(ctx, func(tx *store.Tx) error {
		row, err := tx.Clock(ctx)
		switch {
		case errors.Is(err, sql.ErrNoRows):
			return nil
		case err != nil:
			return err
		case row.Now > now.UnixMilli():
			return fmt.Errorf(
				"the data's virtual clock is at %s, ahead of the real clock: continue with the virtual clock, or use other data",
				fromMillis(row.Now).Format(time.RFC3339),
			)
		}
		return tx.EndVirtualClock(ctx)
	})
}

// Now gives the cloud's time, and whether it is virtual.
func (c *Cloud) Now() (now time.Time, virtual bool) { return c.now(), c.cfg.Virtual != nil }

// checkHealthChecksAllowed refuses health checks, of a balancer and of its listeners, under a
// virtual clock.
func (c *Cloud) checkHealthChecksAllowed(ofBalancer *HealthCheck, listeners []Listener) error {
	if c.cfg.Virtual == nil {
		return nil
	}
	var fields []string
	if ofBalancer != nil && ofBalancer.Protocol != api.HealthCheckNone {
		fields = append(fields, "healthCheck")
	}
	for i, l := range listeners {
		if l.CheckInForce(nil) != (HealthCheck{}) {
			fields = append(fields, fmt.Sprintf("listeners.%d.healthCheck", i))
		}
	}
	if fields == nil {
		return nil
	}
	refusal := refuse(
		VirtualClock,
		"this cloud runs on a virtual clock, and health checks run in real time: their verdicts would disagree "+
			"with its time; leave the check out, or use a cloud on the real clock",
	)
	for _, field := range fields {
		refusal = refusal.withField(field, "is not possible with a virtual clock")
	}
	return refusal
}

// Advanced is how far Advance moved a virtual clock.
type Advanced struct {
	From, Now time.Time
	// Transitions is how many states ended, failed tries of balancers included.
	Transitions int
	// Complete is false if Advance stopped early: after maxTransitions, or because the
	// call or the cloud ended. What was due by Now has happened, or will when the clock is
	// moved on.
	Complete bool
}

// Advance moves the virtual clock to the time that until returns for the present time.
// What falls due on the way happens in order, each at its own time.
func (c *Cloud) Advance(ctx context.Context, until func(now time.Time) time.Time) (Advanced, error) {
	v := c.cfg.Virtual
	if v == nil {
		return Advanced{}, refuse(
			VirtualClock, "this cloud runs on the real clock, which nobody can move: start it with --clock virtual",
		)
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	out := Advanced{From: c.now(), Now: c.now()}
	end := until(out.From).UTC().Truncate(time.Millisecond)
	switch {
	case end.Before(out.From):
		return out, refuse(
			InvalidRequest, "the clock is at %s: it cannot be moved back", out.From.Format(time.RFC3339Nano),
		).withField("until", "is in the past")
	case end.Sub(out.From) > MaxAdvance:
		return out, refuse(
			InvalidRequest, "%s is too far: at most %d days at once", end.Sub(out.From), int(MaxAdvance.Hours()/24),
		).withField("until", "is too far ahead")
	}
	for {
		if err := c.SweepFaults(ctx); err != nil {
			return out, err
		}
		fired, err := c.fireDue(ctx, maxTransitions-out.Transitions)
		out.Transitions += fired
		out.Now = c.now()
		if err != nil || ctx.Err() != nil || out.Transitions >= maxTransitions {
			return out, err
		}
		next, err := c.nextDueAfter(ctx, out.Now)
		if err != nil {
			return out, err
		}
		next = earliestNonZero(next, c.nextSweep(), c.conditionQueue.nextReadyTime())
		if next.IsZero() || next.After(end) {
			break
		}
		v.clock.Advance(next.Sub(out.Now))
	}
	v.clock.Advance(end.Sub(out.Now))
	out.Now, out.Complete = end, true
	return out, c.change(ctx, func(context.Context, *changeTx) error { return nil })
}

// fireDue makes the transitions that are due, and those that become due by that. It stops
// early when ctx ends or the budget is spent, and when a round leaves the same transitions
// due as before: those are held.
func (c *Cloud) fireDue(ctx context.Context, budget int) (fired int, err error) {
	var before []db.ResourcesDueRow
	for ctx.Err() == nil && fired < budget {
		whole := context.WithoutCancel(ctx)
		due, err := readOne(whole, c, func(tx *store.Tx) ([]db.ResourcesDueRow, error) {
			return tx.ResourcesDue(whole, new(c.now().UnixMilli()))
		})
		if err != nil || len(due) == 0 || slices.Equal(due, before) {
			return fired, errors.Join(err, c.reportConditions(whole))
		}
		if _, err := c.runDueTransitions(ctx); err != nil {
			return fired, err
		}
		fired += len(due)
		before = due
	}
	return fired, nil
}

// nextDueAfter is when the next transition falls due; zero if none does.
func (c *Cloud) nextDueAfter(ctx context.Context, now time.Time) (time.Time, error) {
	ctx = context.WithoutCancel(ctx)
	return readOne(ctx, c, func(tx *store.Tx) (next time.Time, err error) {
		ms, err := tx.DueAfter(ctx, now.UnixMilli())
		if ms != 0 {
			next = fromMillis(ms)
		}
		return next, err
	})
}
