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

	"golang.org/x/sys/unix"
)

const (
	// maxFlows bounds the flows of one port, each of which takes a socket. One more
	// ends the one that has been silent longest: clients that ask from a new port
	// each time, as resolvers do, would else shut out everybody.
	maxFlows = 1024
	// udpQueue is how many bytes of datagrams may wait for us in a port's socket,
	// if the system lets us have so many. What does not fit is lost.
	udpQueue = 1 << 20
)

// udpLimits say when a flow ends by itself.
type udpLimits struct {
	flows int
	// unreplied and assured are how long it may be silent, before and after the
	// endpoint's first answer.
	unreplied, assured time.Duration
}

// conntrackLimits are Linux's (nf_conntrack_udp_timeout and
// nf_conntrack_udp_timeout_stream), which kube-proxy leaves as they are.
var conntrackLimits = udpLimits{flows: maxFlows, unreplied: 30 * time.Second, assured: 120 * time.Second}

// udpPort forwards what is sent to one node port. It receives for all clients;
// each flow has a socket of its own, on which the endpoint's answers come.
type udpPort struct {
	socket  *net.UDPConn
	log     *slog.Logger
	limits  udpLimits
	done    chan struct{}
	running sync.WaitGroup

	mu     sync.Mutex
	choice choice
	flows  map[netip.AddrPort]*flow
}

// flow is one client's traffic with one endpoint.
type flow struct {
	client   netip.AddrPort
	endpoint netip.AddrPort
	server   *net.UDPConn

	// These are guarded by udpPort.mu.
	heard   time.Time // when either side was, last
	assured bool      // the endpoint has answered
}

func listenUDP(at netip.AddrPort, targets backends, limits udpLimits, log *slog.Logger) (forwarder, error) {
	socket, err := net.ListenUDP("udp4", net.UDPAddrFromAddrPort(at))
	if err != nil {
		return nil, err
	}
	_ = socket.SetReadBuffer(udpQueue)
	u := &udpPort{
		socket: socket,
		log:    log,
		limits: limits,
		done:   make(chan struct{}),
		choice: newChoice(targets),
		flows:  map[netip.AddrPort]*flow{},
	}
	u.running.Go(u.receive)
	return u, nil
}

// close ends the socket and all flows: the Service has gone, or the node.
func (u *udpPort) close() {
	close(u.done)
	_ = u.socket.Close()
	u.running.Wait()
}

// set changes the endpoints for new flows. Those with an endpoint that serves no
// longer end: their clients would be talking to nobody for as long as they talk.
func (u *udpPort) set(targets backends) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.choice.change(targets)
	for _, f := range u.flows {
		if !targets.serving[f.endpoint] {
			u.end(f)
		}
	}
}

func (u *udpPort) receive() {
	defer u.endAll()
	datagram := make([]byte, maxDatagram)
	for {
		n, client, err := u.socket.ReadFromUDPAddrPort(datagram)
		switch {
		case err == nil:
			u.forward(client, datagram[:n])
		case errors.Is(err, net.ErrClosed):
			return
		default:
			u.log.Error("datagram not received", "error", err.Error())
			select {
			case <-u.done:
				return
			case <-time.After(shortagePause):
			}
		}
	}
}

// forward sends a datagram to the flow's endpoint. If the flow has ended meanwhile,
// or is told only now that its endpoint refused an earlier datagram, this one
// begins another.
func (u *udpPort) forward(client netip.AddrPort, datagram []byte) {
	for range 2 {
		f, err := u.flowOf(client)
		if err == nil {
			if _, err = f.server.Write(datagram); errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, net.ErrClosed) {
				u.lose(f)
				continue
			}
		}
		if err != nil {
			u.log.Debug("datagram dropped", "client", client.String(), "error", err.Error())
		}
		return
	}
}

