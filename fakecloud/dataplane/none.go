package dataplane

import (
	"fmt"
	"strings"
	"sync"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/cloud"
)

// None is the data plane of a cloud without one (--load-balancer-mode none): it listens
// nowhere, checks nothing, and says so in each balancer's condition. Safe for concurrent
// use; the zero value is ready.
type None struct {
	mu          sync.Mutex
	forwardings map[string]cloud.Forwarding // by balancer
}

var _ cloud.DataPlane = (*None)(nil)

// Apply implements cloud.DataPlane. It never fails.
func (n *None) Apply(f cloud.Forwarding) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.forwardings == nil {
		n.forwardings = map[string]cloud.Forwarding{}
	}
	n.forwardings[f.ID] = f
	return nil
}

// CanForward implements cloud.DataPlane: balancers of each kind can forward nothing.
func (*None) CanForward(cloud.LoadBalancerKind) error { return nil }

// Remove implements cloud.DataPlane.
func (n *None) Remove(id string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.forwardings, id)
}

// Stats implements cloud.DataPlane: nothing is carried.
func (*None) Stats(string) api.LoadBalancerStats { return api.LoadBalancerStats{} }

// Health implements cloud.DataPlane.
func (n *None) Health(id string) []api.TargetHealth {
	n.mu.Lock()
	defer n.mu.Unlock()
	var out []api.TargetHealth
	for _, backend := range n.forwardings[id].Backends {
		out = append(out, api.TargetHealth{
			InstanceID: backend.Target, Health: api.TargetUnknown,
			Reason: "nothing is checked: fakecloud runs with --load-balancer-mode none",
		})
	}
	return out
}

// Condition implements cloud.DataPlane.
func (n *None) Condition(id string) (reason string, known bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	f, ok := n.forwardings[id]
	if !ok {
		return "", false
	}
	var where []string
	for _, address := range f.Addresses {
		where = append(where, address.String())
	}
	return fmt.Sprintf(
		"control plane only: nothing listens on %s (fakecloud runs with --load-balancer-mode none)",
		strings.Join(where, " or "),
	), true
}

// Notify implements cloud.DataPlane. No condition ever changes, so it does nothing.
func (*None) Notify(func(id string)) {}

// Close does nothing: there is nothing to close.
func (*None) Close() {}
