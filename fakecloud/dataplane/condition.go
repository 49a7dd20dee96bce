package dataplane

import (
	"fmt"
	"slices"
	"strings"

	"github.com/ccmlab/ccmlab/fakecloud/api"
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
// healthy, the condition is not known before their first answer. Each listener goes by its own
// check: a balancer that can serve on some of its ports only says on which it cannot.
func (b *balancer) currentCondition() condition {
	f := b.forwarding
	runs := len(f.Backends) > 0
	for _, own := range f.Own {
		runs = runs || len(own) > 0
	}
	// A listener that redirects needs no target.
	f.Listeners = slices.DeleteFunc(slices.Clone(f.Listeners), func(l cloud.Listener) bool { return l.RedirectPort > 0 })
	switch {
	case b.network.err != nil:
		return condition{"the kernel forwards as before the last change: " + b.network.err.Error(), true}
	case len(f.Listeners) == 0:
		return condition{known: true} // Nobody can connect, so nobody is refused.
	case !runs && f.Targets > 0:
		return condition{"no target runs: " + clientsAreRefused, true}
	case !runs:
		return condition{"it has no targets: " + clientsAreRefused, true}
	}
	var refusing []string // listeners
	for _, l := range f.Listeners {
		switch check := l.CheckInForce(f.HealthCheck); {
		case b.hasTarget(l, api.TargetHealthy):
		case b.hasTarget(l, api.TargetUnknown):
			if (check != cloud.HealthCheck{}) {
				return condition{}
			}
		default:
			refusing = append(refusing, fmt.Sprintf("%s port %d", l.Protocol, l.Port))
		}
	}
	switch len(refusing) {
	case 0:
		return condition{known: true}
	case len(f.Listeners):
		return condition{
			"no target is healthy: " + clientsAreRefused + "; the balancer's health says why of each", true,
		}
	}
	return condition{
		"no target is healthy for " + strings.Join(refusing, ", ") + ": there " + clientsAreRefused +
			"; the balancer's health says why of each", true,
	}
}

// hasTarget tells whether a target that a listener reaches has the health given. The caller holds Plane.mu.
func (b *balancer) hasTarget(l cloud.Listener, is api.TargetHealthState) bool {
	check := l.CheckInForce(b.forwarding.HealthCheck)
	return slices.ContainsFunc(b.forwarding.BackendsOf(l), func(backend cloud.Backend) bool {
		return b.checkedTargets[keyOf(backend, check)].health.Health == is && !backend.Drain &&
			backend.LetIn.Has(l.Protocol, l.TargetPort)
	})
}
