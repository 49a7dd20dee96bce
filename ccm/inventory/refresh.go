package inventory

// When what is known is current, and how it becomes so: one list for all who
// wait for it.

import (
	"context"
	"errors"
	"fmt"
	"time"
)

const (
	// listTimeout bounds a whole list, all pages and tries: those who wait for
	// it may have no bound of their own.
	listTimeout = time.Minute
	// streamOpenTimeout is how long a list waits for the stream to open: one that
	// began before must be made again.
	streamOpenTimeout = time.Second
)

// currentTick is the tick of a question.
func (v *Inventory) currentTick() uint64 {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.tick
}

// nextMoment is the moment at which something is learned. mu is held.
func (v *Inventory) nextMoment() moment {
	v.tick++
	return moment{v.tick, time.Now()}
}

// isCurrent tells whether what was learned at m still holds: since then every
// event has come, or it is not long ago. mu is held.
func (v *Inventory) isCurrent(m moment) bool {
	return m.tick > 0 && (v.stream != nil && v.stream.open && m.tick > v.stream.openedTick || time.Since(m.at) < v.opts.MaxAge)
}

// ensureCurrent has the shelf current for a question asked at that tick and, unless 0,
// listed within that time. It tells whether that took a list. A caller that goes
// away takes the list from nobody.
func ensureCurrent[T any](ctx context.Context, v *Inventory, s *resourceStore[T], asked uint64, within time.Duration) (waited bool, err error) {
	enough := func() bool {
		v.mu.Lock()
		defer v.mu.Unlock()
		s.requested = true
		return s.listed.tick > asked || v.isCurrent(s.listed) && (within == 0 || time.Since(s.listed.at) < within)
	}
	for v.endStreamOfOldToken(); !enough(); {
		waited = true
		done := s.flight.DoChan("", func() (any, error) {
			v.awaitStream()
			if enough() { // Another's list was done in between.
				return nil, nil
			}
			return nil, listAnew(v, s)
		})
		select {
		case <-ctx.Done():
			return true, ctx.Err()
		case r := <-done:
			if r.Err != nil {
				return true, r.Err
			}
		}
	}
	return waited, nil
}

// awaitStream waits until it is known whether the stream opens, if it may.
func (v *Inventory) awaitStream() {
	v.mu.Lock()
	settled := v.streamDecided
	v.mu.Unlock()
	if settled == nil {
		return
	}
	patience := time.NewTimer(streamOpenTimeout)
	defer patience.Stop()
	select {
	case <-settled:
	case <-patience.C:
	}
}

// listAnew makes a list and takes it in, or nothing of it.
func listAnew[T any](v *Inventory, s *resourceStore[T]) error {
	ctx, began, era, done := v.beginList()
	defer done()
	token := v.currentToken()
	items, err := s.list(ctx)
	if err == nil {
		err = v.checkToken(ctx, token)
	}
	if err == nil {
		err = checkItems(ctx, v, s, items...)
	}
	if err != nil {
		return fmt.Errorf("listing every %s: %w", s.kind, err)
	}
	v.mu.Lock()
	if era == v.generation {
		v.changes.add(s.applyList(items, began)...)
	}
	v.mu.Unlock()
	v.changes.deliver()
	return nil
}

// beginList gives a list its life, which ends with Run if that runs.
func (v *Inventory) beginList() (ctx context.Context, began moment, era int, done func()) {
	v.mu.Lock()
	defer v.mu.Unlock()
	ctx, cancel := context.WithTimeout(v.listContext, listTimeout)
	if !v.isRunning {
		return ctx, v.nextMoment(), v.generation, cancel
	}
	v.runningLists.Add(1)
	return ctx, v.nextMoment(), v.generation, func() { cancel(); v.runningLists.Done() }
}

var errIncomplete = errors.New("doubtful answer, taken for none: it lacks an ID, a name or a state")

// checkItems is an error if any of the resources is not to be believed, and with it
// all that came along.
func checkItems[T any](ctx context.Context, v *Inventory, s *resourceStore[T], items ...T) error {
	for i := range items {
		f := s.facts(&items[i])
		if !f.complete {
			return fmt.Errorf("%s %q: %w", s.kind, f.id, errIncomplete)
		}
		if v.opts.Owns == nil {
			continue
		}
		owned, err := v.opts.Owns(ctx, f.project)
		if err != nil {
			return err
		}
		if !owned {
			return fmt.Errorf("doubtful answer, taken for none: %s %s belongs to project %q, which is not ours", s.kind, f.id, f.project)
		}
	}
	return nil
}
