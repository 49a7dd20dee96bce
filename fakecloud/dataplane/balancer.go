package dataplane

import (
	"cmp"
	"context"
	"crypto/tls"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jonboulle/clockwork"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/cloud"
)

const (
	// retryPause is how long a listener waits after its socket failed, for example
	// because there are no more file descriptors. The pause doubles with each
	// further failure, up to maxRetryPause.
	retryPause    = 50 * time.Millisecond
	maxRetryPause = time.Second
)

// balancer is one load balancer: its sockets, and what is known of its targets.
type balancer struct {
	plane  *Plane
	ctx    context.Context // ends with the balancer
	cancel context.CancelFunc
	log    *slog.Logger

	// These are guarded by Plane.mu.
	forwarding     cloud.Forwarding
	listeners      map[listenAddress]*listener
	counters       map[port]*counters   // of all ports that it has or had
	endpoints      map[string]*endpoint // by target: the current ones, and at most maxFormerEndpoints former ones
	checkedTargets map[checkKey]*checkedTarget
	listenersOf    func(target string) []*cloud.Listener // those of forwarding that have it
	condition      condition                             // as onConditionChange was told last
	network        networkState

	affinity *affinity
	flows    flows
	active   atomic.Int64 // connections and sessions of all listeners

	goroutines sync.WaitGroup // listeners, connections, sessions and checks
}

// port is a port of a balancer. TCP port 53 and UDP port 53 are two ports.
type port struct {
	protocol cloud.Protocol
	number   int
}

// listenAddress is the address and port of a listener.
type listenAddress struct {
	port
	address netip.Addr
}

// listenersByAddress returns the listeners that f asks for, by where they listen: each
// listener is there once for each address. What the kernel forwards listens nowhere.
func listenersByAddress(f cloud.Forwarding) map[listenAddress]cloud.Listener {
	all := map[listenAddress]cloud.Listener{}
	if isForwardedInKernel(f.Kind) {
		return all
	}
	for _, address := range f.Addresses {
		for _, l := range f.Listeners {
			all[listenAddress{portOf(l), address}] = l
		}
	}
	return all
}

// listener receives connections or datagrams on one port of one of the balancer's
// addresses.
type listener struct {
	balancer *balancer
	address  listenAddress
	socket   io.Closer // *net.TCPListener or *net.UDPConn
	route    atomic.Pointer[route]
	nextTurn atomic.Uint64 // counts clients, for round robin
	closed   atomic.Bool
	refusals refusals
	*counters
}

// route says where a listener's new connections may go. It is immutable: a change
// replaces it.
type route struct {
	listener        cloud.Listener
	targets         []target // those not known to be unhealthy by the listener's check
	weights         weights  // of targets
	algorithm       cloud.Algorithm
	sourceRanges    []netip.Prefix
	connectionLimit int           // of all listeners together; 0: none
	idleTimeout     time.Duration // after which a silent connection ends; 0: the default
	tls             *tls.Config   // of listeners of https and tls
}

// target is a target that may get new connections.
type target struct {
	*endpoint
	address netip.Addr
}

// targetAddress is the address and port to which connections to t are forwarded.
func (r *route) targetAddress(t target) netip.AddrPort {
	return netip.AddrPortFrom(t.address, uint16(r.listener.TargetPort))
}

func newBalancer(p *Plane, id string) *balancer {
	ctx, cancel := context.WithCancel(context.Background())
	return &balancer{
		plane: p, ctx: ctx, cancel: cancel, log: p.log.With("loadBalancer", id),
		listeners: map[listenAddress]*listener{}, counters: map[port]*counters{}, endpoints: map[string]*endpoint{},
		checkedTargets: map[checkKey]*checkedTarget{}, network: newNetworkState(),
		affinity: newAffinity(clockwork.NewRealClock(), maxClients),
		flows:    flows{all: map[*flow]struct{}{}},
	}
}

// openMissingSockets opens the sockets that f asks for and b does not have. If one
// cannot be opened, none is. The caller holds Plane.mu.
func (b *balancer) openMissingSockets(f cloud.Forwarding) (map[listenAddress]io.Closer, error) {
	added := map[listenAddress]io.Closer{}
	for at := range listenersByAddress(f) {
		if b.listeners[at] != nil {
			continue
		}
		socket, err := openSocket(b.ctx, at)
		if err != nil {
			closeSockets(added)
			return nil, &cloud.ListenError{Err: bindError(at, err)}
		}
		added[at] = socket
	}
	return added, nil
}

func closeSockets(all map[listenAddress]io.Closer) {
	for _, s := range all {
		_ = s.Close()
	}
}

func openSocket(ctx context.Context, at listenAddress) (io.Closer, error) {
	config := listenConfig
	config.SetMultipathTCP(false) // Plain TCP sockets, which the kernel can splice.
	address := netip.AddrPortFrom(at.address, uint16(at.number)).String()
	if at.protocol == api.ProtocolUDP {
		return config.ListenPacket(ctx, "udp"+ipVersionSuffix(at.address), address)
	}
	return config.Listen(ctx, "tcp"+ipVersionSuffix(at.address), address)
}

// ipVersionSuffix is what package net appends to a network's name for one IP family:
// "tcp4", "udp6".
func ipVersionSuffix(a netip.Addr) string {
	if a.Is4() {
		return "4"
	}
	return "6"
}

