// Package serviceproxy is the kube-proxy of a hollow node: it brings connections to the node's
// ports to pods where there is no netfilter, by accepting and forwarding them. Begin with New and
// Proxy.Run. It knows pods by their EndpointSlices only, not by the runtime.
//
// It serves what an ordinary user can serve on a loopback address: node ports, TCP and UDP, health
// check node ports, and kube-proxy's own health, on the node's own address. It does not serve cluster
// IPs, external IPs and load balancer addresses. Upstream's k8s.io/kubernetes/pkg/proxy decides which
// endpoints a port leads to, and whether the node is healthy.
package serviceproxy

import (
	"context"
	"log/slog"
	"net/netip"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	upstream "k8s.io/kubernetes/pkg/proxy"
	"k8s.io/kubernetes/pkg/proxy/apis"
	"k8s.io/kubernetes/pkg/proxy/config"
)

// retryInterval is the time between attempts to bind a port.
const retryInterval = 3 * time.Second

// Options say for which node the proxy works.
type Options struct {
	NodeName string
	// Address is the node's. Everything is served on it and nowhere else.
	Address netip.Addr
	// Topology returns the node's current labels, for traffic distribution by zone.
	Topology func() map[string]string
	// Node returns the node's own object, nil before it is known.
	Node func() *v1.Node
	Log  *slog.Logger
}

// Proxy forwards node ports. It implements the handlers of
// k8s.io/kubernetes/pkg/proxy/config.
type Proxy struct {
	options   Options
	services  *upstream.ServiceChangeTracker
	endpoints *upstream.EndpointsChangeTracker
	// syncRequests holds at most one request: the sync that is due covers further changes.
	syncRequests chan struct{}
	limits       udpLimits
	health       *nodeHealth

	// mu guards all below.
	mu             sync.Mutex
	servicesSynced bool
	slicesSynced   bool
	closed         bool
	attached       []netip.Addr
	serviceMap     upstream.ServicePortMap
	endpointsMap   upstream.EndpointsMap
	nodePorts      map[portKey]*nodePort
	healthPorts    map[types.NamespacedName]*healthPort
	unservedPorts  map[upstream.ServicePortName]bool
	bindFailures   map[string]bool
}

// New returns a proxy that knows no Services yet.
func New(options Options) *Proxy {
	return &Proxy{
		options:       options,
		services:      upstream.NewServiceChangeTracker(v1.IPv4Protocol, nil, nil),
		endpoints:     upstream.NewEndpointsChangeTracker(v1.IPv4Protocol, options.NodeName, nil, nil),
		syncRequests:  make(chan struct{}, 1),
		limits:        conntrackLimits,
		health:        newNodeHealth(options.Node),
		serviceMap:    upstream.ServicePortMap{},
		endpointsMap:  upstream.EndpointsMap{},
		nodePorts:     map[portKey]*nodePort{},
		healthPorts:   map[types.NamespacedName]*healthPort{},
		unservedPorts: map[upstream.ServicePortName]bool{},
		bindFailures:  map[string]bool{},
	}
}

// Sync applies changes as they come, and retries failed binds, until ctx is done. The node's health is
// served from the first, as kube-proxy does.
func (p *Proxy) Sync(ctx context.Context) {
	p.syncPorts()
	retry := time.NewTicker(retryInterval)
	defer retry.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-p.syncRequests:
			p.syncPorts()
		case <-retry.C:
			if p.shouldRetry() {
				p.syncPorts()
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
	p.health.close()
	for key, port := range p.nodePorts {
		port.close()
		delete(p.nodePorts, key)
	}
	for name, port := range p.healthPorts {
		port.close()
		delete(p.healthPorts, name)
	}
}

// syncPorts opens, changes and closes listeners so that they match the trackers. It serves no more than
// the node's health until Services and EndpointSlices have both been listed once: half of the state
// would close connections.
func (p *Proxy) syncPorts() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return
	}
	p.bindFailures = map[string]bool{}
	p.syncNodeHealth()
	if !p.servicesSynced || !p.slicesSynced {
		return
	}
	p.serviceMap.Update(p.services)
	p.endpointsMap.Update(p.endpoints)
	p.syncNodePorts()
	p.syncHealthPorts()
	p.health.Updated(v1.IPv4Protocol)
}

