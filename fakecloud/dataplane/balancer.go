package dataplane

import (
	"context"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jonboulle/clockwork"

	"github.com/ccmlab/ccmlab/fakecloud/cloud"
)

const (
	// readPause is the wait after a socket failed, e.g. for want of file
	// descriptors. It doubles with each failure that follows, up to
	// maxReadPause.
	readPause    = 50 * time.Millisecond
	maxReadPause = time.Second
)

// balancer is one load balancer's sockets.
type balancer struct {
	plane  *Plane
	ctx    context.Context // ends with the balancer
	cancel context.CancelFunc
	log    *slog.Logger

	// These are guarded by Plane.mu.
	forwarding cloud.Forwarding
	listeners  map[place]*listener
	counters   map[port]*counters   // of all ports there ever were
	endpoints  map[string]*endpoint // by target: those there are, and not too many that were
	watched    map[string]*watched  // by target
	condition  condition            // as it was told last

	clients *affinity
	flows   flows

	running sync.WaitGroup // listeners, connections, sessions and checks
}

// port is a port of a balancer: TCP and UDP share none.
type port struct {
	protocol cloud.Protocol
	number   int
}

// place is where a listener is.
type place struct {
	port
	address netip.Addr
}

// places are where a balancer listens, with what it listens for: on each of its
// addresses.
func places(f cloud.Forwarding) map[place]cloud.Listener {
	all := map[place]cloud.Listener{}
	for _, address := range []netip.Addr{f.Address, f.Address6} {
		for _, l := range f.Listeners {
			if address.IsValid() {
				all[place{port{l.Protocol, l.Port}, address}] = l
			}
		}
	}
	return all
}

// listener receives on one port of a balancer.
type listener struct {
	balancer *balancer
	at       place
	socket   io.Closer // *net.TCPListener or *net.UDPConn
	route    atomic.Pointer[route]
	turn     atomic.Uint64 // round robin
	refusals refusals
	*counters
}

// route is where a listener's new connections go. It is replaced, never
// changed.
type route struct {
	listener  cloud.Listener
	targets   []target // that may get any; all listeners of a balancer have the same
	algorithm cloud.Algorithm
	ranges    []netip.Prefix
	idle      time.Duration // how long they may be silent; 0: as long as without the option
}

type target struct {
	*endpoint
	address netip.Addr
}

// at is where a listener's connections reach a target.
func (r *route) at(t target) netip.AddrPort {
	return netip.AddrPortFrom(t.address, uint16(r.listener.TargetPort))
}

func newBalancer(p *Plane, id string) *balancer {
	ctx, cancel := context.WithCancel(context.Background())
	return &balancer{
		plane: p, ctx: ctx, cancel: cancel, log: p.log.With("loadBalancer", id),
		listeners: map[place]*listener{}, counters: map[port]*counters{}, endpoints: map[string]*endpoint{}, watched: map[string]*watched{},
		clients: newAffinity(clockwork.NewRealClock(), maxClients),
		flows:   flows{all: map[*flow]struct{}{}},
	}
}

// bind opens the sockets that are not there yet: all, or none.
func (b *balancer) bind(f cloud.Forwarding) (map[place]io.Closer, error) {
	added := map[place]io.Closer{}
	for at := range places(f) {
		if b.listeners[at] != nil {
			continue
		}
		socket, err := open(b.ctx, at)
		if err != nil {
			for _, s := range added {
				_ = s.Close()
			}
			return nil, &cloud.ListenError{Err: bindError(at, err)}
		}
		added[at] = socket
	}
	return added, nil
}

func open(ctx context.Context, at place) (io.Closer, error) {
	config := listenConfig
	config.SetMultipathTCP(false) // Plain TCP sockets, which the kernel can splice.
	address := netip.AddrPortFrom(at.address, uint16(at.number)).String()
	if at.protocol == cloud.UDP {
		return config.ListenPacket(ctx, "udp"+family(at.address), address)
	}
	return config.Listen(ctx, "tcp"+family(at.address), address)
}

// family is how package net tells the families apart: "tcp4", "udp6".
func family(a netip.Addr) string {
	if a.Is4() {
		return "4"
	}
	return "6"
}

// put brings into force what a balancer is to do, with the sockets it lacked.
func (b *balancer) put(f cloud.Forwarding, added map[place]io.Closer) {
	f.Listeners, f.Backends, f.SourceRanges = slices.Clone(f.Listeners), slices.Clone(f.Backends), slices.Clone(f.SourceRanges)
	if f.HealthCheck != nil {
		how := *f.HealthCheck
		f.HealthCheck = &how
	}
	b.clients.keepFor(f.Affinity)
	b.flows.follow(f)
	b.meet(f.Backends)
	b.watch(f)
	b.forwarding = f
	wanted := places(f)
	for at, l := range b.listeners {
		if _, stays := wanted[at]; !stays {
			l.close()
			delete(b.listeners, at)
		}
	}
	for at, socket := range added {
		if b.counters[at.port] == nil {
			b.counters[at.port] = &counters{}
		}
		b.listeners[at] = &listener{balancer: b, at: at, socket: socket, counters: b.counters[at.port]}
	}
	b.reroute()
	for at := range added {
		b.running.Go(b.listeners[at].run)
	}
}

// reroute tells the listeners where new connections may go: not to targets
// known to be unhealthy.
func (b *balancer) reroute() {
	var targets []target
	for _, backend := range b.forwarding.Backends {
		if b.watched[backend.Target].health.Health != cloud.Unhealthy {
			targets = append(targets, target{b.endpoints[backend.Target], backend.Address})
		}
	}
	for at, want := range places(b.forwarding) {
		b.listeners[at].route.Store(&route{
			listener: want, targets: targets, algorithm: b.forwarding.Algorithm,
			ranges: b.forwarding.SourceRanges, idle: b.forwarding.IdleTimeout,
		})
	}
	b.judge()
}

func (b *balancer) close() {
	b.cancel()
	for _, l := range b.listeners {
		l.close()
	}
	b.flows.close()
	b.running.Wait()
}

// rest waits before a socket that failed is tried again; false once the
// balancer has ended.
func (b *balancer) rest(pause time.Duration) bool {
	select {
	case <-b.ctx.Done():
		return false
	case <-time.After(pause):
		return true
	}
}

func (l *listener) close() { _ = l.socket.Close() }

func (l *listener) run() {
	switch socket := l.socket.(type) {
	case *net.TCPListener:
		l.accept(socket)
	case *net.UDPConn:
		newRelay(l, socket).run()
	}
}

// claim counts one more connection as active, unless there are as many as there
// may be.
func (l *listener) claim(r *route) bool {
	if now := l.active.Add(1); r.listener.ConnectionLimit > 0 && now > int64(r.listener.ConnectionLimit) {
		l.active.Add(-1)
		return false
	}
	return true
}

// admits says whether a client may connect.
func (r *route) admits(client netip.Addr) bool {
	return len(r.ranges) == 0 || slices.ContainsFunc(r.ranges, func(p netip.Prefix) bool { return p.Contains(client) })
}
