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

// Pauses after the cloud refused the event stream: the first, and the longest when it goes
// on refusing.
const (
	refusedPause    = time.Second
	maxRefusedPause = 30 * time.Second
)

var errTokenChanged = errors.New("the cloud token is not that with which the event stream was begun")

// stream is the cloud's events as one token sees them. The inventory's mu guards the fields
// that change.
type stream struct {
	token       string // as Options.Token tells it apart
	cancel      context.CancelCauseFunc
	open        bool
	openedTick  uint64 // the tick at which it was opened last
	eventFailed bool   // the last event was refused by applyEvent
}

// Run follows the cloud's events until ctx ends. Without it, or while the stream is broken,
// what is too old is listed again when somebody asks.
//
// The stream begins with the events from now on, and lists are made once it is open:
// whatever changes between the two is in the events. A stream that breaks is resumed where
// it was. If it cannot be resumed, because the cloud no longer keeps those events or has
// other data now, what was known cannot be compared with what exists: it is forgotten and
// listed anew. While the cloud only refuses the stream, the inventory lives on lists, and
// compares each with the one before.
func (v *Inventory) Run(ctx context.Context) {
	if v.opts.Off {
		<-ctx.Done()
		return
	}
	var keepers sync.WaitGroup
	v.startRun(ctx)
	defer func() {
		v.endRun()
		keepers.Wait()
		v.runningLists.Wait()
	}()
	keepers.Go(func() { relistWhenNeeded(ctx, v, v.instances) })
	keepers.Go(func() { relistWhenNeeded(ctx, v, v.balancers) })
	keepers.Go(func() { relistWhenNeeded(ctx, v, v.routes) })
	keepers.Go(func() { v.watchToken(ctx) })
	pause, said := newRefusalBackoff(), ""
	for ctx.Err() == nil {
		began := time.Now()
		err := v.followStream(ctx)
		if ctx.Err() != nil {
			return
		}
		if time.Since(began) > maxRefusedPause { // Not one of a row of refusals.
			pause, said = newRefusalBackoff(), ""
		}
		if cause := causeOf(err); cause != said {
			said = cause
			klog.InfoS("The cloud's events cannot be followed; until they can be, what is needed is listed", "err", err)
		}
		if !client.HasCode(err, api.EventsExpired) {
			sleepContext(ctx, pause.NextBackOff())
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

// followStream follows the events with the current token, until the token changes or the
// stream cannot be resumed.
func (v *Inventory) followStream(ctx context.Context) error {
	streamCtx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	st := &stream{token: v.currentToken(), cancel: cancel}
	v.beginStream(st)
	onEvent := func(ev api.Event) error {
		err := v.applyEvent(ctx, ev)
		st.eventFailed = err != nil
		return err
	}
	onStateChange := func(err error) { v.handleStreamState(ctx, st, err) }
	only := client.EventFilter{Resources: []api.ResourceKind{
		api.ResourceInstance, api.ResourceLoadBalancer, api.ResourceRoute,
	}}
	err := v.cloud.Follow(streamCtx, client.FromNewest, onEvent, onStateChange, only)
	if streamCtx.Err() != nil {
		err = context.Cause(streamCtx)
	}
	v.closeStream(st)
	v.mu.Lock()
	defer v.mu.Unlock()
	v.streamLost = true
	if st.eventFailed || client.HasCode(err, api.EventsExpired) {
		v.forgetAll()
	}
	return err
}

func (v *Inventory) startRun(ctx context.Context) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.listContext, v.isRunning = ctx, true
}

// beginStream makes st the stream. Lists wait until it is decided whether it opens.
func (v *Inventory) beginStream(st *stream) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.stream, v.streamDecided = st, make(chan struct{})
}

func (v *Inventory) endRun() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.markStreamDecided()
	v.listContext, v.isRunning, v.streamDecided, v.stream = idleListContext(), false, nil, nil
}

