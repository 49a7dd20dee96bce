package serviceproxy

// This file answers which endpoint a connection to a node port goes to.

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	upstream "k8s.io/kubernetes/pkg/proxy"
)

// dialTimeout is generous for loopback, where a missing endpoint refuses at once.
const dialTimeout = 2 * time.Second

// backends is what a node port leads to.
type backends struct {
	endpoints []netip.AddrPort
	// affinity is how long a client stays with an endpoint; 0 is not at all.
	affinity time.Duration
	// source, if set, is the address that endpoints see. Otherwise they see the
	// client's own.
	source netip.Addr
}

// syncNodePorts needs p.mu.
func (p *Proxy) syncNodePorts() {
	wanted := map[uint16]upstream.ServicePortName{}
	unserved := map[upstream.ServicePortName]bool{}
	for name, info := range p.serviceMap {
		switch {
		case info.NodePort() == 0:
		case info.Protocol() != v1.ProtocolTCP:
			unserved[name] = true
			if !p.unserved[name] {
				p.options.Log.Info("node port is not served: TCP only", "service", name.String(),
					"protocol", string(info.Protocol()), "nodePort", info.NodePort())
			}
		default:
			wanted[uint16(info.NodePort())] = name
		}
	}
	p.unserved = unserved

	for number, port := range p.nodePorts {
		if name, still := wanted[number]; !still || name != port.name {
			p.options.Log.Info("node port closed", "service", port.name.String(), "nodePort", number)
			port.close()
			delete(p.nodePorts, number)
		}
	}
	for number, name := range wanted {
		p.syncNodePort(number, name)
	}
}

// syncNodePort needs p.mu.
func (p *Proxy) syncNodePort(number uint16, name upstream.ServicePortName) {
	targets := p.backendsOf(name)
	if port := p.nodePorts[number]; port != nil {
		port.set(targets)
		return
	}
	at := netip.AddrPortFrom(p.options.Address, number)
	port, err := listenNodePort(at, name, targets, p.options.Log)
	if err != nil {
		p.bindFailed(at, name.String(), err)
		return
	}
	p.options.Log.Info("node port opened", "service", name.String(), "address", at.String())
	p.nodePorts[number] = port
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
	usable, result := cluster, backends{source: p.options.Address}
	if info.ExternalPolicyLocal() {
		usable, result.source = local, netip.Addr{}
	}
	if info.SessionAffinityType() == v1.ServiceAffinityClientIP {
		result.affinity = time.Duration(info.StickyMaxAgeSeconds()) * time.Second
	}
	for _, endpoint := range usable {
		address, err := netip.ParseAddr(endpoint.IP())
		if err != nil {
			p.options.Log.Error("endpoint ignored", "service", name.String(), "endpoint", endpoint.String(), "error", err.Error())
			continue
		}
		result.endpoints = append(result.endpoints, netip.AddrPortFrom(p.options.Realise(address), uint16(endpoint.Port())))
	}
	return result
}

// nodePort accepts on one node port.
type nodePort struct {
	name     upstream.ServicePortName
	listener *net.TCPListener
	log      *slog.Logger
	done     context.Context
	stop     context.CancelFunc

	mu       sync.Mutex
	backends backends
	turn     int
	sticky   map[netip.Addr]stickiness
}

type stickiness struct {
	endpoint netip.AddrPort
	lastUsed time.Time
}

func listenNodePort(at netip.AddrPort, name upstream.ServicePortName, targets backends, log *slog.Logger) (*nodePort, error) {
	listener, err := net.ListenTCP("tcp4", net.TCPAddrFromAddrPort(at))
	if err != nil {
		return nil, err
	}
	n := &nodePort{
		name:     name,
		listener: listener,
		log:      log.With("service", name.String()),
		backends: targets,
		sticky:   map[netip.Addr]stickiness{},
	}
	n.done, n.stop = context.WithCancel(context.Background())
	go n.accept()
	return n, nil
}

// close ends the listener and the connections that came through it: the Service
// has gone, or the node.
func (n *nodePort) close() {
	n.stop()
	_ = n.listener.Close()
}

