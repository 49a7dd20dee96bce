package inventory

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ccmlab/ccmlab/fakecloud/client"
)

const (
	// listTimeout bounds a whole list, all pages and tries: the callers that wait for it
	// may have no bound of their own.
	listTimeout = time.Minute
	// streamOpenTimeout is how long a list waits for the stream to open: a list that began
	// before must be made again.
	streamOpenTimeout = time.Second
)

// currentTick is the tick at which a question is asked.
func (v *Inventory) currentTick() uint64 {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.tick
}

// nextMoment is the moment of something that is learned now. mu is held.
func (v *Inventory) nextMoment() moment {
	v.tick++
	return moment{v.tick, time.Now()}
}

// isCurrent tells whether what was learned at m still holds: every event since then was
// received, or m is less than Options.MaxAge ago. mu is held.
func (v *Inventory) isCurrent(m moment) bool {
	if m.tick == 0 {
		return false
	}
	followedSince := v.stream != nil && v.stream.open && m.tick > v.stream.openedTick
	return followedSince || time.Since(m.at) < v.opts.MaxAge
}

// ensureCurrent returns when the store is current for a question asked at that tick and,
// unless maxAge is 0, was listed within maxAge. It tells whether it waited for a list. All
// callers that wait at a time share one list; one whose ctx ends does not end it for the
// others. A list that failed is shared, too, until it is time for the next: see listFailure.
func ensureCurrent[T any](
	ctx context.Context, v *Inventory, s *resourceStore[T], asked uint64, maxAge time.Duration,
) (waited bool, err error) {
	enough := func() bool {
		v.mu.Lock()
		defer v.mu.Unlock()
		s.requested = true
		return s.listed.tick > asked || v.isCurrent(s.listed) && (maxAge == 0 || time.Since(s.listed.at) < maxAge)
	}
	for v.endStreamOfOldToken(); !enough(); {
		if err := recentFailure(v, s); err != nil {
			return waited, err
		}
		waited = true
		done := s.flight.DoChan("", func() (any, error) {
			v.awaitStream()
			if enough() { // Another's list was done in between.
				return nil, nil
			}
			if err := recentFailure(v, s); err != nil {
				return nil, err
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

// awaitStream waits until it is decided whether the stream opens, if there is one.
func (v *Inventory) awaitStream() {
	v.mu.Lock()
	decided := v.streamDecided
	v.mu.Unlock()
	if decided == nil {
		return
	}
	timeout := time.NewTimer(streamOpenTimeout)
	defer timeout.Stop()
	select {
	case <-decided:
	case <-timeout.C:
	}
}

// listAnew lists the store's resources and applies the list: all of it, or nothing if any
// of it is doubtful.
func listAnew[T any](v *Inventory, s *resourceStore[T]) (err error) {
	ctx, began, generation, done := v.beginList()
	defer done()
	token := v.currentToken()
	defer func() { recordListResult(v, s, token, err) }()
	if hasFailed(v, s) {
		ctx = client.OneAttempt(ctx)
	}
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
	if generation == v.generation {
		v.changes.add(s.applyList(items, began)...)
	}
	v.mu.Unlock()
	v.changes.deliver()
	return nil
}

// beginList is the context of a list, which ends with Run if that runs, when the list
// began, and the generation that it is for. done must be called when the list is made.
func (v *Inventory) beginList() (ctx context.Context, began moment, generation int, done func()) {
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

// checkItems is an error if any of the items is incomplete or of another project: then the
// whole answer is not believed.
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
			return fmt.Errorf("doubtful answer, taken for none: %s %s belongs to project %q, which is not ours",
				s.kind, f.id, f.project)
		}
	}
	return nil
}
