package inventory

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"
	"k8s.io/klog/v2"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
)

// The first and the longest pause after the cloud refused the event stream.
const (
	refusedPause    = time.Second
	maxRefusedPause = 30 * time.Second
)

// stream is one following of the cloud's events. The inventory's mu guards its fields.
type stream struct {
	open       bool
	openedTick uint64 // the tick at which it was opened last
}

// Run follows the cloud's events until ctx ends. Without it, or while the stream is broken,
// what is too old is listed again when somebody asks.
//
// The stream begins with the events from now on, and lists are made once it is open:
// whatever changes between the two is in the events. A stream that breaks is resumed where
// it was. If it cannot be resumed, because the cloud no longer keeps those events or has
// other data now, the known resources cannot be compared with what exists: they are forgotten and
// listed anew. While the cloud refuses the stream, the inventory lists, and compares each list with
// the previous one.
func (i *Inventory) Run(ctx context.Context) {
	if i.opts.Off {
		<-ctx.Done()
		return
	}
	var keepers sync.WaitGroup
	i.startRun(ctx)
	defer func() {
		i.endRun()
		keepers.Wait()
		i.runningLists.Wait()
	}()
	keepers.Go(func() { relistWhenNeeded(ctx, i, i.instances) })
	keepers.Go(func() { relistWhenNeeded(ctx, i, i.balancers) })
	keepers.Go(func() { relistWhenNeeded(ctx, i, i.routes) })
	pause, logged := newRefusalBackoff(), ""
	for ctx.Err() == nil {
		began := time.Now()
		err := i.followStream(ctx)
		if ctx.Err() != nil {
			return
		}
		if time.Since(began) > maxRefusedPause { // The stream worked for a while.
			pause, logged = newRefusalBackoff(), ""
		}
		if cause := causeOf(err); cause != logged {
			logged = cause
			klog.InfoS("Cannot follow the cloud's events; resources are listed until it works", "err", err)
		}
		if !client.HasCode(err, api.EventsExpired) {
			select {
			case <-ctx.Done():
			case <-time.After(pause.NextBackOff()):
			}
		}
	}
}

func newRefusalBackoff() *backoff.ExponentialBackOff {
	b := &backoff.ExponentialBackOff{
		InitialInterval: refusedPause, Multiplier: 2, RandomizationFactor: 0.2, MaxInterval: maxRefusedPause,
	}
	b.Reset()
	return b
}

// causeOf is the same for refusals of one kind, although each has its own request ID.
func causeOf(err error) string {
	var refused *client.Error
	if errors.As(err, &refused) {
		return fmt.Sprint(refused.Status, " ", refused.Problem.Code)
	}
	return err.Error()
}

// followStream follows the events until the stream cannot be resumed.
func (i *Inventory) followStream(ctx context.Context) error {
	st := &stream{}
	i.beginStream(st)
	onEvent := func(ev api.Event) error { i.applyEvent(ev); return nil }
	onStateChange := func(err error) { i.handleStreamState(st, err) }
	// No filter: a release of the cloud refuses kinds that it does not know.
	err := i.cloud.Follow(ctx, client.FromNewest, onEvent, onStateChange)
	i.closeStream(st)
	i.mu.Lock()
	defer i.mu.Unlock()
	i.streamLost, i.unreachable = true, true
	if client.HasCode(err, api.EventsExpired) {
		i.forgetAll()
	}
	return err
}

func (i *Inventory) startRun(ctx context.Context) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.listContext, i.isRunning = ctx, true
}

// beginStream makes st the stream. Lists wait until it is decided whether it opens.
func (i *Inventory) beginStream(st *stream) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.stream, i.streamDecided = st, make(chan struct{})
}

func (i *Inventory) endRun() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.markStreamDecided()
	i.listContext, i.isRunning, i.streamDecided, i.stream = idleListContext(), false, nil, nil
}

// closeStream ends the use of st: whatever it still reports is ignored.
func (i *Inventory) closeStream(st *stream) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.stream == st {
		i.markStreamDecided()
		i.stream = nil
	}
}

// markStreamDecided lets lists go on: it is known whether the stream opens. mu is held.
func (i *Inventory) markStreamDecided() {
	if i.streamDecided == nil {
		return
	}
	select {
	case <-i.streamDecided:
	default:
		close(i.streamDecided)
	}
}

// handleStreamState is called when the stream opens, with nil, and when it breaks.
func (i *Inventory) handleStreamState(st *stream, err error) {
	i.mu.Lock()
	if i.stream != st {
		i.mu.Unlock()
		return
	}
	wasOpen := st.open
	st.open = err == nil
	if st.open {
		if i.streamLost {
			i.forgetAll()
		}
		st.openedTick = i.nextMoment().tick
		i.endOutage()
		i.wakeAll()
		i.reportRecovery()
	} else {
		i.unreachable = true
	}
	i.markStreamDecided()
	i.mu.Unlock()
	i.changes.deliver()
	switch {
	case err == nil:
		klog.V(2).InfoS("The cloud's event stream is open")
	case wasOpen:
		klog.InfoS("The cloud's event stream broke; resources are listed until it is open again", "err", err)
	}
}

// forgetAll drops what is known when it cannot be compared with what exists. mu is held.
func (i *Inventory) forgetAll() {
	i.generation++
	i.streamLost = false
	i.instances.reset()
	i.balancers.reset()
	i.routes.reset()
}

func (i *Inventory) wakeAll() {
	i.instances.wakeKeeper()
	i.balancers.wakeKeeper()
	i.routes.wakeKeeper()
}

// applyEvent updates what is known by an event.
func (i *Inventory) applyEvent(ev api.Event) {
	deleted := ev.Type == api.EventDeleted
	switch {
	case ev.Instance != nil:
		applyEventTo(i, i.instances, *ev.Instance, deleted)
	case ev.LoadBalancer != nil:
		applyEventTo(i, i.balancers, *ev.LoadBalancer, deleted)
		if !i.isInCluster(ev.LoadBalancer.Tags) {
			i.reportFreed()
		}
	case ev.Resource == api.ResourceAddress, ev.Resource == api.ResourceQuota:
		i.reportFreed()
	case ev.Route != nil:
		applyEventTo(i, i.routes, *ev.Route, deleted)
	}
}

func (i *Inventory) reportFreed() {
	i.changes.add(Change{Kind: Freed})
	i.changes.deliver()
}

func applyEventTo[T any](i *Inventory, s *resourceStore[T], item T, deleted bool) {
	i.mu.Lock()
	if c, news := s.applyEvent(item, s.facts(&item), deleted, i.nextMoment()); news {
		i.changes.add(c)
	}
	i.mu.Unlock()
	i.changes.deliver()
}

// relistWhenNeeded lists in the background, until ctx ends: balancers that were asked for,
// and every kind that is in use after it was forgotten or when its last list is older than
// Options.Resync.
func relistWhenNeeded[T any](ctx context.Context, i *Inventory, s *resourceStore[T]) {
	for due := i.opts.Resync; ; {
		select {
		case <-ctx.Done():
			return
		case <-s.wake:
		case <-time.After(due):
		}
		due = i.opts.Resync
		i.mu.Lock()
		needed := s.requested
		i.mu.Unlock()
		if !needed {
			continue
		}
		if _, err := ensureCurrent(ctx, i, s, i.currentTick(), i.opts.Resync); err != nil && ctx.Err() == nil {
			due = untilRetry(i, s)
			continue
		}
		i.mu.Lock()
		due = max(time.Until(s.listed.at.Add(i.opts.Resync)), 0)
		i.mu.Unlock()
	}
}