// set changes the endpoints for new connections. Open ones keep theirs, as
// connections that netfilter tracks do.
func (n *nodePort) set(targets backends) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.backends = targets
	for client, s := range n.sticky {
		if targets.affinity == 0 || time.Since(s.lastUsed) > targets.affinity {
			delete(n.sticky, client)
		}
	}
}

func (n *nodePort) accept() {
	for {
		connection, err := n.listener.AcceptTCP()
		if n.done.Err() != nil {
			return
		}
		if err != nil { // out of file descriptors, most likely: let some close
			n.log.Error("connection not accepted", "error", err.Error())
			select {
			case <-n.done.Done():
				return
			case <-time.After(100 * time.Millisecond):
			}
			continue
		}
		go n.forward(connection)
	}
}

func (n *nodePort) forward(client *net.TCPConn) {
	server, err := n.connect(clientAddress(client))
	if err != nil {
		n.log.Debug("connection reset", "client", client.RemoteAddr().String(), "error", err.Error())
		_ = client.SetLinger(0) // closing then sends RST, which is what no endpoint looks like
		_ = client.Close()
		return
	}
	splice(n.done, client, server)
}

// connect tries each endpoint once, in the order of whose turn it is.
func (n *nodePort) connect(client netip.Addr) (*net.TCPConn, error) {
	candidates, dialer := n.candidates(client)
	if len(candidates) == 0 {
		return nil, fmt.Errorf("no usable endpoints")
	}
	var err error
	for _, endpoint := range candidates {
		var connection net.Conn
		if connection, err = dialer.DialContext(n.done, "tcp4", endpoint.String()); err == nil {
			n.remember(client, endpoint)
			return connection.(*net.TCPConn), nil
		}
	}
	return nil, err
}

func (n *nodePort) candidates(client netip.Addr) ([]netip.AddrPort, net.Dialer) {
	n.mu.Lock()
	defer n.mu.Unlock()
	count, dialer := len(n.backends.endpoints), dialFrom(n.backends.source, client)
	if count == 0 {
		return nil, dialer
	}
	first := n.turn % count
	if s, known := n.sticky[client]; known && time.Since(s.lastUsed) <= n.backends.affinity {
		for i, endpoint := range n.backends.endpoints {
			if endpoint == s.endpoint {
				first = i
			}
		}
	} else {
		n.turn++
	}
	ordered := make([]netip.AddrPort, 0, count)
	ordered = append(ordered, n.backends.endpoints[first:]...)
	return append(ordered, n.backends.endpoints[:first]...), dialer
}

// dialFrom keeps the client's address if no source is set. On loopback that takes
// no privilege: all of 127.0.0.0/8 is this machine's. A client from elsewhere
// cannot be kept and gets whatever address the kernel picks.
func dialFrom(source, client netip.Addr) net.Dialer {
	dialer := net.Dialer{Timeout: dialTimeout, Control: lateSourcePort}
	if !source.IsValid() && client.IsLoopback() {
		source = client
	}
	if source.IsValid() {
		dialer.LocalAddr = net.TCPAddrFromAddrPort(netip.AddrPortFrom(source, 0))
	}
	return dialer
}

// lateSourcePort lets the kernel choose the source port at connect instead of at
// bind: it then has to be unique per endpoint only, and a busy node does not run
// out of them.
func lateSourcePort(_, _ string, raw syscall.RawConn) error {
	var err error
	if controlErr := raw.Control(func(fd uintptr) {
		err = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_BIND_ADDRESS_NO_PORT, 1)
	}); controlErr != nil {
		return controlErr
	}
	return err
}

func (n *nodePort) remember(client netip.Addr, endpoint netip.AddrPort) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.backends.affinity > 0 {
		n.sticky[client] = stickiness{endpoint, time.Now()}
	}
}

func clientAddress(connection net.Conn) netip.Addr {
	return connection.RemoteAddr().(*net.TCPAddr).AddrPort().Addr().Unmap()
}
