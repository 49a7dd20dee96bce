package cloud

import (
	"cmp"
	"context"
	"slices"
	"strings"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/store"
	"github.com/ccmlab/ccmlab/fakecloud/store/db"
)

// LoadBalancerStats gives what each of the balancer's listeners and targets
// carried since the process started.
func (c *Cloud) LoadBalancerStats(ctx context.Context, p Project, id string) (api.LoadBalancerStats, error) {
	lb, err := c.GetLoadBalancer(ctx, p, id)
	if err != nil {
		return api.LoadBalancerStats{}, err
	}
	return c.orderedStats(lb), nil
}

// orderedStats gives a balancer's counters, in the order of its listeners and targets.
// They are zero where the data plane has none yet.
func (c *Cloud) orderedStats(lb LoadBalancer) api.LoadBalancerStats {
	stats := c.cfg.DataPlane.Stats(lb.ID)
	byTarget := make(map[string]api.TargetStats, len(stats.Targets))
	for _, s := range stats.Targets {
		byTarget[s.InstanceID] = s // The data plane gives names.
	}
	out := api.LoadBalancerStats{Listeners: []api.ListenerStats{}, Targets: []api.TargetStats{}}
	for _, l := range lb.Listeners {
		s := api.ListenerStats{Protocol: l.Protocol, Port: l.Port}
		at := slices.IndexFunc(stats.Listeners, func(s api.ListenerStats) bool {
			return s.Protocol == l.Protocol && s.Port == l.Port
		})
		if at >= 0 {
			s = stats.Listeners[at]
		}
		out.Listeners = append(out.Listeners, s)
	}
	for _, t := range lb.AllTargets() {
		s := byTarget[t.Name()]
		s.InstanceID, s.IP = t.InstanceID, t.IP
		out.Targets = append(out.Targets, s)
	}
	return out
}

// LoadBalancerHealth gives the health of each of the balancer's targets, in their order. A
// target whose instance does not run is unhealthy; since when, and its history, are not
// stored.
func (c *Cloud) LoadBalancerHealth(ctx context.Context, p Project, id string) ([]api.TargetHealth, error) {
	var lb LoadBalancer
	var rows []db.InstancesOfRow
	err := c.store.Read(ctx, func(tx *store.Tx) (err error) {
		if lb, err = loadResource[LoadBalancer](ctx, tx, p, id); err != nil {
			return err
		}
		rows, err = tx.InstancesOf(ctx, listJSON(lb.targetIDs()))
		return err
	})
	if err != nil {
		return nil, err
	}
	known := make(map[string]api.TargetHealth, len(rows))
	for _, h := range c.cfg.DataPlane.Health(id) {
		known[h.InstanceID] = h
	}
	for _, row := range rows {
		if api.InstanceState(row.State) != api.InstanceRunning {
			known[row.ID] = api.TargetHealth{InstanceID: row.ID, Health: api.TargetUnhealthy, Reason: "instance is " + row.State}
		}
	}
	out := make([]api.TargetHealth, 0, len(lb.Targets))
	for _, t := range lb.AllTargets() {
		h, ok := known[t.Name()]
		if !ok {
			h = api.TargetHealth{Health: api.TargetUnknown, Reason: "the balancer does not forward to it yet"}
		}
		h.InstanceID, h.IP = t.InstanceID, t.IP
		if h.History == nil {
			h.History = []api.HealthChange{}
		}
		out = append(out, h)
	}
	return out, nil
}

// ForwardingBalancer is a balancer as the data plane forwards for it.
type ForwardingBalancer struct {
	ID, Project, Name string // Project is an ID
	Kind              LoadBalancerKind
	// Listeners and Targets are their numbers.
	Listeners, Targets int

	cloud *Cloud
	lb    LoadBalancer
}

// ForwardingBalancers gives the balancers of all projects that forward, the oldest first.
// It does not read the store.
func (c *Cloud) ForwardingBalancers() []ForwardingBalancer {
	c.planeMu.Lock()
	all := make([]ForwardingBalancer, 0, len(c.forwarding))
	for _, lb := range c.forwarding {
		if lb.Kind == AttachedAddress {
			continue
		}
		all = append(all, ForwardingBalancer{
			ID: lb.ID, Project: lb.Project, Name: lb.Name, Kind: lb.Kind, Listeners: len(lb.Listeners),
			Targets: len(lb.AllTargets()), cloud: c, lb: lb,
		})
	}
	c.planeMu.Unlock()
	slices.SortFunc(all, func(a, b ForwardingBalancer) int {
		return cmp.Or(a.lb.CreatedAt.Compare(b.lb.CreatedAt), strings.Compare(a.ID, b.ID))
	})
	return all
}

// Stats gives the balancer's counters.
func (f ForwardingBalancer) Stats() api.LoadBalancerStats { return f.cloud.orderedStats(f.lb) }

// Health counts the balancer's targets by their health. Targets whose instances do not run
// are unhealthy.
func (f ForwardingBalancer) Health() map[api.TargetHealthState]int {
	known := f.cloud.cfg.DataPlane.Health(f.ID)
	counts := map[api.TargetHealthState]int{api.TargetHealthy: 0, api.TargetUnhealthy: max(f.Targets-len(known), 0), api.TargetUnknown: 0}
	for _, h := range known {
		counts[h.Health]++
	}
	return counts
}
