package inventory

// How the cloud's events keep up to date what was listed.

import (
	"context"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
)

// refusedPause is how long to wait with a stream that the cloud refused.
const refusedPause = time.Second

// Run follows the cloud's events until ctx ends. Without it, or while the stream
// is broken, what is too old is listed again when somebody asks.
//
// The stream begins with what comes now, and the lists are made when it is open:
// what changes between the two is in the events. A stream that breaks is resumed
// where it was. When that cannot be, because the events are not kept or the
// cloud's data is another's, nothing that was known can be compared with what is
// there now: it is forgotten, and listed anew.
func (v *Inventory) Run(ctx context.Context) {
	if v.opts.Off {
		<-ctx.Done()
		return
	}
	var keepers sync.WaitGroup
	v.start(ctx)
	defer func() {
		v.stop()
		keepers.Wait()
		v.running.Wait()
	}()
	keepers.Go(func() { keep(ctx, v, v.instances) })
	keepers.Go(func() { keep(ctx, v, v.balancers) })
	keepers.Go(func() { keep(ctx, v, v.routes) })
	only := client.EventFilter{Resources: []api.ResourceKind{api.ResourceInstance, api.ResourceLoadBalancer, api.ResourceRoute}}
	for ctx.Err() == nil {
		v.await()
		err := v.cloud.Follow(ctx, client.FromNewest, func(ev api.Event) error { return v.learn(ctx, ev) }, v.turned, only)
		if ctx.Err() != nil {
			return
		}
		v.forget()
		klog.InfoS("The cloud's events cannot be followed any further; listing anew", "err", err)
		if !client.HasCode(err, api.EventsExpired) {
			sleep(ctx, refusedPause)
		}
	}
}

func (v *Inventory) start(ctx context.Context) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.listing, v.followed = ctx, true
}

// await has lists wait until it is known whether the stream opens.
func (v *Inventory) await() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.settled = make(chan struct{})
}

func (v *Inventory) stop() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.settle()
	v.listing, v.followed, v.settled, v.open = idle(), false, nil, false
}

// settle says that it is known whether the stream opens. mu is held.
func (v *Inventory) settle() {
	if v.settled == nil {
		return
	}
	select {
	case <-v.settled:
	default:
		close(v.settled)
	}
}

// turned is told when the stream opens and when it breaks.
func (v *Inventory) turned(err error) {
	v.mu.Lock()
	was := v.open
	v.open = err == nil
	if v.open {
		v.opened = v.next().tick
		v.pokeAll()
	}
	v.settle()
	v.mu.Unlock()
	switch {
	case err == nil:
		klog.V(2).InfoS("The cloud's event stream is open")
	case was:
		klog.InfoS("The cloud's event stream broke; until it is open again, what is needed is listed", "err", err)
	}
}

// forget is for when what is known cannot be compared with what is there.
func (v *Inventory) forget() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.era++
	v.open = false
	v.instances.forget()
	v.balancers.forget()
	v.routes.forget()
	v.settle()
}

func (v *Inventory) pokeAll() {
	v.instances.poke()
	v.balancers.poke()
	v.routes.poke()
}

// learn takes in an event. One of another project ends the stream: its token has
// become another's.
func (v *Inventory) learn(ctx context.Context, ev api.Event) error {
	deleted := ev.Type == api.EventDeleted
	switch {
	case ev.Instance != nil:
		return learn(ctx, v, v.instances, *ev.Instance, deleted)
	case ev.LoadBalancer != nil:
		return learn(ctx, v, v.balancers, *ev.LoadBalancer, deleted)
	case ev.Route != nil:
		return learn(ctx, v, v.routes, *ev.Route, deleted)
	}
	return nil
}

func learn[T any](ctx context.Context, v *Inventory, s *shelf[T], item T, deleted bool) error {
	if err := trust(ctx, v, s, item); err != nil {
		return err
	}
	v.mu.Lock()
	if c, news := s.learn(item, s.facts(&item), deleted, v.next()); news {
		v.untold = append(v.untold, c)
	}
	v.mu.Unlock()
	v.tell()
	return nil
}

// keep lists what is needed without anybody's waiting for it: balancers that
// were asked for, everything after it was forgotten, and everything when the
// last list is too long ago.
func keep[T any](ctx context.Context, v *Inventory, s *shelf[T]) {
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
		needed := s.needed
		v.mu.Unlock()
		if !needed {
			continue
		}
		if _, err := ensure(ctx, v, s, v.now(), v.opts.Resync); err != nil && ctx.Err() == nil {
			klog.InfoS("The cloud's resources cannot be listed; trying again", "err", err)
			sleep(ctx, v.opts.MaxAge)
			s.poke()
			continue
		}
		v.mu.Lock()
		due = max(time.Until(s.listed.at.Add(v.opts.Resync)), 0)
		v.mu.Unlock()
	}
}

func sleep(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}
