package api

import "slices"

// MissingField names the optional field that lb must have by its others, and lacks; "" if it lacks none.
func (lb *LoadBalancer) MissingField() string {
	if slices.Contains(lb.IPFamilies, IPv6) && lb.IPv6Address == "" {
		return "ipv6Address"
	}
	return ""
}

// MissingField names the optional field that a must have by its others, and lacks; "" if it lacks none.
func (a *ReservedAddress) MissingField() string {
	if a.State == AddressHeld && a.Holder == nil {
		return "holder"
	}
	return ""
}

// MissingField names the field of the resource that e is about if e lacks it; "" if e is whole.
func (e *Event) MissingField() string {
	for _, payload := range []struct {
		kind  ResourceKind
		field string
		has   bool
	}{
		{ResourceInstance, "instance", e.Instance != nil},
		{ResourceLoadBalancer, "loadBalancer", e.LoadBalancer != nil},
		{ResourceAddress, "address", e.Address != nil},
		{ResourceRoute, "route", e.Route != nil},
		{ResourceNetwork, "network", e.Network != nil},
		{ResourceCertificate, "certificate", e.Certificate != nil},
		{ResourceFirewall, "firewall", e.Firewall != nil},
	} {
		if e.Resource == payload.kind && !payload.has {
			return payload.field
		}
	}
	return ""
}
