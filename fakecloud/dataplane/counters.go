package dataplane

import (
	"sync/atomic"

	"github.com/ccmlab/ccmlab/fakecloud/cloud"
)

// maxEndpoints bounds the targets that one balancer remembers beside those that
// it has.
const maxEndpoints = 1000

// counters outlive what they count for: a listener or target that is taken out
// and comes back counts on.
type counters struct{ connections, active, failed, broken, refused, in, out atomic.Int64 }

func (c *counters) begin() {
	c.connections.Add(1)
	c.active.Add(1)
}

func (c *counters) bytes() cloud.Bytes { return cloud.Bytes{In: c.in.Load(), Out: c.out.Load()} }

// endpoint is what a balancer has met with at a target, on all ports.
type endpoint struct {
	name string
	counters
	busy    atomic.Int64  // its connections and sessions, those being opened included
	suspect chan struct{} // has one when the target is to be asked at once
}

func newEndpoint(name string) *endpoint {
	return &endpoint{name: name, suspect: make(chan struct{}, 1)}
}

// doubt has a target asked soon whether it is well, if it has a health check: it
// may have died.
func (e *endpoint) doubt() {
	select {
	case e.suspect <- struct{}{}:
	default:
	}
}

// meet remembers all targets there are, and forgets some that were if those are
// many. The caller holds Plane.mu.
func (b *balancer) meet(backends []cloud.Backend) {
	now := make(map[string]bool, len(backends))
	for _, backend := range backends {
		now[backend.Target] = true
		if b.endpoints[backend.Target] == nil {
			b.endpoints[backend.Target] = newEndpoint(backend.Target)
		}
	}
	for name, e := range b.endpoints {
		if len(b.endpoints) <= len(backends)+maxEndpoints {
			return
		}
		if !now[name] && e.busy.Load() == 0 {
			delete(b.endpoints, name)
		}
	}
}

// stats are those of the listeners there are, of the backends, then of targets
// that were some: one that is stopped may drain, and may come back. The caller
// holds Plane.mu.
func (b *balancer) stats() (out cloud.LoadBalancerStats) {
	for _, l := range b.forwarding.Listeners {
		c := b.counters[port{l.Protocol, l.Port}]
		out.Listeners = append(out.Listeners, cloud.ListenerStats{
			Listener: l, Connections: c.connections.Load(), Active: c.active.Load(),
			Failed: c.failed.Load(), Broken: c.broken.Load(), Refused: c.refused.Load(), Bytes: c.bytes(),
		})
	}
	add := func(e *endpoint) {
		out.Targets = append(out.Targets, cloud.TargetStats{
			Target: e.name, Connections: e.connections.Load(), Active: e.active.Load(),
			Failed: e.failed.Load(), Broken: e.broken.Load(), Bytes: e.bytes(),
		})
	}
	now := make(map[string]bool, len(b.forwarding.Backends))
	for _, backend := range b.forwarding.Backends {
		now[backend.Target] = true
		add(b.endpoints[backend.Target])
	}
	for name, e := range b.endpoints {
		if !now[name] {
			add(e)
		}
	}
	return out
}
