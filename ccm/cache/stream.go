package cache

import (
	"context"
	"math"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
)

const (
	// streamOpenTimeout is how long the first lists wait for the stream to open.
	streamOpenTimeout = time.Second
	// maxRefusedPause is the longest pause after the cloud refused the event stream.
	maxRefusedPause = 30 * time.Second
)

// newPause returns a function that tells how long to wait after a failure: a second, and each time twice as
// long, up to the longest, and up to a fifth longer.
func newPause(longest time.Duration) wait.DelayFunc {
	return wait.Backoff{Duration: time.Second, Factor: 2, Jitter: 0.2, Steps: math.MaxInt, Cap: longest}.DelayFunc()
}

// Run follows the cloud's events until ctx ends. While the stream is broken, what is too old is listed again
// when somebody asks; without Run every question goes to the cloud.
//
// The stream begins with the events from now on, and lists are made once it is open: whatever changes
// between the two is in the events. A stream that breaks is resumed where it was. If it cannot be resumed,
// because the cloud no longer keeps those events or has other data now, what is remembered cannot be
// compared with what exists: it is forgotten and listed anew.
func (c *Cloud) Run(ctx context.Context) {
	c.mu.Lock()
	c.running = ctx
	c.decided, c.decide = context.WithTimeout(ctx, streamOpenTimeout)
	c.lists.Go(func() { wait.UntilWithContext(ctx, c.resync, resyncPeriod) })
	c.mu.Unlock()
	pause := newPause(maxRefusedPause)
	for isFirst := true; ctx.Err() == nil; isFirst = false {
		began := time.Now()
		err := c.followStream(ctx, isFirst)
		if client.HasCode(err, api.EventsExpired) {
			continue
		}
		if time.Since(began) > maxRefusedPause { // The stream worked for a while.
			pause = newPause(maxRefusedPause)
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause()):
		}
	}
	c.mu.Lock()
	c.running = nil // No list is made from now on.
	c.mu.Unlock()
	c.lists.Wait()
}

// resync lists everything anew although the event stream is open.
func (c *Cloud) resync(context.Context) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.refresh(false)
}

// followStream follows the events until the stream cannot be resumed. What is remembered is forgotten when it
// opens, unless it continues what was listed before.
func (c *Cloud) followStream(ctx context.Context, continues bool) error {
	onEvent := func(ev api.Event) error { c.applyEvent(ev); return nil }
	// No filter: a release of the cloud refuses kinds that it does not know.
	err := c.Follow(ctx, client.FromNewest, onEvent, func(err error) {
		c.handleStreamState(err, continues)
		continues = continues || err == nil
	})
	c.handleStreamState(err, continues)
	if ctx.Err() == nil {
		klog.InfoS("Cannot follow the cloud's events; resources are listed until it works", "err", err)
	}
	return err
}

// handleStreamState is called when the stream opens, with nil, and when it breaks.
func (c *Cloud) handleStreamState(err error, continues bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	defer c.decide()
	if err != nil {
		c.unreachable = true
		if !c.openedAt.IsZero() {
			klog.InfoS("The cloud's event stream broke; resources are listed until it is open again", "err", err)
		}
		c.openedAt = time.Time{}
		return
	}
	klog.V(2).InfoS("The cloud's event stream is open")
	c.openedAt = time.Now()
	c.refresh(!continues)
	c.reportRecovery()
}

// applyEvent passes an event on to the kind that it is about.
func (c *Cloud) applyEvent(ev api.Event) {
	deleted := ev.Type == api.EventDeleted
	switch {
	case ev.Instance != nil:
		c.instances.applyEvent(*ev.Instance, deleted)
	case ev.LoadBalancer != nil:
		c.balancers.applyEvent(*ev.LoadBalancer, deleted)
		if !c.opts.InCluster(ev.LoadBalancer.Tags) {
			c.reportFreed()
		}
	case ev.Resource == api.ResourceAddress, ev.Resource == api.ResourceQuota:
		c.reportFreed()
	case ev.Route != nil:
		c.routes.applyEvent(*ev.Route, deleted)
	}
}

func (c *Cloud) reportFreed() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.report(Change{Kind: Freed})
}
