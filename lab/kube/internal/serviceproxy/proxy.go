// Package serviceproxy answers how connections to a node's ports reach pods
// where there is no netfilter: by accepting and forwarding them.
//
// It serves what can be served on a loopback address as an ordinary user: node
// ports, TCP and UDP, and health check node ports, on the node's own address.
// Cluster IPs, external IPs and load balancer addresses are not served. Which
// endpoints a port leads to is decided by upstream's
// k8s.io/kubernetes/pkg/proxy.
package serviceproxy

import (
	"context"
	"log/slog"
	"net/netip"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"
	upstream "k8s.io/kubernetes/pkg/proxy"
)

// retryInterval is how long after a failed bind it is tried again.
const retryInterval = 3 * time.Second

// Options say for which node the proxy works.
type Options struct {
	NodeName string
	// Address is the node's: everything is served here and nowhere else.
	Address netip.Addr
	// Topology returns the node's labels now, for traffic distribution by zone.
	Topology func() map[string]string
	// Realise returns where an endpoint's address is really served. Nil means
	// podnet.Realised.
	Realise func(netip.Addr) netip.Addr
	Log     *slog.Logger
}

// Proxy forwards node ports. It implements the handlers of
// k8s.io/kubernetes/pkg/proxy/config.
type Proxy struct {
	options   Options
	services  *upstream.ServiceChangeTracker
	endpoints *upstream.EndpointsChangeTracker
	// changed has room for one: a change that finds it full is covered by the
	// sync that is due.
	changed chan struct{}
	limits  udpLimits

	mu             sync.Mutex
	servicesSynced bool
	slicesSynced   bool
	closed         bool
	serviceMap     upstream.ServicePortMap
	endpointsMap   upstream.EndpointsMap
	nodePorts      map[portKey]*nodePort
	healthPorts    map[types.NamespacedName]*healthPort
	unserved       map[upstream.ServicePortName]bool
	bindFailures   map[string]bool
}

// New returns a proxy that knows of no Services yet.
func New(options Options) *Proxy {
	options = options.withDefaults()
	return &Proxy{
		options:      options,
		services:     upstream.NewServiceChangeTracker(v1.IPv4Protocol, nil, nil),
		endpoints:    upstream.NewEndpointsChangeTracker(v1.IPv4Protocol, options.NodeName, nil, nil),
		changed:      make(chan struct{}, 1),
		limits:       conntrackLimits,
		serviceMap:   upstream.ServicePortMap{},
		endpointsMap: upstream.EndpointsMap{},
		nodePorts:    map[portKey]*nodePort{},
		healthPorts:  map[types.NamespacedName]*healthPort{},
		unserved:     map[upstream.ServicePortName]bool{},
		bindFailures: map[string]bool{},
	}
}

// Sync applies changes as they come, and tries again to bind what could not be
// bound, until ctx is done.
func (p *Proxy) Sync(ctx context.Context) {
	retry := time.NewTicker(retryInterval)
	defer retry.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-p.changed:
			p.sync()
		case <-retry.C:
			if p.shouldRetry() {
				p.sync()
			}
		}
	}
}

func (p *Proxy) shouldRetry() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.bindFailures) > 0
}

// Close closes all listeners and connections.
func (p *Proxy) Close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	for key, port := range p.nodePorts {
		port.close()
		delete(p.nodePorts, key)
	}
	for name, port := range p.healthPorts {
		port.close()
		delete(p.healthPorts, name)
	}
}

// sync makes listeners match what the trackers know. Until both kinds of objects
// have been listed once it does nothing: half the truth would close connections.
func (p *Proxy) sync() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed || !p.servicesSynced || !p.slicesSynced {
		return
	}
	p.serviceMap.Update(p.services)
	p.endpointsMap.Update(p.endpoints)
	p.bindFailures = map[string]bool{}
	p.syncNodePorts()
	p.syncHealthPorts()
}

func (p *Proxy) poke() {
	select {
	case p.changed <- struct{}{}:
	default:
	}
}

// TopologyChanged says that the node's labels are others now: with traffic
// distribution by zone, other endpoints may be due.
func (p *Proxy) TopologyChanged() { p.poke() }

// OnServiceAdd takes in a new Service; upstream's informer plumbing calls it,
// and those below.
func (p *Proxy) OnServiceAdd(service *v1.Service) { p.OnServiceUpdate(nil, service) }

// OnServiceUpdate takes in a changed Service.
func (p *Proxy) OnServiceUpdate(old, service *v1.Service) {
	if p.services.Update(old, service) {
		p.poke()
	}
}

// OnServiceDelete takes in the end of a Service.
func (p *Proxy) OnServiceDelete(service *v1.Service) { p.OnServiceUpdate(service, nil) }

// OnServiceSynced says that all Services are known.
func (p *Proxy) OnServiceSynced() {
	p.mu.Lock()
	p.servicesSynced = true
	p.mu.Unlock()
	p.poke()
}

// OnEndpointSliceAdd takes in a new slice.
func (p *Proxy) OnEndpointSliceAdd(slice *discovery.EndpointSlice) {
	if p.endpoints.EndpointSliceUpdate(slice, false) {
		p.poke()
	}
}

// OnEndpointSliceUpdate takes in a changed slice.
func (p *Proxy) OnEndpointSliceUpdate(_, slice *discovery.EndpointSlice) {
	p.OnEndpointSliceAdd(slice)
}

// OnEndpointSliceDelete takes in the end of a slice.
func (p *Proxy) OnEndpointSliceDelete(slice *discovery.EndpointSlice) {
	if p.endpoints.EndpointSliceUpdate(slice, true) {
		p.poke()
	}
}

// OnEndpointSlicesSynced says that all slices are known.
func (p *Proxy) OnEndpointSlicesSynced() {
	p.mu.Lock()
	p.slicesSynced = true
	p.mu.Unlock()
	p.poke()
}
