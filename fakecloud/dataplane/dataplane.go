// Package dataplane forwards TCP and UDP for load balancers, for real: it
// listens on their addresses, copies payloads to and from their targets, and
// asks those whether they are well. It implements cloud.DataPlane.
package dataplane

import (
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/ccmlab/ccmlab/fakecloud/cloud"
)

// Options configure a data plane.
type Options struct {
	Logger *slog.Logger // may be nil
	// Interface is the network interface that balancers' addresses are added to,
	// which needs CAP_NET_ADMIN, and CAP_NET_RAW to announce them. Empty: the addresses are there already, as all
	// of 127/8 is on Linux.
	Interface string
}

// Plane holds the listeners and connections of all balancers. Safe for
// concurrent use.
type Plane struct {
	log         *slog.Logger
	iface       string
	sessionIdle time.Duration
	maxSessions int

	mu        sync.Mutex
	balancers map[string]*balancer
	closed    bool
	changed   func(id string) // hears of conditions; may be nil
	unheard   sync.Once       // says that announcing fails
}

var _ cloud.DataPlane = (*Plane)(nil)

// New makes an empty data plane.
func New(o Options) *Plane {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return &Plane{
		log: o.Logger, iface: o.Interface, sessionIdle: sessionIdle, maxSessions: maxSessions,
		balancers: map[string]*balancer{},
	}
}

// Apply implements cloud.DataPlane. What changes holds for new connections
// only; a TCP listener that is left out stops accepting, and its connections go
// on while they may drain, as do those to backends left out. UDP has none: a client's next datagram goes by what is in force then.
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
	if err := p.hold(f.Address); err != nil {
		return err
	}
	if err := p.hold(f.Address6); err != nil {
		p.release(f.Address)
		return err
	}
	added, err := b.bind(f)
	if err != nil {
		p.release(f.Address, f.Address6)
		return err // b is unchanged; a new one holds nothing yet.
	}
	p.balancers[f.ID] = b
	left := b.forwarding
	b.put(f, added)
	p.release(left.Address, left.Address6)
	return nil
}

// hold sees to it that this machine has an address; one that is not valid is
// none.
func (p *Plane) hold(address netip.Addr) error {
	if p.iface == "" || !address.IsValid() {
		return nil
	}
	news, err := addAddress(p.iface, address)
	if err != nil || !news {
		return err
	}
	if err := announce(p.iface, address); err != nil {
		p.unheard.Do(func() {
			p.log.Info("neighbours hear nothing of balancers' new addresses: one used before may lead elsewhere for a minute", "err", err)
		})
	}
	return nil
}

// release takes addresses off the interface, but for those that a balancer has.
func (p *Plane) release(addresses ...netip.Addr) {
	for _, address := range addresses {
		if p.iface == "" || !address.IsValid() || p.has(address) {
			continue
		}
		if err := removeAddress(p.iface, address); err != nil {
			p.log.Warn("a load balancer's address stays on the network interface", "err", err)
		}
	}
}

// has tells whether a balancer has an address.
func (p *Plane) has(address netip.Addr) bool {
	for _, b := range p.balancers {
		if b.forwarding.Address == address || b.forwarding.Address6 == address {
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
		p.end(b)
	}
}

// end closes all that a balancer has, which is no longer among the others.
func (p *Plane) end(b *balancer) {
	b.close()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.release(b.forwarding.Address, b.forwarding.Address6)
}

// Stats implements cloud.DataPlane.
func (p *Plane) Stats(id string) cloud.LoadBalancerStats {
	p.mu.Lock()
	defer p.mu.Unlock()
	if b := p.balancers[id]; b != nil {
		return b.stats()
	}
	return cloud.LoadBalancerStats{}
}

// Health implements cloud.DataPlane.
func (p *Plane) Health(id string) []cloud.TargetHealth {
	p.mu.Lock()
	defer p.mu.Unlock()
	b := p.balancers[id]
	if b == nil {
		return nil
	}
	out := make([]cloud.TargetHealth, len(b.forwarding.Backends))
	for i, backend := range b.forwarding.Backends {
		out[i] = b.watched[backend.Target].health
	}
	return out
}

// Close ends everything and waits for it. Later calls of Apply fail.
func (p *Plane) Close() {
	p.mu.Lock()
	all := p.balancers
	p.balancers, p.closed = map[string]*balancer{}, true
	p.mu.Unlock()
	for _, b := range all {
		p.end(b)
	}
}
