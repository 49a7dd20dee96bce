// This file answers: why can a balancer not serve its clients?

package dataplane

import (
	"slices"

	"github.com/ccmlab/ccmlab/fakecloud/cloud"
)

// refused is what clients meet with while no target can be sent traffic.
const refused = "clients are refused (tcp connections are reset, udp datagrams dropped)"

// Condition implements cloud.DataPlane.
func (p *Plane) Condition(id string) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if b := p.balancers[id]; b != nil {
		return b.condition
	}
	return ""
}

// Notify implements cloud.DataPlane.
func (p *Plane) Notify(changed func(id string)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.changed = changed
}

// judge notes the balancer's condition and tells whoever wants to know when it
// has changed. The caller holds Plane.mu.
func (b *balancer) judge() {
	now := b.conditionNow()
	if now == b.condition {
		return
	}
	b.condition = now
	if b.plane.changed != nil {
		b.plane.changed(b.forwarding.ID)
	}
}

// conditionNow follows from the targets: those whose health is unknown are sent
// traffic.
func (b *balancer) conditionNow() string {
	f := b.forwarding
	serves := func(backend cloud.Backend) bool { return b.watched[backend.Target].health.Health != cloud.Unhealthy }
	switch {
	case slices.ContainsFunc(f.Backends, serves):
		return ""
	case len(f.Backends) > 0:
		return "no target is healthy: " + refused + "; the balancer's health says why of each"
	case f.Targets > 0:
		return "no target runs: " + refused
	}
	return "it has no targets: " + refused
}
