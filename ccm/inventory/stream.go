package inventory

// How the cloud's events keep up to date what was listed.

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
)

// How long to wait with a stream that the cloud refused: at first, and when it
// goes on refusing.
const (
	refusedPause    = time.Second
	maxRefusedPause = 30 * time.Second
)

var errTokenChanged = errors.New("the cloud token is not that with which the event stream was begun")

// stream is the cloud's events as one token sees them. The inventory's mu guards
// what changes.
type stream struct {
	token       string // as Options.Token tells it apart
	cancel      context.CancelCauseFunc
	open        bool
	openedTick  uint64 // the tick at which it was opened last
	eventFailed bool   // an event was not taken in
}

// Run follows the cloud's events until ctx ends. Without it, or while the stream
// is broken, what is too old is listed again when somebody asks.
//
// The stream begins with what comes now, and the lists are made when it is open:
// what changes between the two is in the events. A stream that breaks is resumed
// where it was. When that cannot be, because the events are not kept or the
// cloud's data is another's, nothing that was known can be compared with what is
// there now: it is forgotten, and listed anew. Where the cloud only refuses the
// stream, lists are all there is, and they are compared as ever until it opens.
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
	pause, said := refusedPause, ""
	for ctx.Err() == nil {
		began := time.Now()
		err := v.followStream(ctx)
		if ctx.Err() != nil {
			return
		}
		if time.Since(began) > maxRefusedPause { // Not one of a row of refusals.
			pause, said = refusedPause, ""
		}
		if cause := causeOf(err); cause != said {
			said = cause
			klog.InfoS("The cloud's events cannot be followed; until they can be, what is needed is listed", "err", err)
		}
		if !client.HasCode(err, api.EventsExpired) {
			sleepContext(ctx, pause)
			pause = min(2*pause, maxRefusedPause)
		}
	}
}

// causeOf tells refusals apart, which have a request ID each.
func causeOf(err error) string {
	var refused *client.Error
	if errors.As(err, &refused) {
		return fmt.Sprint(refused.Status, " ", refused.Problem.Code)
	}
	return err.Error()
}

// followStream follows the events with the token of now, until it is another or the
// stream cannot be resumed.
func (v *Inventory) followStream(ctx context.Context) error {
	life, end := context.WithCancelCause(ctx)
	defer end(nil)
	st := &stream{token: v.currentToken(), cancel: end}
	v.beginStream(st)
	only := client.EventFilter{Resources: []api.ResourceKind{api.ResourceInstance, api.ResourceLoadBalancer, api.ResourceRoute}}
	err := v.cloud.Follow(life, client.FromNewest, func(ev api.Event) error {
		err := v.applyEvent(ctx, ev)
		st.eventFailed = err != nil
		return err
	}, func(err error) { v.handleStreamState(ctx, st, err) }, only)
	if life.Err() != nil {
		err = context.Cause(life)
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

// beginStream has lists wait until it is known whether the stream opens.
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

// closeStream has the stream count no more, whatever it still says.
func (v *Inventory) closeStream(st *stream) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.stream == st {
		v.markStreamDecided()
		v.stream = nil
	}
}

// markStreamDecided says that it is known whether the stream opens. mu is held.
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

// handleStreamState is told when the stream opens and when it breaks. One that opens counts
// if it is our project's.
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
	was := st.open
	st.open = err == nil
	if st.open {
		if v.streamLost {
			v.forgetAll()
		}
		st.openedTick = v.nextMoment().tick
		v.wakeAll()
	}
	v.markStreamDecided()
	v.mu.Unlock()
	switch {
	case err == nil:
		klog.V(2).InfoS("The cloud's event stream is open")
	case was:
		klog.InfoS("The cloud's event stream broke; until it is open again, what is needed is listed", "err", err)
	}
}

// forgetAll is for when what is known cannot be compared with what is there. mu is
// held.
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

// applyEvent takes in an event. One of another project ends the stream: its token has
// become another's.
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

// relistWhenNeeded lists what is needed without anybody's waiting for it: balancers that
// were asked for, everything after it was forgotten, and everything when the
// last list is too long ago.
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
			klog.InfoS("The cloud's resources cannot be listed; trying again", "err", err)
			sleepContext(ctx, v.opts.MaxAge)
			s.wakeKeeper()
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