// requestSync has Sync call syncPorts soon. If it does not within syncTimeout, the proxy is unhealthy.
func (p *Proxy) requestSync() {
	p.health.QueuedUpdate(v1.IPv4Protocol)
	select {
	case p.syncRequests <- struct{}{}:
	default:
	}
}

// TopologyChanged is called when the node's labels have changed: traffic distribution by zone may
// then choose other endpoints.
func (p *Proxy) TopologyChanged() { p.requestSync() }

// OnServiceAdd handles a new Service. Upstream's config.ServiceConfig calls this and the other
// OnService handlers, its EndpointSliceConfig the OnEndpointSlice handlers.
func (p *Proxy) OnServiceAdd(service *v1.Service) { p.OnServiceUpdate(nil, service) }

// OnServiceUpdate handles a changed Service.
func (p *Proxy) OnServiceUpdate(old, service *v1.Service) {
	if p.services.Update(old, service) {
		p.requestSync()
	}
}

// OnServiceDelete handles a deleted Service.
func (p *Proxy) OnServiceDelete(service *v1.Service) { p.OnServiceUpdate(service, nil) }

// OnServiceSynced is called once all Services have been listed.
func (p *Proxy) OnServiceSynced() {
	p.mu.Lock()
	p.servicesSynced = true
	p.mu.Unlock()
	p.requestSync()
}

// OnEndpointSliceAdd handles a new slice.
func (p *Proxy) OnEndpointSliceAdd(slice *discovery.EndpointSlice) {
	if p.endpoints.EndpointSliceUpdate(slice, false) {
		p.requestSync()
	}
}

// OnEndpointSliceUpdate handles a changed slice.
func (p *Proxy) OnEndpointSliceUpdate(_, slice *discovery.EndpointSlice) {
	p.OnEndpointSliceAdd(slice)
}

// OnEndpointSliceDelete handles a deleted slice.
func (p *Proxy) OnEndpointSliceDelete(slice *discovery.EndpointSlice) {
	if p.endpoints.EndpointSliceUpdate(slice, true) {
		p.requestSync()
	}
}

// OnEndpointSlicesSynced is called once all slices have been listed.
func (p *Proxy) OnEndpointSlicesSynced() {
	p.mu.Lock()
	p.slicesSynced = true
	p.mu.Unlock()
	p.requestSync()
}

// Run watches Services and EndpointSlices, and forwards, until ctx is done. The selectors are
// kube-proxy's (cmd/kube-proxy/app/server.go, ProxyServer.Run): they leave out headless Services
// and those of another proxy.
func (p *Proxy) Run(ctx context.Context, client kubernetes.Interface) {
	services := informers.NewSharedInformerFactoryWithOptions(client, 0,
		informers.WithTransform(withoutManagedFields),
		informers.WithTweakListOptions(func(options *metav1.ListOptions) {
			options.LabelSelector = "!" + apis.LabelServiceProxyName
			options.FieldSelector = fields.OneTermNotEqualSelector("spec.clusterIP", v1.ClusterIPNone).String()
		}))
	slices := informers.NewSharedInformerFactoryWithOptions(client, 0,
		informers.WithTransform(withoutManagedFields),
		informers.WithTweakListOptions(func(options *metav1.ListOptions) {
			options.LabelSelector = "!" + v1.IsHeadlessService
		}))

	serviceConfig := config.NewServiceConfig(ctx, services.Core().V1().Services(), 0)
	serviceConfig.RegisterEventHandler(p)
	sliceConfig := config.NewEndpointSliceConfig(ctx, slices.Discovery().V1().EndpointSlices(), 0)
	sliceConfig.RegisterEventHandler(p)
	go serviceConfig.Run(ctx.Done())
	go sliceConfig.Run(ctx.Done())
	services.Start(ctx.Done())
	slices.Start(ctx.Done())
	p.Sync(ctx)
}

// withoutManagedFields is an informer's transform that saves memory.
func withoutManagedFields(object any) (any, error) {
	if accessor, err := meta.Accessor(object); err == nil {
		accessor.SetManagedFields(nil)
	}
	return object, nil
}
