package dataplane

import (
	"cmp"
	"errors"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

const (
	// sessionIdle is how long both sides may be silent before a session ends.
	sessionIdle = 30 * time.Second
	// maxSessions bounds the sessions of one listener, each of which takes a
	// socket. A further session ends the one that has been silent longest.
	// Otherwise clients that use a new port for each request, as resolvers do,
	// would shut out everybody until their sessions time out.
	maxSessions = 1024
	// receiveBufferSize is how many bytes of datagrams may wait in a socket, if the
	// system allows so many. Datagrams that do not fit are lost.
	receiveBufferSize = 1 << 20
	// maxDatagram is the size of a buffer that holds any datagram.
	maxDatagram = 64 << 10
)

// answerBuffers are shared by the sessions of all listeners. A silent session holds none.
var answerBuffers = sync.Pool{New: func() any { return new([maxDatagram]byte) }}

// relay is a running UDP listener. One goroutine receives what the clients send, and one
// for each session receives what its target answers.
type relay struct {
	*listener
	socket *net.UDPConn
	start  time.Time // what session.lastActivity counts from

	mu       sync.Mutex
	sessions map[netip.AddrPort]*session
}

// session is one client's traffic to one target.
type session struct {
	client       netip.AddrPort
	target       target
	route        *route // contains target; used by the relay's goroutine only
	idleTimeout  time.Duration
	upstream     *net.UDPConn
	lastActivity atomic.Int64 // of either side, in nanoseconds after relay.start
}

func newRelay(l *listener, socket *net.UDPConn) *relay {
	_ = socket.SetReadBuffer(receiveBufferSize)
	return &relay{listener: l, socket: socket, start: time.Now(), sessions: map[netip.AddrPort]*session{}}
}

// run relays until the socket is closed. Then the sessions end too: without the socket,
// answers cannot be sent from the balancer's address.
func (r *relay) run() {
	defer r.endAllSessions()
	buffer := make([]byte, maxDatagram)
	pause := retryPause
	for {
		n, client, err := r.socket.ReadFromUDPAddrPort(buffer)
		switch {
		case err == nil:
			pause = retryPause
			r.forwardDatagram(client, buffer[:n])
		case errors.Is(err, net.ErrClosed):
			return
		default:
			r.balancer.log.Warn("cannot receive datagrams", "err", err)
			if !r.balancer.waitBeforeRetry(pause) {
				return
			}
			pause = min(2*pause, maxRetryPause)
		}
	}
}

// forwardDatagram forwards a datagram in its client's session. If the client has none, or
// its session's target may no longer be used, it opens a new session.
func (r *relay) forwardDatagram(client netip.AddrPort, datagram []byte) {
	current := r.route.Load()
	if !current.allowsClient(client.Addr().WithZone("")) {
		r.refused.Add(1)
		return
	}
	r.mu.Lock()
	s := r.sessions[client]
	r.mu.Unlock()
	if s != nil && s.route != current && s.route.listener.TargetPort == current.listener.TargetPort &&
		slices.Contains(current.targets, s.target) {
		s.route = current
	}
	if s == nil || s.route != current || !r.sendToTarget(s, datagram) {
		r.openSession(current, client, datagram)
	}
}

// openSession opens a session with the first candidate that the datagram can be sent to.
func (r *relay) openSession(current *route, client netip.AddrPort, datagram []byte) {
	r.endSessionOf(client)
	for t := range r.candidatesFor(current, client.Addr(), "") {
		upstream, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(current.targetAddress(t)))
		if err != nil {
			r.balancer.log.Debug(
				"cannot send datagrams to a target", "target", t.name, "at", current.targetAddress(t), "err", err,
			)
			if isTargetFailure(err) {
				t.failed.Add(1)
				r.refusals.recordRefusal(t.endpoint)
			}
			if isShortage(err) {
				break
			}
			continue
		}
		if r.balancer.plane.isInReserve(upstream) || !r.claimConnection(current) {
			_ = upstream.Close()
			r.refused.Add(1)
			return
		}
		_ = upstream.SetReadBuffer(receiveBufferSize)
		s := &session{
			client: client, target: t, route: current,
			idleTimeout: cmp.Or(current.idleTimeout, r.balancer.plane.sessionIdle), upstream: upstream,
		}
		r.addSession(s)
		r.balancer.goroutines.Go(func() { r.relayAnswers(s) })
		if r.sendToTarget(s, datagram) {
			return
		}
	}
	r.failed.Add(1)
}

