package server

import (
	"cmp"
	"net/netip"
	"time"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/cloud"
	"github.com/ccmlab/ccmlab/fakecloud/identity"
)

func textOrNil(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

// mapOrNil converts what a pointer points to; nil stays nil.
func mapOrNil[A, B any](in *A, fn func(A) B) *B {
	if in == nil {
		return nil
	}
	return new(fn(*in))
}

func mapSlice[A, B any](in []A, fn func(A) B) []B {
	out := make([]B, len(in))
	for i, a := range in {
		out[i] = fn(a)
	}
	return out
}

func toAPIInstance(in cloud.Instance) api.Instance {
	addresses := []api.Address{}
	for _, ip := range in.Internal() {
		addresses = append(addresses, api.Address{Type: api.AddressInternal, IP: ip.String()})
	}
	for _, ip := range in.External {
		addresses = append(addresses, api.Address{Type: api.AddressExternal, IP: ip.String()})
	}
	return api.Instance{
		ID: in.ID, Serial: in.Serial, Identities: identity.Of(in.Serial), Project: in.Project, Name: in.Name,
		Region: in.Region, Zone: in.Zone, Type: api.InstanceType(in.Type), NetworkID: in.Network,
		State:       api.InstanceState(in.State),
		StateReason: textOrNil(in.StateReason),
		Addresses:   addresses, Tags: in.Tags, Version: in.Version, CreatedAt: in.CreatedAt, UpdatedAt: in.UpdatedAt,
	}
}

func toAPILoadBalancer(lb cloud.LoadBalancer) api.LoadBalancer {
	return api.LoadBalancer{
		ID: lb.ID, Serial: lb.Serial, Project: lb.Project, Name: lb.Name, Region: lb.Region,
		Address:     lb.Address.String(),
		AddressID:   textOrNil(lb.AddressID),
		IPFamilies:  mapSlice(lb.IPFamilies(), func(f cloud.IPFamily) api.IPFamily { return api.IPFamily(f) }),
		IPv6Address: addressOrNil(lb.Address6),
		NetworkID:   textOrNil(lb.Network), PrivateAddress: addressOrNil(lb.PrivateAddress),
		AttachedAddresses: mapSliceOrNil(lb.Attached, netip.Addr.String),
		State:             api.LoadBalancerState(lb.State), StateReason: textOrNil(lb.StateReason),
		StateReasonCode: api.StateReasonCode(lb.StateReasonCode),
		// Events of releases without these fields have none.
		Type:                  api.LoadBalancerType(cmp.Or(lb.Type, cloud.UnlimitedBalancer)),
		Kind:                  api.LoadBalancerKind(cmp.Or(lb.Kind, cloud.ProxyBalancer)),
		Scheme:                api.LoadBalancerScheme(cmp.Or(lb.Scheme, cloud.Public)),
		Algorithm:             api.LoadBalancerAlgorithm(cmp.Or(lb.Algorithm, cloud.RoundRobin)),
		Listeners:             mapSlice(lb.Listeners, toAPIListener),
		Targets:               mapSlice(lb.Targets, func(id string) api.Target { return api.Target{InstanceID: id} }),
		SourceRanges:          mapSlice(lb.SourceRanges, netip.Prefix.String),
		ClientAffinitySeconds: int(lb.Affinity.Seconds()),
		IdleTimeoutSeconds:    int(lb.IdleTimeout.Seconds()),
		DrainSeconds:          int(lb.Drain.Seconds()),
		HealthCheck:           mapOrNil(lb.HealthCheck, toAPIHealthCheck),
		Records:               lb.Records,
		DeletionProtection:    lb.DeletionProtection,
		Tags:                  lb.Tags, Version: lb.Version, CreatedAt: lb.CreatedAt, UpdatedAt: lb.UpdatedAt,
	}
}

func addressOrNil(a netip.Addr) *string {
	if !a.IsValid() {
		return nil
	}
	return new(a.String())
}

func toFamily(f api.IPFamily) cloud.IPFamily { return cloud.IPFamily(f) }

func toAPIListener(l cloud.Listener) api.Listener {
	out := api.Listener{
		Protocol: api.Protocol(l.Protocol), Port: l.Port, TargetPort: l.TargetPort,
		ProxyProtocol: api.ProxyProtocol(l.ProxyProtocol), ConnectionLimit: l.ConnectionLimit,
	}
	if l.HealthCheck != (cloud.HealthCheck{}) {
		out.HealthCheck = new(toAPIHealthCheck(l.HealthCheck))
	}
	return out
}

func toAPIHealthCheck(h cloud.HealthCheck) api.HealthCheck {
	return api.HealthCheck{
		Protocol: api.HealthCheckProtocol(h.Protocol), Port: h.Port, Path: h.Path, ExpectedCodes: h.ExpectedCodes,
		IntervalSeconds: int(h.Interval.Seconds()), TimeoutSeconds: int(h.Timeout.Seconds()),
		HealthyThreshold: h.HealthyThreshold, UnhealthyThreshold: h.UnhealthyThreshold,
	}
}

func toHealthCheck(h api.HealthCheck) cloud.HealthCheck {
	return cloud.HealthCheck{
		Protocol: cloud.HealthCheckProtocol(h.Protocol), Port: h.Port, Path: h.Path, ExpectedCodes: h.ExpectedCodes,
		Interval: secondsToDuration(h.IntervalSeconds), Timeout: secondsToDuration(h.TimeoutSeconds),
		HealthyThreshold: h.HealthyThreshold, UnhealthyThreshold: h.UnhealthyThreshold,
	}
}

func secondsToDuration(n int) time.Duration { return time.Duration(n) * time.Second }

func toAPITargetHealth(h cloud.TargetHealth) api.TargetHealth {
	out := api.TargetHealth{
		InstanceID: h.Target, Health: api.TargetHealthState(h.Health), Reason: textOrNil(h.Reason),
		History: mapSlice(h.History, toAPIHealthChange),
	}
	if h.Listeners != nil {
		out.Listeners = new(mapSlice(h.Listeners, toAPIListenerHealth))
	}
	if !h.Since.IsZero() {
		out.Since = new(h.Since.UTC())
	}
	return out
}

func toAPIListenerHealth(h cloud.ListenerHealth) api.ListenerHealth {
	return api.ListenerHealth{
		Protocol: api.Protocol(h.Protocol), Port: h.Port, Health: api.TargetHealthState(h.Health),
		Reason: textOrNil(h.Reason),
	}
}

func toAPIHealthChange(c cloud.HealthChange) api.HealthChange {
	return api.HealthChange{Health: api.TargetHealthState(c.Health), Reason: textOrNil(c.Reason), At: c.At.UTC()}
}

func toAPIStats(s cloud.LoadBalancerStats) api.LoadBalancerStats {
	return api.LoadBalancerStats{
		Listeners: mapSlice(s.Listeners, toAPIListenerStats), Targets: mapSlice(s.Targets, toAPITargetStats),
	}
}

func toAPITargetStats(s cloud.TargetStats) api.TargetStats {
	return api.TargetStats{
		InstanceID: s.Target, Connections: s.Connections, ActiveConnections: s.Active, FailedConnections: s.Failed,
		BrokenConnections: s.Broken, BytesIn: s.In, BytesOut: s.Out, PacketsIn: s.Packets,
	}
}

func toAPIListenerStats(s cloud.ListenerStats) api.ListenerStats {
	return api.ListenerStats{
		Protocol: api.Protocol(s.Listener.Protocol), Port: s.Listener.Port,
		Connections: s.Connections, ActiveConnections: s.Active, FailedConnections: s.Failed,
		BrokenConnections: s.Broken, RefusedConnections: s.Refused,
		BytesIn: s.In, BytesOut: s.Out, PacketsIn: s.Packets,
	}
}

func toListener(l api.Listener) cloud.Listener {
	return cloud.Listener{
		Protocol: cloud.Protocol(l.Protocol), Port: l.Port, TargetPort: l.TargetPort,
		ProxyProtocol: cloud.ProxyProtocol(l.ProxyProtocol), ConnectionLimit: l.ConnectionLimit,
		HealthCheck: api.ValueOf(mapOrNil(l.HealthCheck, toHealthCheck)),
	}
}

func toTarget(t api.Target) string { return t.InstanceID }

func toAPIEvent(e cloud.Event) api.Event {
	return api.Event{
		Seq: e.Seq, Time: e.Time, Type: api.EventType(e.Type), Resource: api.ResourceKind(e.Resource),
		ID: e.ID, Name: e.Name, From: textOrNil(e.From), To: textOrNil(e.To), Reason: textOrNil(e.Reason),
		Instance: mapOrNil(e.Instance, toAPIInstance), LoadBalancer: mapOrNil(e.LoadBalancer, toAPILoadBalancer),
		Address: e.Address, Route: e.Route,
		Firewall: e.Firewall, Network: e.Network,
	}
}
