// This file answers: how do the cloud's types look in the API?

package server

import (
	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/cloud"
)

func text(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

func value[T any](p *T) T {
	if p == nil {
		var zero T
		return zero
	}
	return *p
}

func each[A, B any](in []A, fn func(A) B) []B {
	out := make([]B, len(in))
	for i, a := range in {
		out[i] = fn(a)
	}
	return out
}

func instanceOf(in cloud.Instance) api.Instance {
	addresses := []api.Address{}
	if in.Address.IsValid() {
		addresses = append(addresses, api.Address{Type: api.AddressInternal, IP: in.Address.String()})
	}
	return api.Instance{
		ID: in.ID, Project: in.Project, Name: in.Name, Region: in.Region, Zone: in.Zone,
		Type: api.InstanceType(in.Type), State: api.InstanceState(in.State), StateReason: text(in.StateReason),
		Addresses: addresses, Tags: in.Tags, Version: in.Version, CreatedAt: in.CreatedAt, UpdatedAt: in.UpdatedAt,
	}
}

func loadBalancerOf(lb cloud.LoadBalancer) api.LoadBalancer {
	return api.LoadBalancer{
		ID: lb.ID, Project: lb.Project, Name: lb.Name, Region: lb.Region, Address: lb.Address.String(),
		State: api.LoadBalancerState(lb.State), StateReason: text(lb.StateReason),
		Listeners: each(lb.Listeners, listenerOf),
		Targets:   each(lb.Targets, func(id string) api.Target { return api.Target{InstanceID: id} }),
		Tags:      lb.Tags, Version: lb.Version, CreatedAt: lb.CreatedAt, UpdatedAt: lb.UpdatedAt,
	}
}

func listenerOf(l cloud.Listener) api.Listener {
	return api.Listener{Protocol: api.Protocol(l.Protocol), Port: l.Port, TargetPort: l.TargetPort}
}

func statsOf(s cloud.ListenerStats) api.ListenerStats {
	return api.ListenerStats{
		Protocol: api.Protocol(s.Listener.Protocol), Port: s.Listener.Port,
		Connections: s.Connections, ActiveConnections: s.Active, FailedConnections: s.Failed, RefusedConnections: s.Refused,
		BytesIn: s.BytesIn, BytesOut: s.BytesOut,
	}
}

func toListener(l api.Listener) cloud.Listener {
	return cloud.Listener{Protocol: cloud.Protocol(l.Protocol), Port: l.Port, TargetPort: l.TargetPort}
}

func toTarget(t api.Target) string { return t.InstanceID }

func eventOf(e cloud.Event) api.Event {
	out := api.Event{
		Seq: e.Seq, Time: e.Time, Type: api.EventType(e.Type), Resource: api.EventResource(e.Resource),
		ID: e.ID, Name: e.Name, From: text(e.From), To: text(e.To), Reason: text(e.Reason),
	}
	if e.Instance != nil {
		in := instanceOf(*e.Instance)
		out.Instance = &in
	}
	if e.LoadBalancer != nil {
		lb := loadBalancerOf(*e.LoadBalancer)
		out.LoadBalancer = &lb
	}
	return out
}
