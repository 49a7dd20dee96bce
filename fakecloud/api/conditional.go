package api

import (
	"reflect"
	"slices"
)

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

// Payload names the field of e that has the resource that e is about, and points to it; it is nil if no field does.
func (e *Event) Payload() (name string, field any) {
	switch e.Resource {
	case ResourceInstance:
		return "instance", &e.Instance
	case ResourceLoadBalancer:
		return "loadBalancer", &e.LoadBalancer
	case ResourceAddress:
		return "address", &e.Address
	case ResourceRoute:
		return "route", &e.Route
	case ResourceNetwork:
		return "network", &e.Network
	case ResourceFirewall:
		return "firewall", &e.Firewall
	case ResourceCertificate:
		return "certificate", &e.Certificate
	}
	return "", nil
}

// MissingField names the field of the resource that e is about if e lacks it; "" if e is whole.
func (e *Event) MissingField() string {
	if name, field := e.Payload(); field != nil && reflect.ValueOf(field).Elem().IsNil() {
		return name
	}
	return ""
}