// flowOf is a client's flow, which may be a new one.
func (u *udpPort) flowOf(client netip.AddrPort) (*flow, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if f := u.flows[client]; f != nil {
		f.heard = time.Now()
		return f, nil
	}
	source := u.choice.sourceFor(client.Addr())
	err := errNoEndpoints
	for _, endpoint := range u.choice.candidates(client.Addr()) {
		var server *net.UDPConn
		if server, err = dialUDP(source, endpoint); err != nil {
			continue
		}
		u.choice.chosen(client.Addr(), endpoint)
		f := &flow{client: client, endpoint: endpoint, server: server, heard: time.Now()}
		u.makeRoom()
		u.flows[client] = f
		u.running.Go(func() { u.answer(f) })
		return f, nil
	}
	return nil, err
}

// dialUDP connects, so that the kernel lets only the endpoint answer, and tells
// when there is none.
func dialUDP(source netip.Addr, endpoint netip.AddrPort) (*net.UDPConn, error) {
	var from *net.UDPAddr
	if source.IsValid() {
		from = net.UDPAddrFromAddrPort(netip.AddrPortFrom(source, 0))
	}
	return net.DialUDP("udp4", from, net.UDPAddrFromAddrPort(endpoint))
}

// makeRoom needs u.mu.
func (u *udpPort) makeRoom() {
	if len(u.flows) < u.limits.flows {
		return
	}
	var silent *flow
	for _, f := range u.flows {
		if silent == nil || f.heard.Before(silent.heard) {
			silent = f
		}
	}
	u.end(silent)
}

// answer passes an endpoint's answers back, from the node port, until the flow
// ends.
func (u *udpPort) answer(f *flow) {
	defer u.lose(f)
	raw, err := f.server.SyscallConn()
	if err != nil {
		return
	}
	for {
		expires := u.expires(f)
		if !time.Now().Before(expires) || f.server.SetReadDeadline(expires) != nil {
			return
		}
		err := receiveOne(raw, func(datagram []byte) {
			u.answered(f)
			_, _ = u.socket.WriteToUDPAddrPort(datagram, f.client) // One that cannot be sent is lost, as datagrams may be.
		})
		if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) { // refused, or closed
			return
		}
	}
}

func (u *udpPort) expires(f *flow) time.Time {
	u.mu.Lock()
	defer u.mu.Unlock()
	if f.assured {
		return f.heard.Add(u.limits.assured)
	}
	return f.heard.Add(u.limits.unreplied)
}

func (u *udpPort) answered(f *flow) {
	u.mu.Lock()
	defer u.mu.Unlock()
	f.heard, f.assured = time.Now(), true
}

func (u *udpPort) lose(f *flow) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.end(f)
}

func (u *udpPort) endAll() {
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, f := range u.flows {
		u.end(f)
	}
}

// end needs u.mu. The flow's goroutine notices, and so does who sends in it.
func (u *udpPort) end(f *flow) {
	if u.flows[f.client] == f {
		delete(u.flows, f.client)
	}
	_ = f.server.Close()
}

// maxDatagram is more than UDP can carry.
const maxDatagram = 1 << 16

// datagrams lends buffers to flows that have something to read: a thousand that
// wait have none.
var datagrams = sync.Pool{New: func() any { return new([maxDatagram]byte) }}

// receiveOne waits for a datagram on a socket and has it handled: not while the
// socket is being read, for which its Close would wait.
func receiveOne(raw syscall.RawConn, handle func([]byte)) error {
	var buffer *[maxDatagram]byte
	var n int
	var err error
	waitErr := raw.Read(func(fd uintptr) (done bool) {
		buffer = datagrams.Get().(*[maxDatagram]byte)
		n, err = unix.Read(int(fd), buffer[:])
		if err != nil {
			datagrams.Put(buffer)
		}
		return !errors.Is(err, unix.EAGAIN) // It does not block, and so is not interrupted.
	})
	if err := errors.Join(waitErr, err); err != nil {
		return err
	}
	defer datagrams.Put(buffer)
	handle(buffer[:n])
	return nil
}
