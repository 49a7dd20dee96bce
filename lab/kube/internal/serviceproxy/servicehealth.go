package serviceproxy

import (
	"fmt"
	"net/http"
	"net/netip"
	"strconv"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/types"
)

// healthPort serves the health check node port of a Service as upstream's ServiceHealthServer does
// (pkg/proxy/healthcheck/service_health.go). Upstream's is not used: it listens on 0.0.0.0, and
// would answer for every node of this machine.
type healthPort struct {
	name      types.NamespacedName
	number    uint16
	endpoints atomic.Int64
	proxy     *nodeHealth
	*httpPort
}

// syncHealthPorts makes the open health check node ports those that Services want, with their
// counts of local endpoints. It needs p.mu.
func (p *Proxy) syncHealthPorts() {
	wanted := p.serviceMap.HealthCheckNodePorts()
	counts := p.endpointsMap.LocalReadyEndpoints()
	for name, port := range p.healthPorts {
		if wanted[name] != port.number {
			port.close()
			delete(p.healthPorts, name)
		}
	}
	for name, number := range wanted {
		port := p.healthPorts[name]
		if port == nil {
			at := netip.AddrPortFrom(p.options.Address, number)
			var err error
			if port, err = listenHealthPort(at, name, p.health); err != nil {
				p.recordBindFailure(at, name.String(), err)
				continue
			}
			p.options.Log.Info("health check node port opened", "service", name.String(), "address", at.String())
			p.healthPorts[name] = port
		}
		port.endpoints.Store(int64(counts[name]))
	}
}

func listenHealthPort(at netip.AddrPort, name types.NamespacedName, proxy *nodeHealth) (*healthPort, error) {
	h := &healthPort{name: name, number: at.Port(), proxy: proxy}
	var err error
	h.httpPort, err = listenHTTP(at, h)
	return h, err
}

// ServeHTTP writes upstream's answer.
func (h *healthPort) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	count, proxyHealthy := h.endpoints.Load(), h.proxy.Health().Healthy
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.Header().Set("X-Load-Balancing-Endpoint-Weight", strconv.FormatInt(count, 10))
	if count == 0 || !proxyHealthy {
		w.WriteHeader(http.StatusServiceUnavailable)
	}
	fmt.Fprintf(w, `{
	"service": {
		"namespace": %q,
		"name": %q
	},
	"localEndpoints": %d,
	"serviceProxyHealthy": %v
}`, h.name.Namespace, h.name.Name, count, proxyHealthy)
}
