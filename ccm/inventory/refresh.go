package inventory

import (
	"context"
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
func (i *Inventory) currentTick() uint64 {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.tick
}

// nextMoment is the moment of something that is learned now. mu is held.
func (i *Inventory) nextMoment() moment {
	i.tick++
	return moment{i.tick, time.Now()}
}

// isCurrent tells whether what was learned at m still holds: every event since then was
// received, or m is less than Options.MaxAge ago. mu is held.
func (i *Inventory) isCurrent(m moment) bool {
	if m.tick == 0 {
		return false
	}
	followedSince := i.stream != nil && i.stream.open && m.tick > i.stream.openedTick
	return followedSince || time.Since(m.at) < i.opts.MaxAge
}

// ensureCurrent returns when the store is current for a question asked at that tick and,
// unless maxAge is 0, was listed within maxAge. It tells whether it waited for a list. All
// callers that wait at a time share one list; one whose ctx ends does not end it for the
// others. A list that failed is shared, too, until it is time for the next: see listFailure.
func ensureCurrent[T any](
	ctx context.Context, i *Inventory, s *resourceStore[T], asked uint64, maxAge time.Duration,
) (waited bool, err error) {
	enough := func() bool {
		i.mu.Lock()
		defer i.mu.Unlock()
		s.requested = true
		return s.listed.tick > asked || i.isCurrent(s.listed) && (maxAge == 0 || time.Since(s.listed.at) < maxAge)
	}
	for !enough() {
		if err := recentFailure(i, s); err != nil {
			return waited, err
		}
		waited = true
		done := s.flight.DoChan("", func() (any, error) {
			i.awaitStream()
			if enough() { // Another's list was done in between.
				return nil, nil
			}
			if err := recentFailure(i, s); err != nil {
				return nil, err
			}
			return nil, listAnew(i, s)
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
func (i *Inventory) awaitStream() {
	i.mu.Lock()
	decided := i.streamDecided
	i.mu.Unlock()
	if decided == nil {
		return
	}
	select {
	case <-decided:
	case <-time.After(streamOpenTimeout):
	}
}

// listAnew lists the store's resources and applies the list: all of it, or nothing if any
// of it is doubtful.
func listAnew[T any](i *Inventory, s *resourceStore[T]) (err error) {
	ctx, began, generation, done := i.beginList()
	defer done()
	token := i.currentToken()
	defer func() { recordListResult(i, s, token, err) }()
	if hasFailed(i, s) {
		ctx = client.OneAttempt(ctx)
	}
	items, err := s.list(ctx)
	if err != nil {
		return fmt.Errorf("listing every %s: %w", s.kind, err)
	}
	i.mu.Lock()
	if generation == i.generation {
		i.changes.add(s.applyList(items, began)...)
	}
	i.mu.Unlock()
	i.changes.deliver()
	return nil
}

// beginList is the context of a list, which ends with Run if that runs, when the list
// began, and the generation that it is for. done must be called when the list is made.
func (i *Inventory) beginList() (ctx context.Context, began moment, generation int, done func()) {
	i.mu.Lock()
	defer i.mu.Unlock()
	ctx, cancel := context.WithTimeout(i.listContext, listTimeout)
	if !i.isRunning {
		return ctx, i.nextMoment(), i.generation, cancel
	}
	i.runningLists.Add(1)
	return ctx, i.nextMoment(), i.generation, func() { cancel(); i.runningLists.Done() }
}
