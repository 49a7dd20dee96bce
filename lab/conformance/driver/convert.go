package driver

// Between the engine's types and the protocol's.

import (
	"k8s.io/apimachinery/pkg/types"

	"github.com/ccmlab/ccmlab/lab/conformance"
	"github.com/ccmlab/ccmlab/lab/conformance/driver/protocol"
)

// convert converts a list. None stays none.
func convert[A, B any](all []A, one func(A) B) []B {
	if all == nil {
		return nil
	}
	converted := make([]B, len(all))
	for i := range all {
		converted[i] = one(all[i])
	}
	return converted
}

// listed is a list that is there, as JSON's null is none.
func listed[A any](all []A) []A {
	if all == nil {
		return []A{}
	}
	return all
}

func fromInstanceSpec(s conformance.InstanceSpec) protocol.InstanceSpec {
	return protocol.InstanceSpec{Name: s.Name, Machine: s.Machine, Zone: s.Zone, External: s.External}
}

func toInstanceSpec(s protocol.InstanceSpec) conformance.InstanceSpec {
	return conformance.InstanceSpec{Name: s.Name, Machine: s.Machine, Zone: s.Zone, External: s.External}
}

func toInstance(i protocol.Instance) conformance.Instance {
	return conformance.Instance{
		ID: i.ID, Name: i.Name, NodeName: i.NodeName, ProviderID: i.ProviderID,
		InternalIPs: i.InternalIPs, ExternalIPs: i.ExternalIPs, Type: i.Type, Zone: i.Zone, Region: i.Region,
	}
}

func fromInstance(i conformance.Instance) protocol.Instance {
	return protocol.Instance{
		ID: i.ID, Name: i.Name, NodeName: i.NodeName, ProviderID: i.ProviderID,
		InternalIPs: listed(i.InternalIPs), ExternalIPs: i.ExternalIPs, Type: i.Type, Zone: i.Zone, Region: i.Region,
	}
}

func toBalancer(b protocol.Balancer) conformance.Balancer {
	return conformance.Balancer{
		ID: b.ID, Name: b.Name, Service: types.UID(b.Service), Address: b.Address, Active: b.Active,
		Listeners: convert(b.Listeners, toListener), Targets: b.Targets, SourceRanges: b.SourceRanges,
		Affinity: b.Affinity, AffinitySeconds: b.AffinitySeconds, HealthChecked: b.HealthChecked,
		HealthCheckPort: b.HealthCheckPort,
	}
}

func fromBalancer(b conformance.Balancer) protocol.Balancer {
	return protocol.Balancer{
		ID: b.ID, Name: b.Name, Service: string(b.Service), Address: b.Address, Active: b.Active,
		Listeners: convert(b.Listeners, fromListener), Targets: b.Targets, SourceRanges: b.SourceRanges,
		Affinity: b.Affinity, AffinitySeconds: b.AffinitySeconds, HealthChecked: b.HealthChecked,
		HealthCheckPort: b.HealthCheckPort,
	}
}

func toListener(l protocol.Listener) conformance.Listener {
	return conformance.Listener{Protocol: string(l.Protocol), Port: l.Port, TargetPort: l.TargetPort}
}

func fromListener(l conformance.Listener) protocol.Listener {
	return protocol.Listener{
		Protocol: protocol.ListenerProtocol(l.Protocol), Port: l.Port, TargetPort: l.TargetPort,
	}
}

func toRoute(r protocol.Route) conformance.Route {
	return conformance.Route{ID: r.ID, Destination: r.Destination, InstanceID: r.InstanceID}
}

func fromRoute(r conformance.Route) protocol.Route {
	return protocol.Route{ID: r.ID, Destination: r.Destination, InstanceID: r.InstanceID}
}

func toCalls(c protocol.CallCounts) conformance.Calls {
	calls := conformance.Calls{
		Count: conformance.Count{Reads: c.Reads, Writes: c.Writes}, Of: map[conformance.Thing]conformance.Count{},
	}
	for thing, count := range c.Things {
		calls.Of[conformance.Thing(thing)] = conformance.Count{Reads: count.Reads, Writes: count.Writes}
	}
	return calls
}

func fromCalls(c conformance.Calls) protocol.CallCounts {
	counts := protocol.CallCounts{Reads: c.Reads, Writes: c.Writes, Things: map[string]protocol.CallCount{}}
	for thing, count := range c.Of {
		counts.Things[string(thing)] = protocol.CallCount{Reads: count.Reads, Writes: count.Writes}
	}
	return counts
}

func toCall(c protocol.Call) conformance.Call {
	return conformance.Call{
		ID: c.ID, Began: c.Began, Answered: c.Answered, Operation: c.Operation, Resource: c.Resource,
		Answer: c.Answer, Failed: c.Failed,
	}
}

func fromCall(c conformance.Call) protocol.Call {
	return protocol.Call{
		ID: c.ID, Began: c.Began, Answered: c.Answered, Operation: c.Operation, Resource: c.Resource,
		Answer: c.Answer, Failed: c.Failed,
	}
}
