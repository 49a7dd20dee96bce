package dataplane

import (
	"slices"

	"github.com/ccmlab/ccmlab/fakecloud/cloud"
)

// clientsAreRefused says what clients experience while no target can get traffic.
const clientsAreRefused = "clients are refused (tcp connections are reset, udp datagrams dropped)"

// condition says whether a balancer can serve: reason is empty if it can. It is not
// known while the first health checks are under way.
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
	p.onConditionChange = changed
}

// updateCondition computes the balancer's condition, and reports it through
// Plane.onConditionChange if it is known and not the one before. The caller holds
// Plane.mu.
func (b *balancer) updateCondition() {
	now := b.currentCondition()
	if now == b.condition {
		return
	}
	b.condition = now
	if now.known && b.plane.onConditionChange != nil {
		b.plane.onConditionChange(b.forwarding.ID)
	}
}

// currentCondition computes the condition from the targets' health. Targets of unknown
// health get traffic. But if they are about to be checked, and no other target is
// healthy, the condition is not known before their first answer.
func (b *balancer) currentCondition() condition {
	f := b.forwarding
	hasTarget := func(is cloud.Health) bool {
		return slices.ContainsFunc(f.Backends, func(backend cloud.Backend) bool {
			return b.checkedTargets[backend.Target].health.Health == is
		})
	}
	switch {
	case len(f.Listeners) == 0:
		return condition{known: true} // Nobody can connect, so nobody is refused.
	case hasTarget(cloud.Healthy):
		return condition{known: true}
	case hasTarget(cloud.Unknown):
		return condition{known: f.HealthCheck == nil}
	case len(f.Backends) > 0:
		return condition{
			"no target is healthy: " + clientsAreRefused + "; the balancer's health says why of each", true,
		}
	case f.Targets > 0:
		return condition{"no target runs: " + clientsAreRefused, true}
	}
	return condition{"it has no targets: " + clientsAreRefused, true}
}
