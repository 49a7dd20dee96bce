// Package dataplane forwards TCP for load balancers, for real: it listens on
// their addresses and copies bytes to and from their targets. It implements
// cloud.DataPlane.
package dataplane

import (
	"context"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"sync"

	"github.com/ccmlab/ccmlab/fakecloud/cloud"
)

// Plane holds the listeners and connections of all balancers. Safe for
// concurrent use.
type Plane struct {
	log *slog.Logger

	mu        sync.Mutex
	balancers map[string]*balancer
	closed    bool
}

var _ cloud.DataPlane = (*Plane)(nil)

// New makes an empty data plane; logger may be nil.
func New(logger *slog.Logger) *Plane {
	if logger == nil {
		logger = slog.New(slog.DiscardHandler)
	}
	return &Plane{log: logger, balancers: map[string]*balancer{}}
}

// balancer is one load balancer's sockets.
type balancer struct {
	ctx    context.Context // ends with the balancer
	cancel context.CancelFunc
	log    *slog.Logger

	listeners map[int]*listener // by port; guarded by Plane.mu
	counters  map[int]*counters // of all ports there ever were; guarded by Plane.mu

	running sync.WaitGroup // accept loops and connections
	connMu  sync.Mutex
	conns   map[net.Conn]struct{} // nil once removed
}

// Apply implements cloud.DataPlane. Targets and target ports change for new
// connections only; a listener that is left out stops accepting and its
// connections go on.
func (p *Plane) Apply(f cloud.Forwarding) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return net.ErrClosed
	}
	b := p.balancers[f.ID]
	if b == nil {
		b = newBalancer(p.log.With("loadBalancer", f.ID))
	}
	added, err := b.bind(f)
	if err != nil {
		return err // b is unchanged; a new one holds nothing yet.
	}
	p.balancers[f.ID] = b
	for port, l := range b.listeners {
		if !slices.ContainsFunc(f.Listeners, func(w cloud.Listener) bool { return w.Port == port }) {
			l.close()
			delete(b.listeners, port)
		}
	}
	for _, want := range f.Listeners {
		l := b.listeners[want.Port]
		if l == nil {
			if b.counters[want.Port] == nil {
				b.counters[want.Port] = &counters{}
			}
			l = &listener{balancer: b, socket: added[want.Port], counters: b.counters[want.Port]}
			b.listeners[want.Port] = l
		}
		l.route.Store(&route{listener: want, targets: targets(f.Backends, want.TargetPort)})
		if added[want.Port] != nil {
			b.running.Go(l.accept)
		}
	}
	return nil
}

func newBalancer(log *slog.Logger) *balancer {
	ctx, cancel := context.WithCancel(context.Background())
	return &balancer{ctx: ctx, cancel: cancel, log: log, listeners: map[int]*listener{}, counters: map[int]*counters{}, conns: map[net.Conn]struct{}{}}
}

// bind opens the listeners that are not there yet: all, or none.
func (b *balancer) bind(f cloud.Forwarding) (map[int]net.Listener, error) {
	var config net.ListenConfig
	config.SetMultipathTCP(false) // Plain TCP sockets, which the kernel can splice.
	added := map[int]net.Listener{}
	for _, want := range f.Listeners {
		if b.listeners[want.Port] != nil {
			continue
		}
		at := netip.AddrPortFrom(f.Address, uint16(want.Port))
		socket, err := config.Listen(b.ctx, "tcp4", at.String())
		if err != nil {
			for _, s := range added {
				_ = s.Close()
			}
			return nil, bindError(at, err)
		}
		added[want.Port] = socket
	}
	return added, nil
}

func targets(backends []cloud.Backend, port int) []string {
	out := make([]string, len(backends))
	for i, b := range backends {
		out[i] = netip.AddrPortFrom(b.Address, uint16(port)).String()
	}
	return out
}

// Remove implements cloud.DataPlane. It returns when all is closed.
func (p *Plane) Remove(id string) {
	p.mu.Lock()
	b := p.balancers[id]
	delete(p.balancers, id)
	p.mu.Unlock()
	if b != nil {
		b.remove()
	}
}

func (b *balancer) remove() {
	b.cancel()
	for _, l := range b.listeners {
		l.close()
	}
	b.connMu.Lock()
	for c := range b.conns {
		_ = c.Close()
	}
	b.conns = nil
	b.connMu.Unlock()
	b.running.Wait()
}

// Stats implements cloud.DataPlane.
func (p *Plane) Stats(id string) []cloud.ListenerStats {
	p.mu.Lock()
	defer p.mu.Unlock()
	b := p.balancers[id]
	if b == nil {
		return nil
	}
	out := make([]cloud.ListenerStats, 0, len(b.listeners))
	for _, l := range b.listeners {
		out = append(out, l.stats())
	}
	slices.SortFunc(out, func(a, b cloud.ListenerStats) int { return a.Listener.Port - b.Listener.Port })
	return out
}

// Health implements cloud.DataPlane.
func (p *Plane) Health(string) []cloud.TargetHealth { return nil }

// Close ends everything and waits for it. Later calls of Apply fail.
func (p *Plane) Close() {
	p.mu.Lock()
	all := p.balancers
	p.balancers, p.closed = map[string]*balancer{}, true
	p.mu.Unlock()
	for _, b := range all {
		b.remove()
	}
}
