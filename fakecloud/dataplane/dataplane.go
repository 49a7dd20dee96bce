// Package dataplane forwards real TCP and UDP traffic for load balancers, and checks their targets'
// health. For a proxy it listens on the balancer's addresses and copies payloads between clients
// and targets; for a network balancer the kernel passes packets on. It implements cloud.DataPlane, knows neither the store nor HTTP, and
// learns what is to be forwarded from Plane.Apply alone.
//
// Begin with Plane (this file), balancer (balancer.go), and how connections (tcp.go) and
// datagrams (udp.go) are forwarded. Health checks are in health.go, the choice of a
// target in target_order.go. Network balancers are in network.go.
package dataplane

import (
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/cloud"
)

// Options configure a data plane.
type Options struct {
	Logger *slog.Logger // may be nil
	// Interface is the network interface that balancers' addresses are added to.
	// That needs CAP_NET_ADMIN, and CAP_NET_RAW to announce the addresses. Empty:
	// this machine has the addresses already, as Linux has all of 127/8.
	Interface string
}

// Plane holds the listeners and connections of all balancers. Safe for
// concurrent use.
type Plane struct {
	log         *slog.Logger
	iface       string
	sessionIdle time.Duration
	maxSessions int
	fileReserve uintptr   // see fileReserve
	filesShort  sync.Once // logs once that files are short

	mu                sync.Mutex
	balancers         map[string]*balancer
	closed            bool
	onConditionChange func(id string) // told of each change of a balancer's condition; may be nil
	announceFailure   sync.Once       // logs once that addresses cannot be announced

	// forwarder is for network balancers; nil without an interface, or because of forwarderErr.
	forwarder        *packetForwarder
	forwarderErr     error
	translationErr   error  // why there can be no attached addresses; nil if there can
	lastGroup        uint32 // of slots
	counts           map[element]packetCount
	countsValidUntil time.Time
}

var _ cloud.DataPlane = (*Plane)(nil)

// New makes an empty data plane.
func New(o Options) *Plane {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	p := &Plane{
		log: o.Logger, iface: o.Interface, sessionIdle: sessionIdle, maxSessions: maxSessions,
		fileReserve: fileReserve(), balancers: map[string]*balancer{},
	}
	if p.iface != "" {
		p.forwarder, p.forwarderErr = newPacketForwarder(p.iface, p.log)
		p.translationErr = p.forwarderErr
	}
	if p.forwarder != nil {
		p.translationErr = p.forwarder.createTranslation()
	}
	if p.forwarderErr != nil {
		p.log.Info("there can be no network load balancers", "err", p.forwarderErr)
	}
	if p.translationErr != nil {
		p.log.Info("attached addresses lead nowhere", "err", p.translationErr)
	}
	return p
}

// Apply implements cloud.DataPlane. A change holds for new connections only. A TCP
// listener that is left out stops accepting; its connections go on for the drain
// timeout, and so do connections to backends that are left out. UDP has no connections:
// a client's next datagram goes by what is in force when it arrives.
func (p *Plane) Apply(f cloud.Forwarding) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return net.ErrClosed
	}
	b := p.balancers[f.ID]
	if b == nil {
		b = newBalancer(p, f.ID)
	}
	for _, address := range f.Addresses {
		if err := p.ensureAddress(address); err != nil {
			p.releaseUnusedAddresses(f.Addresses)
			return err
		}
	}
	added, err := b.openMissingSockets(f)
	if err == nil {
		if err = b.syncNetwork(f); err != nil {
			closeSockets(added)
		}
	}
	if err != nil {
		p.releaseUnusedAddresses(f.Addresses)
		return err // b is unchanged; a new balancer has no sockets yet.
	}
	p.balancers[f.ID] = b
	previous := b.forwarding
	b.applyForwarding(f, added)
	p.releaseUnusedAddresses(previous.Addresses)
	return nil
}

// ensureAddress adds an address to the network interface, if there is one to add
// addresses to, and announces it to the neighbours if it is new.
func (p *Plane) ensureAddress(address netip.Addr) error {
	if p.iface == "" {
		return nil
	}
	added, err := addAddress(p.iface, address)
	if err != nil || !added {
		return err
	}
	if err := announceAddress(p.iface, address); err != nil {
		p.announceFailure.Do(func() {
			p.log.Info(
				"neighbours hear nothing of balancers' new addresses: one used before may lead elsewhere for a minute",
				"err", err,
			)
		})
	}
	return nil
}

// releaseUnusedAddresses removes addresses that no balancer has from the network
// interface. The caller holds mu.
func (p *Plane) releaseUnusedAddresses(addresses []netip.Addr) {
	for _, address := range addresses {
		if p.iface == "" || p.isAddressInUse(address) {
			continue
		}
		if err := removeAddress(p.iface, address); err != nil {
			p.log.Warn("a load balancer's address stays on the network interface", "err", err)
		}
	}
}

// isAddressInUse tells whether a balancer has the address. The caller holds mu.
func (p *Plane) isAddressInUse(address netip.Addr) bool {
	for _, b := range p.balancers {
		if slices.Contains(b.forwarding.Addresses, address) {
			return true
		}
	}
	return false
}

// Remove implements cloud.DataPlane. It returns when all is closed.
func (p *Plane) Remove(id string) {
	p.mu.Lock()
	b := p.balancers[id]
	delete(p.balancers, id)
	p.mu.Unlock()
	if b != nil {
		p.closeBalancer(b)
	}
}

// closeBalancer closes a balancer that is no longer in p.balancers, and releases its
// addresses.
func (p *Plane) closeBalancer(b *balancer) {
	b.close()
	p.mu.Lock()
	defer p.mu.Unlock()
	b.removeNetwork()
	p.releaseUnusedAddresses(b.forwarding.Addresses)
}

// Stats implements cloud.DataPlane.
func (p *Plane) Stats(id string) api.LoadBalancerStats {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch b := p.balancers[id]; {
	case b == nil:
	case b.forwarding.Kind == api.KindNetwork:
		return b.networkStats()
	default:
		return b.collectStats()
	}
	return api.LoadBalancerStats{}
}

// Health implements cloud.DataPlane.
func (p *Plane) Health(id string) []api.TargetHealth {
	p.mu.Lock()
	defer p.mu.Unlock()
	b := p.balancers[id]
	if b == nil {
		return nil
	}
	backends := b.forwarding.AllBackends()
	out := make([]api.TargetHealth, len(backends))
	for i, backend := range backends {
		out[i] = b.healthOf(backend)
	}
	return out
}

// Close closes all balancers and returns when they are closed. Later calls of Apply
// fail.
func (p *Plane) Close() {
	p.mu.Lock()
	all := p.balancers
	p.balancers, p.closed = map[string]*balancer{}, true
	p.mu.Unlock()
	for _, b := range all {
		p.closeBalancer(b)
	}
	if p.forwarder != nil {
		if err := p.forwarder.close(); err != nil {
			p.log.Warn("the table of network load balancers stays in the kernel", "err", err)
		}
	}
}
