package serviceproxy

import (
	"cmp"
	"net/netip"
	"time"

	v1 "k8s.io/api/core/v1"
	upstream "k8s.io/kubernetes/pkg/proxy"
)

// portKey says which node port: a number is one of TCP's and another of UDP's.
type portKey struct {
	protocol v1.Protocol
	number   uint16
}

// nodePort is one that is open.
type nodePort struct {
	name upstream.ServicePortName
	forwarder
}

// forwarder serves one node port.
type forwarder interface {
	// set changes what the port leads to.
	set(backends)
	// close frees the port and ends what came through it. It returns when nothing
	// of it runs any more.
	close()
}

// backends is what a node port leads to.
type backends struct {
	// endpoints are those for new connections and flows.
	endpoints []netip.AddrPort
	// serving are all that a flow may go on with: a terminating one, say, though
	// there are ready ones by now.
	serving map[netip.AddrPort]bool
	// affinity is how long a client stays with an endpoint; 0 is not at all.
	affinity time.Duration
	// source, if set, is the address that endpoints see. Otherwise they see the
	// client's own.
	source netip.Addr
}

// syncNodePorts needs p.mu.
func (p *Proxy) syncNodePorts() {
	wanted := p.wantedNodePorts()
	for key, port := range p.nodePorts {
		if name, still := wanted[key]; !still || name != port.name {
			p.options.Log.Info("node port closed", "service", port.name.String(), "nodePort", key.number)
			port.close()
			delete(p.nodePorts, key)
		}
	}
	for key, name := range wanted {
		p.syncNodePort(key, name)
	}
}

// wantedNodePorts needs p.mu. The API server gives a port to one Service only;
// should two have it all the same, it is the first by name, whatever comes when.
func (p *Proxy) wantedNodePorts() map[portKey]upstream.ServicePortName {
	wanted := map[portKey]upstream.ServicePortName{}
	unserved := map[upstream.ServicePortName]bool{}
	for name, info := range p.serviceMap {
		key := portKey{info.Protocol(), uint16(info.NodePort())}
		other, taken := wanted[key]
		switch {
		case info.NodePort() == 0:
		case key.protocol != v1.ProtocolTCP && key.protocol != v1.ProtocolUDP:
			unserved[name] = true
			if !p.unserved[name] {
				p.options.Log.Info("node port is not served: TCP and UDP only", "service", name.String(),
					"protocol", string(key.protocol), "nodePort", key.number)
			}
		case !taken || cmp.Less(name.String(), other.String()):
			wanted[key] = name
		}
	}
	p.unserved = unserved
	return wanted
}

// syncNodePort needs p.mu.
func (p *Proxy) syncNodePort(key portKey, name upstream.ServicePortName) {
	targets := p.backendsOf(name)
	if port := p.nodePorts[key]; port != nil {
		port.set(targets)
		return
	}
	at := netip.AddrPortFrom(p.options.Address, key.number)
	port, err := p.listen(key.protocol, at, name, targets)
	if err != nil {
		p.bindFailed(at, name.String(), err)
		return
	}
	p.options.Log.Info("node port opened", "service", name.String(), "address", at.String(), "protocol", string(key.protocol))
	p.nodePorts[key] = &nodePort{name, port}
}

func (p *Proxy) listen(protocol v1.Protocol, at netip.AddrPort, name upstream.ServicePortName, targets backends) (forwarder, error) {
	log := p.options.Log.With("service", name.String())
	if protocol == v1.ProtocolUDP {
		return listenUDP(at, targets, p.limits, log)
	}
	return listenTCP(at, targets, log)
}

// bindFailed needs p.mu.
func (p *Proxy) bindFailed(at netip.AddrPort, service string, err error) {
	p.bindFailures[at.String()] = true
	p.options.Log.Error("port cannot be served; trying again", "service", service,
		"address", at.String(), "every", retryInterval.String(), "error", err.Error())
}

// backendsOf needs p.mu. With externalTrafficPolicy Local only the node's own
// endpoints count, and they see the client's address; with Cluster they see the
// node's, as after kube-proxy's masquerading.
func (p *Proxy) backendsOf(name upstream.ServicePortName) backends {
	info := p.serviceMap[name]
	cluster, local, _, _ := upstream.CategorizeEndpoints(p.endpointsMap[name], info, p.options.NodeName, p.options.Topology())
	usable, result := cluster, backends{source: p.options.Address, serving: map[netip.AddrPort]bool{}}
	if info.ExternalPolicyLocal() {
		usable, result.source = local, netip.Addr{}
	}
	if info.SessionAffinityType() == v1.ServiceAffinityClientIP {
		result.affinity = time.Duration(info.StickyMaxAgeSeconds()) * time.Second
	}
	for _, endpoint := range usable {
		if at, ok := p.realised(name, endpoint); ok {
			result.endpoints = append(result.endpoints, at)
		}
	}
	// Of all, whatever the traffic policy and the topology: those are for what is
	// new (pkg/proxy/conntrack, CleanStaleEntries).
	for _, endpoint := range p.endpointsMap[name] {
		if at, ok := p.realised(name, endpoint); ok && endpoint.IsServing() {
			result.serving[at] = true
		}
	}
	return result
}

// realised is where an endpoint is really served.
func (p *Proxy) realised(name upstream.ServicePortName, endpoint upstream.Endpoint) (netip.AddrPort, bool) {
	address, err := netip.ParseAddr(endpoint.IP())
	if err != nil {
		p.options.Log.Error("endpoint ignored", "service", name.String(), "endpoint", endpoint.String(), "error", err.Error())
		return netip.AddrPort{}, false
	}
	return netip.AddrPortFrom(p.options.Realise(address), uint16(endpoint.Port())), true
}
