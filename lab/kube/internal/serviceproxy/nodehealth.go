package serviceproxy

import (
	"encoding/json"
	"net"
	"net/http"
	"net/netip"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/kubernetes/pkg/cluster/ports"
	"k8s.io/kubernetes/pkg/proxy/healthcheck"
)

// syncTimeout is for how long changes may wait before the proxy counts as unhealthy: twice
// kube-proxy's default syncPeriod.
const syncTimeout = time.Minute

// nodeHealth tells load balancers whether the node serves, on /healthz and /livez of kube-proxy's
// health port. Upstream's ProxyHealthServer decides that (pkg/proxy/healthcheck/proxy_health.go); it
// does not serve it, since it cannot be stopped.
type nodeHealth struct {
	*healthcheck.ProxyHealthServer
	port *httpPort // nil while it is not open
}

// nodeGetter is what upstream's ProxyHealthServer asks for the node.
type nodeGetter func() *v1.Node

// Node returns the node's own object, nil before it is known.
func (n nodeGetter) Node() *v1.Node { return n() }

func newNodeHealth(node nodeGetter) *nodeHealth {
	return &nodeHealth{ProxyHealthServer: healthcheck.NewProxyHealthServer("", syncTimeout, node)}
}

// listen opens the port, unless it is open.
func (n *nodeHealth) listen(at netip.AddrPort) (err error) {
	if n.port == nil {
		routes := http.NewServeMux()
		routes.HandleFunc("/healthz", n.serveHealthz)
		routes.HandleFunc("/livez", n.serveLivez)
		n.port, err = listenHTTP(at, routes)
	}
	return err
}

func (n *nodeHealth) close() {
	if n.port != nil {
		n.port.close()
	}
}

// httpPort is an open port that serves health.
type httpPort struct {
	server   *http.Server
	listener net.Listener
}

func listenHTTP(at netip.AddrPort, handler http.Handler) (*httpPort, error) {
	listener, err := net.Listen("tcp4", at.String())
	if err != nil {
		return nil, err
	}
	h := &httpPort{&http.Server{Handler: handler, ReadHeaderTimeout: 10 * time.Second}, listener}
	go func() { _ = h.server.Serve(listener) }()
	return h, nil
}

// close frees the port at once. It closes the listener too, since the server does not know that
// before Serve has begun.
func (h *httpPort) close() {
	_ = h.listener.Close()
	_ = h.server.Close()
}

// serveHealthz tells whether balancers should send new connections here. It fails while the node is
// being deleted or has the cluster autoscaler's taint, too, so that balancers drain it (KEP-3836).
func (n *nodeHealth) serveHealthz(w http.ResponseWriter, _ *http.Request) {
	health, eligible := n.Health(), n.NodeEligible()
	health.NodeEligible = &eligible
	writeProxyHealth(w, health, health.Healthy && eligible)
}

// serveLivez tells whether the proxy itself is well, whatever becomes of its node.
func (n *nodeHealth) serveLivez(w http.ResponseWriter, _ *http.Request) {
	health := n.Health()
	writeProxyHealth(w, health, health.Healthy)
}

// writeProxyHealth writes upstream's answer. If all is well, lastUpdated is the present time.
func writeProxyHealth(w http.ResponseWriter, health healthcheck.ProxyHealth, ok bool) {
	status := http.StatusServiceUnavailable
	if ok {
		status, health.LastUpdated = http.StatusOK, health.CurrentTime
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(status)
	body, _ := json.Marshal(health)
	_, _ = w.Write(body)
}

// syncNodeHealth opens the health port, unless it is open. It needs p.mu.
func (p *Proxy) syncNodeHealth() {
	at := netip.AddrPortFrom(p.options.Address, ports.ProxyHealthzPort)
	if err := p.health.listen(at); err != nil {
		p.recordBindFailure(at, "kube-proxy's health", err)
	}
}