// closeStream has st ignored from now on, whatever it still reports.
func (v *Inventory) closeStream(st *stream) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.stream == st {
		v.markStreamDecided()
		v.stream = nil
	}
}

// markStreamDecided lets lists go on: it is known whether the stream opens. mu is held.
func (v *Inventory) markStreamDecided() {
	if v.streamDecided == nil {
		return
	}
	select {
	case <-v.streamDecided:
	default:
		close(v.streamDecided)
	}
}

// handleStreamState is called when the stream opens, with nil, and when it breaks. A stream
// that opens counts only if it is our project's.
func (v *Inventory) handleStreamState(ctx context.Context, st *stream, err error) {
	if err == nil {
		if doubt := v.checkToken(ctx, st.token); doubt != nil {
			v.closeStream(st)
			st.cancel(doubt)
			return
		}
	}
	v.mu.Lock()
	if v.stream != st {
		v.mu.Unlock()
		return
	}
	wasOpen := st.open
	st.open = err == nil
	if st.open {
		if v.streamLost {
			v.forgetAll()
		}
		st.openedTick = v.nextMoment().tick
		v.endOutage()
		v.wakeAll()
	}
	v.markStreamDecided()
	v.mu.Unlock()
	switch {
	case err == nil:
		klog.V(2).InfoS("The cloud's event stream is open")
	case wasOpen:
		klog.InfoS("The cloud's event stream broke; until it is open again, what is needed is listed", "err", err)
	}
}

// forgetAll drops what is known when it cannot be compared with what exists. mu is held.
func (v *Inventory) forgetAll() {
	v.generation++
	v.streamLost = false
	v.instances.reset()
	v.balancers.reset()
	v.routes.reset()
}

func (v *Inventory) wakeAll() {
	v.instances.wakeKeeper()
	v.balancers.wakeKeeper()
	v.routes.wakeKeeper()
}

// applyEvent updates what is known by an event. An event of another project is an error,
// which ends the stream: its token has become that project's.
func (v *Inventory) applyEvent(ctx context.Context, ev api.Event) error {
	deleted := ev.Type == api.EventDeleted
	switch {
	case ev.Instance != nil:
		return applyEventTo(ctx, v, v.instances, *ev.Instance, deleted)
	case ev.LoadBalancer != nil:
		return applyEventTo(ctx, v, v.balancers, *ev.LoadBalancer, deleted)
	case ev.Route != nil:
		return applyEventTo(ctx, v, v.routes, *ev.Route, deleted)
	}
	return nil
}

func applyEventTo[T any](ctx context.Context, v *Inventory, s *resourceStore[T], item T, deleted bool) error {
	if err := checkItems(ctx, v, s, item); err != nil {
		return err
	}
	v.mu.Lock()
	if c, news := s.applyEvent(item, s.facts(&item), deleted, v.nextMoment()); news {
		v.changes.add(c)
	}
	v.mu.Unlock()
	v.changes.deliver()
	return nil
}

// relistWhenNeeded lists in the background, until ctx ends: balancers that were asked for,
// and every kind that is in use after it was forgotten or when its last list is older than
// Options.Resync.
func relistWhenNeeded[T any](ctx context.Context, v *Inventory, s *resourceStore[T]) {
	for due := v.opts.Resync; ; {
		timer := time.NewTimer(due)
		select {
		case <-ctx.Done():
		case <-s.wake:
		case <-timer.C:
		}
		timer.Stop()
		if ctx.Err() != nil {
			return
		}
		due = v.opts.Resync
		v.mu.Lock()
		needed := s.requested
		v.mu.Unlock()
		if !needed {
			continue
		}
		if _, err := ensureCurrent(ctx, v, s, v.currentTick(), v.opts.Resync); err != nil && ctx.Err() == nil {
			due = untilRetry(v, s)
			continue
		}
		v.mu.Lock()
		due = max(time.Until(s.listed.at.Add(v.opts.Resync)), 0)
		v.mu.Unlock()
	}
}

func sleepContext(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}
