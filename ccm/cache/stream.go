package cache

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
)

// The first and the longest pause after the cloud refused the event stream.
const (
	refusedPause    = time.Second
	maxRefusedPause = 30 * time.Second
)

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
	c.mu.Unlock()
	defer c.endLists()
	pause, logged := newRefusalBackoff(), ""
	for ctx.Err() == nil {
		began := time.Now()
		err := c.followStream(ctx)
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
			case <-time.After(pause.Step()):
			}
		}
	}
}

func newRefusalBackoff() *wait.Backoff {
	return &wait.Backoff{Duration: refusedPause, Factor: 2, Jitter: 0.2, Steps: math.MaxInt, Cap: maxRefusedPause}
}

// causeOf is the same for refusals of one kind, although each has its own request ID.
func causeOf(err error) string {
	var refused *client.Error
	if errors.As(err, &refused) {
		return fmt.Sprint(refused.Status, " ", refused.Problem.Code)
	}
	return err.Error()
}

// endLists waits for the lists that are being made, and has none made from now on.
func (c *Cloud) endLists() {
	c.mu.Lock()
	c.running = nil
	c.mu.Unlock()
	c.lists.Wait()
}

// followStream follows the events until the stream cannot be resumed.
func (c *Cloud) followStream(ctx context.Context) error {
	onEvent := func(ev api.Event) error { c.applyEvent(ev); return nil }
	// No filter: a release of the cloud refuses kinds that it does not know.
	err := c.Follow(ctx, client.FromNewest, onEvent, c.handleStreamState)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.isOpen, c.isLost, c.unreachable = false, true, true
	c.decide()
	if client.HasCode(err, api.EventsExpired) {
		c.forgetAll()
	}
	return err
}

// handleStreamState is called when the stream opens, with nil, and when it breaks.
func (c *Cloud) handleStreamState(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	defer c.decide()
	wasOpen := c.isOpen
	c.isOpen = err == nil
	if !c.isOpen {
		c.unreachable = true
		if wasOpen {
			klog.InfoS("The cloud's event stream broke; resources are listed until it is open again", "err", err)
		}
		return
	}
	klog.V(2).InfoS("The cloud's event stream is open")
	if c.isLost {
		c.forgetAll()
	}
	c.opened++
	for _, k := range c.kinds {
		k.continueStream()
	}
	c.reportRecovery()
}

// forgetAll drops what cannot be compared with what exists. mu is held.
func (c *Cloud) forgetAll() {
	c.isLost = false
	for _, k := range c.kinds {
		k.forget()
	}
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
