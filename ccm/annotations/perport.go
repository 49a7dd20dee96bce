package annotations

// Values that may differ by port: "1000,443=200,53/udp=50".

import (
	"fmt"
	"slices"
	"strings"

	"github.com/ccmlab/ccmlab/fakecloud/api"
)

// PerPort is a value for all ports, and others for some of them.
type PerPort[T any] struct {
	All   T
	Ports []OfPort[T]
}

// OfPort is the value of one port: for both protocols, unless one is named.
type OfPort[T any] struct {
	Port     int
	Protocol api.Protocol
	Value    T
}

func (o OfPort[T]) isFor(l api.Listener) bool {
	return o.Port == l.Port && (o.Protocol == "" || o.Protocol == l.Protocol)
}

func (o OfPort[T]) String() string {
	if o.Protocol == "" {
		return fmt.Sprint(o.Port)
	}
	return fmt.Sprintf("%d/%s", o.Port, o.Protocol)
}

// For is the listener's value. A value for its port and protocol precedes one for its
// port alone.
func (p PerPort[T]) For(l api.Listener) T {
	value := p.All
	for _, o := range p.Ports {
		if o.isFor(l) {
			value = o.Value
			if o.Protocol != "" {
				break
			}
		}
	}
	return value
}

// UnusedPorts are the ports with a value that none of the listeners has.
func (p PerPort[T]) UnusedPorts(listeners []api.Listener) []string {
	var idle []string
	for _, o := range p.Ports {
		if !slices.ContainsFunc(listeners, o.isFor) {
			idle = append(idle, o.String())
		}
	}
	return idle
}

// parsePerPort reads a value for all ports, values by port, or both. parse reads one
// value.
func parsePerPort[T any](to *PerPort[T], s string, parse func(*T, string) bool) bool {
	all := false
	for item := range strings.SplitSeq(s, ",") {
		port, value, isPort := strings.Cut(strings.TrimSpace(item), "=")
		if !isPort {
			if all || !parse(&to.All, port) {
				return false
			}
			all = true
			continue
		}
		var o OfPort[T]
		n, protocol, named := strings.Cut(port, "/")
		ok := parseNumber(&o.Port, n, 1, 65535) && parse(&o.Value, value) &&
			(!named || parseEnum(&o.Protocol, protocol, api.ProtocolTCP, api.ProtocolUDP))
		twice := slices.ContainsFunc(to.Ports, func(other OfPort[T]) bool {
			return other.Port == o.Port && other.Protocol == o.Protocol
		})
		if !ok || twice {
			return false
		}
		to.Ports = append(to.Ports, o)
	}
	return true
}
