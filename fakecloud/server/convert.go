package server

import (
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
		Region: in.Region, Zone: in.Zone, Type: in.Type, NetworkID: in.Network,
		State:       in.State,
		StateReason: in.StateReason,
		Addresses:   addresses, Tags: in.Tags, Version: in.Version, CreatedAt: in.CreatedAt, UpdatedAt: in.UpdatedAt,
	}
}

func toAPIEvent(e cloud.Event) api.Event {
	return api.Event{
		Seq: e.Seq, Time: e.Time, Type: api.EventType(e.Type), Resource: api.ResourceKind(e.Resource),
		ID: e.ID, Name: e.Name, From: textOrNil(e.From), To: textOrNil(e.To), Reason: textOrNil(e.Reason),
		Instance: mapOrNil(e.Instance, toAPIInstance), LoadBalancer: e.LoadBalancer,
		Address: e.Address, Route: e.Route,
		Certificate: e.Certificate, Firewall: e.Firewall, Network: e.Network,
	}
}
