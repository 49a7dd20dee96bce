package cloud

import (
	"fmt"
	"slices"
)

// LoadBalancerKind says how a balancer forwards.
type LoadBalancerKind string

// The kinds of balancers. A ProxyBalancer accepts connections and makes others to the targets. A
// NetworkBalancer passes packets on as they are; the targets take them for themselves and answer
// the clients directly.
const (
	ProxyBalancer   LoadBalancerKind = "proxy"
	NetworkBalancer LoadBalancerKind = "network"
)

// algorithmsOf gives the algorithms that balancers of a kind have, the default first.
func algorithmsOf(kind LoadBalancerKind) []Algorithm {
	if kind == NetworkBalancer {
		return []Algorithm{FlowHash, SourceHash}
	}
	return []Algorithm{RoundRobin, LeastConnections, SourceHash}
}

// withKind gives the options with another kind. An algorithm that this one does not have becomes
// its default.
func (o balancerOptions) withKind(kind LoadBalancerKind) balancerOptions {
	o.kind = kind
	if algorithms := algorithmsOf(kind); !slices.Contains(algorithms, o.algorithm) {
		o.algorithm = algorithms[0]
	}
	return o
}

// checkKind refuses kinds that there are not, or that this cloud cannot have.
func (c *Cloud) checkKind(kind LoadBalancerKind) error {
	if kind != ProxyBalancer && kind != NetworkBalancer {
		return refuse(InvalidRequest, "no load balancer kind %q: choose proxy or network", kind).
			withField("kind", "is unknown")
	}
	if err := c.cfg.DataPlane.CanForward(kind); err != nil {
		return refuse(InvalidRequest, "this cloud has no %s load balancers: %s", kind, err).
			withField("kind", "is not available in this cloud")
	}
	return nil
}

// checkFeatures refuses for a network balancer what only a proxy can do: it reads and changes
// nothing of what passes.
func (o balancerOptions) checkFeatures(listeners []Listener, hasIPv6 bool) error {
	if o.kind != NetworkBalancer {
		return nil
	}
	var errs []error
	no := func(has bool, field, format string, args ...any) {
		if has {
			errs = append(errs, refuse(InvalidRequest, "a network load balancer "+format, args...).
				withField(field, "is for proxies only"))
		}
	}
	no(hasIPv6, "ipFamilies", "has no IPv6 address, as its targets have none: leave out ipv6")
	no(o.idle > 0, "idleTimeoutSeconds", "closes no idle connections: leave the idle timeout 0")
	for i, l := range listeners {
		field := fmt.Sprintf("listeners.%d.", i)
		no(l.Protocol == HTTP, field+"protocol", "passes packets on: make port %d one of tcp", l.Port)
		no(l.TargetPort != l.Port, field+"targetPort",
			"changes no ports: make the target port of port %d the same", l.Port)
		no(l.ProxyProtocol != ProxyNone, field+"proxyProtocol",
			"adds no PROXY protocol, as targets see the client's address: leave it out of port %d", l.Port)
		no(l.ConnectionLimit > 0, field+"connectionLimit",
			"counts no open connections: leave out the limit of port %d", l.Port)
	}
	return joinRefusals(errs...)
}
