package dataplane

import (
	"slices"

	"github.com/ccmlab/ccmlab/fakecloud/cloud"
)

// refused is what clients meet with while no target can be sent traffic.
const refused = "clients are refused (tcp connections are reset, udp datagrams dropped)"

// condition is why a balancer cannot serve, if it is known whether it can.
type condition struct {
	reason string
	known  bool
}

// Condition implements cloud.DataPlane.
func (p *Plane) Condition(id string) (reason string, known bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if b := p.balancers[id]; b != nil {
		return b.condition.reason, b.condition.known
	}
	return "", false
}

// Notify implements cloud.DataPlane.
func (p *Plane) Notify(changed func(id string)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.changed = changed
}

// judge notes the balancer's condition and tells whoever wants to know when it
// has changed or become known. The caller holds Plane.mu.
func (b *balancer) judge() {
	now := b.conditionNow()
	if now == b.condition {
		return
	}
	b.condition = now
	if now.known && b.plane.changed != nil {
		b.plane.changed(b.forwarding.ID)
	}
}

// conditionNow follows from the targets. Those whose health is unknown are sent
// traffic; but if they are about to be asked, and no other is well, what they
// answer decides.
func (b *balancer) conditionNow() condition {
	f := b.forwarding
	some := func(is cloud.Health) bool {
		return slices.ContainsFunc(f.Backends, func(backend cloud.Backend) bool { return b.watched[backend.Target].health.Health == is })
	}
	switch {
	case some(cloud.Healthy):
		return condition{known: true}
	case some(cloud.Unknown):
		return condition{known: f.HealthCheck == nil}
	case len(f.Backends) > 0:
		return condition{"no target is healthy: " + refused + "; the balancer's health says why of each", true}
	case f.Targets > 0:
		return condition{"no target runs: " + refused, true}
	}
	return condition{"it has no targets: " + refused, true}
}
