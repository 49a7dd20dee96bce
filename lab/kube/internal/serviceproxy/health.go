package serviceproxy

import (
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// healthPort answers like upstream's ServiceHealthServer
// (pkg/proxy/healthcheck/service_health.go), which is not used because it listens
// on 0.0.0.0 and would answer for every node of this machine.
type healthPort struct {
	name      types.NamespacedName
	number    uint16
	endpoints atomic.Int64
	server    *http.Server
	listener  net.Listener
}

// syncHealthPorts needs p.mu.
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
			if port, err = listenHealthPort(at, name); err != nil {
				p.bindFailed(at, name.String(), err)
				continue
			}
			p.options.Log.Info("health check node port opened", "service", name.String(), "address", at.String())
			p.healthPorts[name] = port
		}
		port.endpoints.Store(int64(counts[name]))
	}
}

func listenHealthPort(at netip.AddrPort, name types.NamespacedName) (*healthPort, error) {
	listener, err := net.Listen("tcp4", at.String())
	if err != nil {
		return nil, err
	}
	h := &healthPort{name: name, number: at.Port(), listener: listener}
	h.server = &http.Server{Handler: h, ReadHeaderTimeout: 10 * time.Second}
	go func() { _ = h.server.Serve(listener) }()
	return h, nil
}

// close frees the port at once, even if Serve has not begun and the server does
// not know its listener yet.
func (h *healthPort) close() {
	_ = h.listener.Close()
	_ = h.server.Close()
}

// ServeHTTP writes upstream's answer. The proxy is healthy whenever it answers:
// it has no rules that could be out of date.
func (h *healthPort) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	count := h.endpoints.Load()
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.Header().Set("X-Load-Balancing-Endpoint-Weight", strconv.FormatInt(count, 10))
	if count == 0 {
		w.WriteHeader(http.StatusServiceUnavailable)
	}
	fmt.Fprintf(w, `{
	"service": {
		"namespace": %q,
		"name": %q
	},
	"localEndpoints": %d,
	"serviceProxyHealthy": true
}`, h.name.Namespace, h.name.Name, count)
}
