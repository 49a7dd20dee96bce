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

// OfPort is the value of one port: of both protocols, unless one is named.
type OfPort[T any] struct {
	Port     int
	Protocol api.Protocol
	Value    T
}

func (o OfPort[T]) is(l api.Listener) bool {
	return o.Port == l.Port && (o.Protocol == "" || o.Protocol == l.Protocol)
}

func (o OfPort[T]) String() string {
	if o.Protocol == "" {
		return fmt.Sprint(o.Port)
	}
	return fmt.Sprintf("%d/%s", o.Port, o.Protocol)
}

// For is the listener's value. What names the protocol too comes first.
func (p PerPort[T]) For(l api.Listener) T {
	value := p.All
	for _, o := range p.Ports {
		if o.is(l) {
			value = o.Value
			if o.Protocol != "" {
				break
			}
		}
	}
	return value
}

// Idle are the ports that none of the listeners has.
func (p PerPort[T]) Idle(listeners []api.Listener) []string {
	var idle []string
	for _, o := range p.Ports {
		if !slices.ContainsFunc(listeners, o.is) {
			idle = append(idle, o.String())
		}
	}
	return idle
}

func perPort[T any](to *PerPort[T], s string, parse func(*T, string) bool) bool {
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
		ok := number(&o.Port, n, 1, 65535) && parse(&o.Value, value) && (!named || oneOf(&o.Protocol, protocol, api.ProtocolTCP, api.ProtocolUDP))
		if !ok || slices.ContainsFunc(to.Ports, func(has OfPort[T]) bool { return has.Port == o.Port && has.Protocol == o.Protocol }) {
			return false
		}
		to.Ports = append(to.Ports, o)
	}
	return true
}
