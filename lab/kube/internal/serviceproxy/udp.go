package serviceproxy

import (
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"sync"
	"syscall"
	"time"
)

const (
	// maxFlows bounds the flows of one port, each of which takes a socket. A further flow evicts
	// the idlest one: otherwise clients that send from a new port each time, as resolvers do,
	// would shut out all others.
	maxFlows = 1024
	// udpReadBuffer is the size of a port's receive buffer in bytes, as far as the system allows
	// it. Datagrams that do not fit are lost.
	udpReadBuffer = 1 << 20
	// maxDatagram is more bytes than a UDP datagram can carry.
	maxDatagram = 1 << 16
)

// udpLimits say when a port ends a flow.
type udpLimits struct {
	flows int
	// unreplied and assured are a flow's idle timeouts before and after the endpoint's first
	// reply.
	unreplied, assured time.Duration
}

// conntrackLimits are Linux's (nf_conntrack_udp_timeout and
// nf_conntrack_udp_timeout_stream), which kube-proxy leaves as they are.
var conntrackLimits = udpLimits{flows: maxFlows, unreplied: 30 * time.Second, assured: 120 * time.Second}

// udpPort forwards the datagrams of one node port. One socket receives from all clients; each flow
// has a socket of its own, to which the endpoint replies.
type udpPort struct {
	socket  *net.UDPConn
	log     *slog.Logger
	limits  udpLimits
	done    chan struct{}
	running sync.WaitGroup

	mu     sync.Mutex
	picker endpointPicker
	flows  map[netip.AddrPort]*flow
}

// flow is one client's traffic with one endpoint.
type flow struct {
	client   netip.AddrPort
	endpoint netip.AddrPort
	server   *net.UDPConn

	// These are guarded by udpPort.mu.
	lastActive time.Time // of either side
	assured    bool      // the endpoint has replied
}

func listenUDP(at netip.AddrPort, targets backends, limits udpLimits, log *slog.Logger) (forwarder, error) {
	socket, err := net.ListenUDP("udp4", net.UDPAddrFromAddrPort(at))
	if err != nil {
		return nil, err
	}
	_ = socket.SetReadBuffer(udpReadBuffer)
	u := &udpPort{
		socket: socket,
		log:    log,
		limits: limits,
		done:   make(chan struct{}),
		picker: newEndpointPicker(targets),
		flows:  map[netip.AddrPort]*flow{},
	}
	u.running.Go(u.receiveDatagrams)
	return u, nil
}

// close closes the socket and all flows: the Service is deleted, or the node shuts down.
func (u *udpPort) close() {
	close(u.done)
	_ = u.socket.Close()
	u.running.Wait()
}

// setBackends changes the endpoints for new flows. It ends flows whose endpoint no longer serves:
// they would never time out while their clients keep sending.
func (u *udpPort) setBackends(targets backends) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.picker.setBackends(targets)
	for _, f := range u.flows {
		if !targets.serving[f.endpoint] {
			u.endFlowLocked(f)
		}
	}
}

func (u *udpPort) receiveDatagrams() {
	defer u.endAllFlows()
	datagram := make([]byte, maxDatagram)
	for {
		n, client, err := u.socket.ReadFromUDPAddrPort(datagram)
		switch {
		case err == nil:
			u.forwardDatagram(client, datagram[:n])
		case errors.Is(err, net.ErrClosed):
			return
		default:
			u.log.Error("datagram not received", "error", err.Error())
			select {
			case <-u.done:
				return
			case <-time.After(errorPause):
			}
		}
	}
}

// forwardDatagram sends a datagram to the endpoint of the client's flow. If the flow has just
// ended, or its socket reports now that the endpoint refused an earlier datagram, it begins
// another flow.
func (u *udpPort) forwardDatagram(client netip.AddrPort, datagram []byte) {
	for range 2 {
		f, err := u.flowFor(client)
		if err == nil {
			if _, err = f.server.Write(datagram); errors.Is(err, syscall.ECONNREFUSED) ||
				errors.Is(err, net.ErrClosed) {
				u.endFlow(f)
				continue
			}
		}
		if err != nil {
			u.log.Debug("datagram dropped", "client", client.String(), "error", err.Error())
		}
		return
	}
}

// flowFor returns a client's flow, a new one if it has none.
func (u *udpPort) flowFor(client netip.AddrPort) (*flow, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if f := u.flows[client]; f != nil {
		f.lastActive = time.Now()
		return f, nil
	}
	source := u.picker.sourceAddressFor(client.Addr())
	err := errNoEndpoints
	for _, endpoint := range u.picker.candidateEndpoints(client.Addr()) {
		var server *net.UDPConn
		if server, err = dialUDP(source, endpoint); err != nil {
			continue
		}
		u.picker.rememberEndpoint(client.Addr(), endpoint)
		f := &flow{client: client, endpoint: endpoint, server: server, lastActive: time.Now()}
		u.evictIdlestFlow()
		u.flows[client] = f
		u.running.Go(func() { u.relayReplies(f) })
		return f, nil
	}
	return nil, err
}

// dialUDP returns a connected socket: the kernel takes datagrams from the endpoint only, and
// reports when nothing listens there.
func dialUDP(source netip.Addr, endpoint netip.AddrPort) (*net.UDPConn, error) {
	var from *net.UDPAddr
	if source.IsValid() {
		from = net.UDPAddrFromAddrPort(netip.AddrPortFrom(source, 0))
	}
	return net.DialUDP("udp4", from, net.UDPAddrFromAddrPort(endpoint))
}

// evictIdlestFlow makes room for one more flow, if there is none. It needs u.mu.
func (u *udpPort) evictIdlestFlow() {
	if len(u.flows) < u.limits.flows {
		return
	}
	var idlest *flow
	for _, f := range u.flows {
		if idlest == nil || f.lastActive.Before(idlest.lastActive) {
			idlest = f
		}
	}
	u.endFlowLocked(idlest)
}

// relayReplies sends an endpoint's replies to the client, from the node port, until the flow ends.
func (u *udpPort) relayReplies(f *flow) {
	defer u.endFlow(f)
	datagram := make([]byte, maxDatagram)
	for {
		expires := u.flowExpiry(f)
		if !time.Now().Before(expires) || f.server.SetReadDeadline(expires) != nil {
			return
		}
		n, err := f.server.Read(datagram)
		if err == nil {
			u.recordReply(f)
			_, _ = u.socket.WriteToUDPAddrPort(datagram[:n], f.client) // A datagram may be lost.
		} else if !errors.Is(err, os.ErrDeadlineExceeded) { // refused, or closed
			return
		}
	}
}

// flowExpiry returns when the flow times out unless there is further traffic.
func (u *udpPort) flowExpiry(f *flow) time.Time {
	u.mu.Lock()
	defer u.mu.Unlock()
	if f.assured {
		return f.lastActive.Add(u.limits.assured)
	}
	return f.lastActive.Add(u.limits.unreplied)
}

func (u *udpPort) recordReply(f *flow) {
	u.mu.Lock()
	defer u.mu.Unlock()
	f.lastActive, f.assured = time.Now(), true
}

func (u *udpPort) endFlow(f *flow) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.endFlowLocked(f)
}

func (u *udpPort) endAllFlows() {
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, f := range u.flows {
		u.endFlowLocked(f)
	}
}

// endFlowLocked removes a flow and closes its socket, which ends relayReplies and fails a
// concurrent forwardDatagram. It needs u.mu.
func (u *udpPort) endFlowLocked(f *flow) {
	if u.flows[f.client] == f {
		delete(u.flows, f.client)
	}
	_ = f.server.Close()
}
