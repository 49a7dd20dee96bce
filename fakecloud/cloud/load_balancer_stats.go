package cloud

import (
	"cmp"
	"context"
	"slices"
	"strings"

	"github.com/ccmlab/ccmlab/fakecloud/store"
	"github.com/ccmlab/ccmlab/fakecloud/store/db"
)

// LoadBalancerStats gives what each of the balancer's listeners and targets
// carried since the process started.
func (c *Cloud) LoadBalancerStats(ctx context.Context, p Project, id string) (LoadBalancerStats, error) {
	lb, err := c.GetLoadBalancer(ctx, p, id)
	if err != nil {
		return LoadBalancerStats{}, err
	}
	return c.orderedStats(lb), nil
}

// orderedStats gives a balancer's counters, in the order of its listeners and targets.
// They are zero where the data plane has none yet.
func (c *Cloud) orderedStats(lb LoadBalancer) LoadBalancerStats {
	stats := c.cfg.DataPlane.Stats(lb.ID)
	byTarget := make(map[string]TargetStats, len(stats.Targets))
	for _, s := range stats.Targets {
		byTarget[s.Target] = s
	}
	var out LoadBalancerStats
	for _, l := range lb.Listeners {
		s := ListenerStats{Listener: l}
		at := slices.IndexFunc(stats.Listeners, func(s ListenerStats) bool {
			return s.Listener.Protocol == l.Protocol && s.Listener.Port == l.Port
		})
		if at >= 0 {
			s = stats.Listeners[at]
		}
		out.Listeners = append(out.Listeners, s)
	}
	for _, t := range lb.targetIDs() {
		s := byTarget[t]
		s.Target = t
		out.Targets = append(out.Targets, s)
	}
	return out
}

// LoadBalancerHealth gives the health of each of the balancer's targets, in their order. A
// target whose instance does not run is unhealthy; since when, and its history, are not
// stored.
func (c *Cloud) LoadBalancerHealth(ctx context.Context, p Project, id string) ([]TargetHealth, error) {
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
	known := make(map[string]TargetHealth, len(rows))
	for _, h := range c.cfg.DataPlane.Health(id) {
		known[h.Target] = h
	}
	for _, row := range rows {
		if InstanceState(row.State) != InstanceRunning {
			known[row.ID] = TargetHealth{Target: row.ID, Health: Unhealthy, Reason: "instance is " + row.State}
		}
	}
	out := make([]TargetHealth, 0, len(lb.Targets))
	for _, t := range lb.targetIDs() {
		h, ok := known[t]
		if !ok {
			h = TargetHealth{Target: t, Health: Unknown, Reason: "the balancer does not forward to it yet"}
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
			Targets: len(lb.Targets), cloud: c, lb: lb,
		})
	}
	c.planeMu.Unlock()
	slices.SortFunc(all, func(a, b ForwardingBalancer) int {
		return cmp.Or(a.lb.CreatedAt.Compare(b.lb.CreatedAt), strings.Compare(a.ID, b.ID))
	})
	return all
}

// Stats gives the balancer's counters.
func (f ForwardingBalancer) Stats() LoadBalancerStats { return f.cloud.orderedStats(f.lb) }

// Health counts the balancer's targets by their health. Targets whose instances do not run
// are unhealthy.
func (f ForwardingBalancer) Health() map[Health]int {
	known := f.cloud.cfg.DataPlane.Health(f.ID)
	counts := map[Health]int{Healthy: 0, Unhealthy: max(f.Targets-len(known), 0), Unknown: 0}
	for _, h := range known {
		counts[h.Health]++
	}
	return counts
}