// addSession makes s the session of its client. If there are maxSessions, it ends the one
// that has been silent longest. claimConnection has counted s already.
func (r *relay) addSession(s *session) {
	r.connections.Add(1)
	s.target.countConnection()
	s.target.openConnections.Add(1)
	r.balancer.affinity.addConnection(s.client.Addr(), s.target.name)
	s.lastActivity.Store(int64(time.Since(r.start)))
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.sessions) >= r.balancer.plane.maxSessions {
		var silent *session
		for _, other := range r.sessions {
			if silent == nil || other.lastActivity.Load() < silent.lastActivity.Load() {
				silent = other
			}
		}
		r.endSession(silent)
	}
	r.sessions[s.client] = s
}

// sendToTarget sends a datagram to the session's target. It returns false if the session
// has ended. A datagram that cannot be sent, for example because it is too large, is
// dropped.
func (r *relay) sendToTarget(s *session, datagram []byte) bool {
	n, err := s.upstream.Write(datagram)
	s.lastActivity.Store(int64(time.Since(r.start)))
	switch {
	case err == nil:
		r.bytesIn.Add(int64(n))
		s.target.bytesIn.Add(int64(n))
	case isTargetFailure(err), errors.Is(err, net.ErrClosed):
		r.endFailedSession(s, err)
		return false
	default:
		r.failed.Add(1)
	}
	return true
}

// relayAnswers sends the target's answers to the client, from the balancer's address,
// until the session ends.
func (r *relay) relayAnswers(s *session) {
	for wait := s.idleTimeout; wait > 0; wait = s.idleTimeout - (time.Since(r.start) - time.Duration(s.lastActivity.Load())) {
		_ = s.upstream.SetReadDeadline(time.Now().Add(wait))
		if err := r.copyAnswers(s); !errors.Is(err, os.ErrDeadlineExceeded) {
			r.endFailedSession(s, err)
			return
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.endSession(s)
}

// copyAnswers sends answers until one cannot be received. An answer that cannot be sent
// is dropped.
func (r *relay) copyAnswers(s *session) error {
	raw, err := s.upstream.SyscallConn()
	if err != nil {
		return err
	}
	var buffer *[maxDatagram]byte
	var received int
	// receive returns false if there is no datagram, so that raw waits for one.
	receive := func(fd uintptr) bool {
		buffer = answerBuffers.Get().(*[maxDatagram]byte)
		if received, err = syscall.Read(int(fd), buffer[:]); err != nil {
			answerBuffers.Put(buffer)
		}
		return !errors.Is(err, syscall.EAGAIN) // No EINTR: the socket does not block.
	}
	for {
		if failed := raw.Read(receive); failed != nil {
			return failed
		}
		if err != nil {
			return err
		}
		s.lastActivity.Store(int64(time.Since(r.start)))
		sent, _ := r.socket.WriteToUDPAddrPort(buffer[:received], s.client)
		answerBuffers.Put(buffer)
		r.bytesOut.Add(int64(sent))
		s.target.bytesOut.Add(int64(sent))
	}
}

// endFailedSession ends a session whose socket failed with err. Unless the session had
// been ended before, that counts as a failure of the target.
func (r *relay) endFailedSession(s *session, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.sessions[s.client] == s && isTargetFailure(err) {
		r.balancer.log.Debug(
			"a target does not take datagrams", "target", s.target.name, "at", s.upstream.RemoteAddr(), "err", err,
		)
		r.broken.Add(1)
		s.target.broken.Add(1)
		s.target.failed.Add(1)
		s.target.requestCheck()
		r.refusals.recordRefusal(s.target.endpoint)
	}
	r.endSession(s)
}

// endSessionOf ends the client's session, if it has one.
func (r *relay) endSessionOf(client netip.AddrPort) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if s := r.sessions[client]; s != nil {
		r.endSession(s)
	}
}

// endSession closes a session, unless that has been done; its goroutine then ends. The
// caller holds mu.
func (r *relay) endSession(s *session) {
	if r.sessions[s.client] != s {
		return
	}
	delete(r.sessions, s.client)
	_ = s.upstream.Close()
	r.releaseConnection()
	s.target.active.Add(-1)
	s.target.openConnections.Add(-1)
	r.balancer.affinity.removeConnection(s.client.Addr(), s.target.name)
}

func (r *relay) endAllSessions() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, s := range r.sessions {
		r.endSession(s)
	}
}
