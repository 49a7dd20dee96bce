package serviceproxy

import (
	"cmp"
	"net/netip"
	"time"

	v1 "k8s.io/api/core/v1"
	upstream "k8s.io/kubernetes/pkg/proxy"

	"github.com/ccmlab/ccmlab/lab/kube/internal/podnet"
)

// portKey identifies a port that the node serves: TCP and UDP have the same numbers.
type portKey struct {
	address  netip.Addr
	protocol v1.Protocol
	number   uint16
}

// nodePort is an open port of the node: a Service's node port, or the port of a Service whose status has the
// node's address.
type nodePort struct {
	name upstream.ServicePortName
	forwarder
}

// forwarder serves one port of the node.
type forwarder interface {
	// setBackends changes what the port leads to.
	setBackends(backends)
	// close frees the port and ends its connections and flows. It returns once all of its
	// goroutines have ended.
	close()
}

// backends is what a node port leads to.
type backends struct {
	// endpoints are for new connections and flows.
	endpoints []netip.AddrPort
	// serving are the endpoints that an open flow may stay with; among them are terminating ones,
	// even when others are ready.
	serving map[netip.AddrPort]bool
	// affinity is the timeout of the Service's session affinity; 0 without one.
	affinity time.Duration
	// source, if valid, is the address that endpoints see. Otherwise they see the client's.
	source netip.Addr
}

// syncNodePorts makes the open node ports those that Services want. It needs p.mu.
func (p *Proxy) syncNodePorts() {
	wanted := p.desiredNodePorts()
	for key, port := range p.nodePorts {
		if name, still := wanted[key]; !still || name != port.name {
			p.options.Log.Info("node port closed", "service", port.name.String(), "address", key.address.String(),
				"nodePort", key.number)
			port.close()
			delete(p.nodePorts, key)
		}
	}
	for key, name := range wanted {
		p.syncNodePort(key, name)
	}
}

// desiredNodePorts returns the ports that the node serves, on its own address and on those attached to it. The API
// server gives a node port to one Service only; if two want one port nevertheless, the first by name is served,
// whichever came first. It needs p.mu.
func (p *Proxy) desiredNodePorts() map[portKey]upstream.ServicePortName {
	wanted := map[portKey]upstream.ServicePortName{}
	unserved := map[upstream.ServicePortName]bool{}
	for name, info := range p.serviceMap {
		numbers := p.portNumbers(info)
		if protocol := info.Protocol(); protocol != v1.ProtocolTCP && protocol != v1.ProtocolUDP && len(numbers) > 0 {
			unserved[name] = true
			if !p.unservedPorts[name] {
				p.options.Log.Info("node port is not served: TCP and UDP only", "service", name.String(),
					"protocol", string(protocol), "nodePort", numbers[0])
			}
			continue
		}
		for _, address := range append(p.attached[:len(p.attached):len(p.attached)], p.options.Address) {
			for _, number := range numbers {
				key := portKey{address, info.Protocol(), number}
				if other, taken := wanted[key]; !taken || cmp.Less(name.String(), other.String()) {
					wanted[key] = name
				}
			}
		}
	}
	p.unservedPorts = unserved
	return wanted
}

// portNumbers returns the ports that a Service's port has on the node: its node port, and the port itself if the
// Service's status has the node's address. kube-proxy serves what comes to an address of the status with ipMode
// VIP, and to the node come packets for its own alone.
func (p *Proxy) portNumbers(info upstream.ServicePort) (numbers []uint16) {
	if info.NodePort() != 0 {
		numbers = append(numbers, uint16(info.NodePort()))
	}
	for _, ip := range info.LoadBalancerVIPs() {
		if ip.String() == p.options.Address.String() {
			numbers = append(numbers, uint16(info.Port()))
		}
	}
	return numbers
}

// SetAttached sets the addresses that are attached to the node: what comes there is for it, as if it had come to
// its own address. Only node ports and ports of Services are served there.
func (p *Proxy) SetAttached(addresses []netip.Addr) {
	p.mu.Lock()
	p.attached = addresses
	p.mu.Unlock()
	p.requestSync()
}

// syncNodePort opens a node port, or changes the backends of an open one. It needs p.mu.
func (p *Proxy) syncNodePort(key portKey, name upstream.ServicePortName) {
	targets := p.desiredBackends(name)
	if port := p.nodePorts[key]; port != nil {
		port.setBackends(targets)
		return
	}
	at := netip.AddrPortFrom(key.address, key.number)
	port, err := p.listenNodePort(key.protocol, at, name, targets)
	if err != nil {
		p.recordBindFailure(at, name.String(), err)
		return
	}
	p.options.Log.Info(
		"node port opened", "service", name.String(), "address", at.String(), "protocol", string(key.protocol),
	)
	p.nodePorts[key] = &nodePort{name, port}
}

func (p *Proxy) listenNodePort(
	protocol v1.Protocol,
	at netip.AddrPort,
	name upstream.ServicePortName,
	targets backends,
) (forwarder, error) {
	log := p.options.Log.With("service", name.String())
	if protocol == v1.ProtocolUDP {
		return listenUDP(at, targets, p.limits, log)
	}
	return listenTCP(at, targets, log)
}

// recordBindFailure logs the error and has Sync retry. It needs p.mu.
func (p *Proxy) recordBindFailure(at netip.AddrPort, service string, err error) {
	p.bindFailures[at.String()] = true
	p.options.Log.Error("port cannot be served; trying again", "service", service,
		"address", at.String(), "every", retryInterval.String(), "error", err.Error())
}

// desiredBackends returns what a Service's port leads to. With externalTrafficPolicy Local that is
// the node's own endpoints, which see the client's address; with Cluster endpoints see the node's
// address, as after kube-proxy's masquerading. It needs p.mu.
func (p *Proxy) desiredBackends(name upstream.ServicePortName) backends {
	info := p.serviceMap[name]
	cluster, local, _, _ := upstream.CategorizeEndpoints(
		p.endpointsMap[name], info, p.options.NodeName, p.options.Topology(),
	)
	usable, result := cluster, backends{source: p.options.Address, serving: map[netip.AddrPort]bool{}}
	if info.ExternalPolicyLocal() {
		usable, result.source = local, netip.Addr{}
	}
	if info.SessionAffinityType() == v1.ServiceAffinityClientIP {
		result.affinity = time.Duration(info.StickyMaxAgeSeconds()) * time.Second
	}
	for _, endpoint := range usable {
		if at, ok := p.servingAddress(name, endpoint); ok {
			result.endpoints = append(result.endpoints, at)
		}
	}
	// Traffic policy and topology are for new flows only: open ones may stay with any endpoint
	// (pkg/proxy/conntrack, CleanStaleEntries).
	for _, endpoint := range p.endpointsMap[name] {
		if at, ok := p.servingAddress(name, endpoint); ok && endpoint.IsServing() {
			result.serving[at] = true
		}
	}
	return result
}

// servingAddress returns where an endpoint is served.
func (p *Proxy) servingAddress(name upstream.ServicePortName, endpoint upstream.Endpoint) (netip.AddrPort, bool) {
	at, err := netip.ParseAddrPort(endpoint.String())
	if err != nil {
		p.options.Log.Error(
			"endpoint ignored", "service", name.String(), "endpoint", endpoint.String(), "error", err.Error(),
		)
		return netip.AddrPort{}, false
	}
	return podnet.ServedAt(at), true
}
