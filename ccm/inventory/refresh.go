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
	// openPatience is how long a list waits for the stream to open: one that
	// began before must be made again.
	openPatience = time.Second
)

// now is the tick of a question.
func (v *Inventory) now() uint64 {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.tick
}

// next is the moment at which something is learned. mu is held.
func (v *Inventory) next() moment {
	v.tick++
	return moment{v.tick, time.Now()}
}

// current tells whether what was learned at m still holds: since then every
// event has come, or it is not long ago. mu is held.
func (v *Inventory) current(m moment) bool {
	return m.tick > 0 && (v.stream != nil && v.stream.open && m.tick > v.stream.opened || time.Since(m.at) < v.opts.MaxAge)
}

// ensure has the shelf current for a question asked at that tick and, unless 0,
// listed within that time. It tells whether that took a list. A caller that goes
// away takes the list from nobody.
func ensure[T any](ctx context.Context, v *Inventory, s *shelf[T], asked uint64, within time.Duration) (waited bool, err error) {
	enough := func() bool {
		v.mu.Lock()
		defer v.mu.Unlock()
		s.needed = true
		return s.listed.tick > asked || v.current(s.listed) && (within == 0 || time.Since(s.listed.at) < within)
	}
	for v.checkStream(); !enough(); {
		waited = true
		done := s.flight.DoChan("", func() (any, error) {
			v.awaitStream()
			if enough() { // Another's list was done in between.
				return nil, nil
			}
			return nil, relist(v, s)
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
	settled := v.settled
	v.mu.Unlock()
	if settled == nil {
		return
	}
	patience := time.NewTimer(openPatience)
	defer patience.Stop()
	select {
	case <-settled:
	case <-patience.C:
	}
}

// relist makes a list and takes it in, or nothing of it.
func relist[T any](v *Inventory, s *shelf[T]) error {
	ctx, began, era, done := v.begin()
	defer done()
	token := v.token()
	items, err := s.list(ctx)
	if err == nil {
		err = v.ours(ctx, token)
	}
	if err == nil {
		err = trust(ctx, v, s, items...)
	}
	if err != nil {
		return fmt.Errorf("listing every %s: %w", s.kind, err)
	}
	v.mu.Lock()
	if era == v.era {
		v.changes.add(s.take(items, began)...)
	}
	v.mu.Unlock()
	v.changes.deliver()
	return nil
}

// begin gives a list its life, which ends with Run if that runs.
func (v *Inventory) begin() (ctx context.Context, began moment, era int, done func()) {
	v.mu.Lock()
	defer v.mu.Unlock()
	ctx, cancel := context.WithTimeout(v.listing, listTimeout)
	if !v.followed {
		return ctx, v.next(), v.era, cancel
	}
	v.running.Add(1)
	return ctx, v.next(), v.era, func() { cancel(); v.running.Done() }
}

var errIncomplete = errors.New("doubtful answer, taken for none: it lacks an ID, a name or a state")

// trust is an error if any of the resources is not to be believed, and with it
// all that came along.
func trust[T any](ctx context.Context, v *Inventory, s *shelf[T], items ...T) error {
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