// applyForwarding puts f in force. added are the sockets that openMissingSockets has
// opened for it. The caller holds Plane.mu.
func (b *balancer) applyForwarding(f cloud.Forwarding, added map[listenAddress]io.Closer) {
	f.Listeners, f.Backends, f.Own = slices.Clone(f.Listeners), slices.Clone(f.Backends), maps.Clone(f.Own)
	f.SourceRanges = slices.Clone(f.SourceRanges)
	if f.HealthCheck != nil {
		f.HealthCheck = new(*f.HealthCheck)
	}
	b.affinity.setTimeout(f.Affinity)
	b.flows.applyForwarding(f)
	b.updateEndpoints(f.AllBackends())
	b.updateHealthChecks(f)
	b.forwarding = f
	wanted := listenersByAddress(f)
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
		b.listeners[at] = &listener{balancer: b, address: at, socket: socket, counters: b.counters[at.port]}
	}
	b.updateRoutes()
	for at := range added {
		b.goroutines.Go(b.listeners[at].run)
	}
}

// updateRoutes gives every listener a new route, to all targets that are not known to
// be unhealthy by its check, and updates the condition. The caller holds Plane.mu.
func (b *balancer) updateRoutes() {
	targets, weights := map[receivers][]target{}, map[receivers]weights{}
	for at, want := range listenersByAddress(b.forwarding) {
		r := receiversOf(b.forwarding, want)
		if _, known := targets[r]; !known {
			targets[r] = []target{}
			backends := b.receivingBackends(b.forwarding.BackendsOf(want), r)
			for _, backend := range backends {
				targets[r] = append(targets[r], target{b.endpoints[backend.Target], backend.Address})
			}
			weights[r] = weightsOf(backends)
		}
		had := b.listeners[at].route.Load()
		b.listeners[at].route.Store(&route{
			listener: want, targets: targets[r], weights: weights[r],
			algorithm:       b.forwarding.Algorithm,
			connectionLimit: b.forwarding.ConnectionLimit, sourceRanges: b.forwarding.SourceRanges,
			idleTimeout: cmp.Or(want.IdleTimeoutSeconds.Duration(), b.forwarding.IdleTimeout), tls: tlsConfig(want, b.forwarding.Certificates, had),
		})
	}
	b.updateCondition()
}

// receivers says by what a listener's traffic goes to some of the backends only. Listeners with the same
// have the same targets.
type receivers struct {
	check cloud.HealthCheck
	// through is the port of the targets; zero while none has a firewall.
	through port
	// own is the listener, if it has targets of its own.
	own cloud.ListenerKey
}

func receiversOf(f cloud.Forwarding, l cloud.Listener) receivers {
	r := receivers{check: l.CheckInForce(f.HealthCheck)}
	if slices.ContainsFunc(f.BackendsOf(l), func(b cloud.Backend) bool { return b.LetIn != "" }) {
		r.through = port{l.Protocol, l.TargetPort}
	}
	if l.Targets != nil {
		r.own = cloud.ListenerKey{Protocol: l.Protocol, Port: l.Port}
	}
	return r
}

// receivingBackends are the backends that get new flows: those that let them in, do not drain, and are not known to be
// unhealthy by the check. One that is not checked yet is unknown. Backups are among them only if all are.
func (b *balancer) receivingBackends(all []cloud.Backend, r receivers) []cloud.Backend {
	hasFirst := false
	receiving := slices.DeleteFunc(slices.Clone(all), func(backend cloud.Backend) bool {
		w := b.checkedTargets[keyOf(backend, r.check)]
		isLeftOut := backend.Drain || w != nil && w.health.Health == api.TargetUnhealthy ||
			!backend.LetIn.Has(r.through.protocol, r.through.number)
		hasFirst = hasFirst || !isLeftOut && !backend.Backup
		return isLeftOut
	})
	return slices.DeleteFunc(receiving, func(backend cloud.Backend) bool { return backend.Backup && hasFirst })
}

// close closes the listeners and resets the connections, and waits until all goroutines
// have ended.
func (b *balancer) close() {
	b.cancel()
	for _, l := range b.listeners {
		l.close()
	}
	b.flows.close()
	b.goroutines.Wait()
}

// waitBeforeRetry waits before a socket that failed is tried again. It returns false if
// the balancer was closed.
func (b *balancer) waitBeforeRetry(pause time.Duration) bool {
	select {
	case <-b.ctx.Done():
		return false
	case <-time.After(pause):
		return true
	}
}

func (l *listener) close() {
	l.closed.Store(true)
	_ = l.socket.Close()
}

func (l *listener) run() {
	switch socket := l.socket.(type) {
	case *net.TCPListener:
		l.acceptConnections(socket)
	case *net.UDPConn:
		newRelay(l, socket).run()
	}
}

// claimConnection counts one more active connection, or returns false if the connection limit of
// the listener or of the balancer is reached.
func (l *listener) claimConnection(r *route) bool {
	ofListener, ofBalancer := l.active.Add(1), l.balancer.active.Add(1)
	if isBeyond(ofListener, r.listener.ConnectionLimit) || isBeyond(ofBalancer, r.connectionLimit) {
		l.releaseConnection()
		return false
	}
	return true
}

func isBeyond(count int64, limit int) bool { return limit > 0 && count > int64(limit) }

// releaseConnection undoes claimConnection.
func (l *listener) releaseConnection() {
	l.active.Add(-1)
	l.balancer.active.Add(-1)
}

// allowsClient tells whether the source ranges let a client connect.
func (r *route) allowsClient(client netip.Addr) bool {
	return len(r.sourceRanges) == 0 || slices.ContainsFunc(r.sourceRanges, func(p netip.Prefix) bool {
		return p.Contains(client)
	})
}
