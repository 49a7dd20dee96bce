package dataplane

import (
	"sync/atomic"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/cloud"
)

// maxFormerEndpoints bounds the former targets that one balancer remembers beside its
// current ones.
const maxFormerEndpoints = 1000

// counters of a listener or target. They outlive it: one that is taken out and comes
// back continues from its old figures.
type counters struct{ connections, active, failed, broken, refused, bytesIn, bytesOut atomic.Int64 }

func (c *counters) countConnection() {
	c.connections.Add(1)
	c.active.Add(1)
}

// endpoint holds the counters of one target, over all ports of the balancer.
type endpoint struct {
	name string
	counters
	openConnections atomic.Int64 // connections and sessions, including those being opened
	// checkRequests has one channel for each check of the target; it holds a value when that is to
	// be made soon.
	checkRequests atomic.Pointer[[]chan struct{}]
}

// requestCheck has the target's health checked soon, out of turn, because it may have
// died. Without a health check, nothing happens.
func (e *endpoint) requestCheck() {
	requests := e.checkRequests.Load()
	if requests == nil {
		return
	}
	for _, r := range *requests {
		select {
		case r <- struct{}{}:
		default:
		}
	}
}

// updateEndpoints adds an endpoint for each new target, and removes some former ones if
// there are more than maxFormerEndpoints. The caller holds Plane.mu.
func (b *balancer) updateEndpoints(backends []cloud.Backend) {
	current := make(map[string]bool, len(backends))
	for _, backend := range backends {
		current[backend.Target] = true
		if b.endpoints[backend.Target] == nil {
			b.endpoints[backend.Target] = &endpoint{name: backend.Target}
		}
	}
	for name, e := range b.endpoints {
		if len(b.endpoints) <= len(backends)+maxFormerEndpoints {
			return
		}
		if !current[name] && e.openConnections.Load() == 0 {
			delete(b.endpoints, name)
		}
	}
}

// collectStats returns the counters of the current listeners, then of the current targets,
// then of the former targets: a stopped target may still drain, and may come back. The
// caller holds Plane.mu.
func (b *balancer) collectStats() (out api.LoadBalancerStats) {
	for _, l := range b.forwarding.Listeners {
		c := b.counters[portOf(l)]
		out.Listeners = append(out.Listeners, api.ListenerStats{
			Protocol: l.Protocol, Port: l.Port, Connections: c.connections.Load(), ActiveConnections: c.active.Load(),
			FailedConnections: c.failed.Load(), BrokenConnections: c.broken.Load(),
			RefusedConnections: c.refused.Load(), BytesIn: c.bytesIn.Load(), BytesOut: c.bytesOut.Load(),
		})
	}
	add := func(e *endpoint) {
		out.Targets = append(out.Targets, api.TargetStats{
			InstanceID: e.name, Connections: e.connections.Load(), ActiveConnections: e.active.Load(),
			FailedConnections: e.failed.Load(), BrokenConnections: e.broken.Load(),
			BytesIn: e.bytesIn.Load(), BytesOut: e.bytesOut.Load(),
		})
	}
	backends := b.forwarding.AllBackends()
	current := make(map[string]bool, len(backends))
	for _, backend := range backends {
		current[backend.Target] = true
		add(b.endpoints[backend.Target])
	}
	for name, e := range b.endpoints {
		if !current[name] {
			add(e)
		}
	}
	return out
}
