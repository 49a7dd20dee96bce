package cloud

import (
	"fmt"
	"slices"

	"github.com/ccmlab/ccmlab/fakecloud/api"
)

// algorithmsOf gives the algorithms that balancers of a kind have, the default first.
func algorithmsOf(kind LoadBalancerKind) []Algorithm {
	if kind == api.KindNetwork {
		return []Algorithm{api.AlgorithmFlowHash, api.AlgorithmSourceHash}
	}
	return []Algorithm{api.AlgorithmRoundRobin, api.AlgorithmLeastConnections, api.AlgorithmSourceHash}
}

// setKind gives a balancer another kind. An algorithm that this one does not have becomes its default.
func (lb *LoadBalancer) setKind(kind LoadBalancerKind) {
	lb.Kind = kind
	if algorithms := algorithmsOf(kind); !slices.Contains(algorithms, lb.Algorithm) {
		lb.Algorithm = algorithms[0]
	}
}

// checkKind refuses kinds that there are not, or that this cloud cannot have.
func (c *Cloud) checkKind(kind LoadBalancerKind) error {
	if kind != api.KindProxy && kind != api.KindNetwork {
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
func (lb *LoadBalancer) checkFeatures() error {
	if lb.Kind != api.KindNetwork {
		return nil
	}
	var errs []error
	no := func(has bool, field, format string, args ...any) {
		if has {
			errs = append(errs, refuse(InvalidRequest, "a network load balancer "+format, args...).
				withField(field, "is for proxies only"))
		}
	}
	no(slices.Contains(lb.IPFamilies, api.IPv6), "ipFamilies", "has no IPv6 address, as its targets have none: leave out ipv6")
	no(lb.IdleTimeoutSeconds > 0, "idleTimeoutSeconds", "closes no idle connections: leave the idle timeout 0")
	for i, l := range lb.Listeners {
		field := fmt.Sprintf("listeners.%d.", i)
		no(l.Protocol != l.Transport(), field+"protocol", "passes packets on: make port %d one of tcp", l.Port)
		no(l.TargetPort != l.Port, field+"targetPort",
			"changes no ports: make the target port of port %d the same", l.Port)
		no(l.ProxyProtocol != "", field+"proxyProtocol",
			"adds no PROXY protocol, as targets see the client's address: leave it out of port %d", l.Port)
		no(l.IdleTimeoutSeconds > 0, field+"idleTimeoutSeconds",
			"closes no idle connections: leave the idle timeout of port %d 0", l.Port)
		no(l.ConnectionLimit > 0, field+"connectionLimit",
			"counts no open connections: leave out the limit of port %d", l.Port)
	}
	return joinRefusals(errs...)
}
