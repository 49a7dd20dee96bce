package api

import (
	"cmp"
	"reflect"
	"slices"
	"time"
)

// Transport is the protocol of the listener's socket, tcp or udp: http is over tcp.
func (l Listener) Transport() Protocol {
	if l.Protocol == ProtocolUDP {
		return ProtocolUDP
	}
	return ProtocolTCP
}

// IsHTTP tells whether the check makes requests.
func (p HealthCheckProtocol) IsHTTP() bool { return p == HealthCheckHTTP || p == HealthCheckHTTPS }

// PublicAddresses are those on which a public balancer is to be reached: the reserved addresses that are attached
// to it, and the one of its own, of IPv4.
func (lb LoadBalancer) PublicAddresses() []string {
	return append(append([]string{}, lb.AttachedAddresses...), lb.Address)
}

// Seconds is a number of seconds. Requests have whole ones; the data plane takes others too.
type Seconds float64

// IsHTTP tells whether a listener of the protocol reads requests, over tcp.
func (p Protocol) IsHTTP() bool { return p == ProtocolHTTP || p == ProtocolHTTPS }

// IsTLS tells whether TLS ends at a listener of the protocol, by its certificates.
func (p Protocol) IsTLS() bool { return p == ProtocolHTTPS || p == ProtocolTLS }

// Equal tells whether two listeners are the same.
func (l Listener) Equal(other Listener) bool {
	same := slices.Equal(l.CertificateIDs, other.CertificateIDs) // None may be nil or empty.
	l.CertificateIDs, other.CertificateIDs = nil, nil
	return same && reflect.DeepEqual(l, other)
}

// Name is the ID of the instance, or the IP.
func (t Target) Name() string { return cmp.Or(t.InstanceID, t.IP) }

// String is what messages call a target.
func (t Target) String() string { return t.Name() }

// Name is that of the target.
func (t TargetStats) Name() string { return cmp.Or(t.InstanceID, t.IP) }

// Name is that of the target.
func (t TargetHealth) Name() string { return cmp.Or(t.InstanceID, t.IP) }

// AllTargets gives each target once: the balancer's own, then those that listeners alone have.
func (lb LoadBalancer) AllTargets() []Target {
	all, known := lb.Targets, map[string]bool{}
	for _, l := range lb.Listeners {
		if len(l.Targets) > 0 && len(known) == 0 {
			all = slices.Clone(all)
			for _, t := range all {
				known[t.Name()] = true
			}
		}
		for _, t := range l.Targets {
			if !known[t.Name()] {
				known[t.Name()] = true
				all = append(all, t)
			}
		}
	}
	return all
}

// Duration is the same as a time.Duration.
func (s Seconds) Duration() time.Duration { return time.Duration(float64(s) * float64(time.Second)) }

// CheckInForce gives the health check that decides which targets get traffic from the listener of
// a balancer whose own check is given. The zero value is no check.
func (l Listener) CheckInForce(ofBalancer *HealthCheck) HealthCheck {
	switch {
	case l.HealthCheck.Protocol == HealthCheckNone || l.RedirectPort > 0:
		return HealthCheck{}
	case l.HealthCheck != HealthCheck{}:
		return l.HealthCheck
	}
	return ValueOf(ofBalancer)
}
