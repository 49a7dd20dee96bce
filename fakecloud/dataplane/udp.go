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
)

// relay is a running UDP listener. One goroutine receives what the clients send, and one
// for each session receives what its target answers. Each receives all datagrams that
// are there at a time.
type relay struct {
	*listener
	socket       *net.UDPConn
	clientOutlet outlet    // socket, to send answers through
	start        time.Time // what session.lastActivity counts from

	mu       sync.Mutex
	sessions map[netip.AddrPort]*session
}

// session is one client's traffic to one target.
type session struct {
	client       netip.AddrPort
	peer         peer // the client, to send answers to
	target       target
	route        *route // contains target; used by the relay's goroutine only
	idleTimeout  time.Duration
	upstream     *net.UDPConn
	targetOutlet outlet       // upstream, to send through
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
	in, err := newInbox(r.socket)
	if err == nil {
		r.clientOutlet, err = outletOf(r.socket)
	}
	if err != nil {
		return // It is closed already.
	}
	defer in.releaseBatch()
	pause := retryPause
	for {
		n, err := in.receiveBatch()
		switch {
		case err == nil:
			pause = retryPause
			r.forwardDatagrams(in, n)
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

// forwardDatagrams forwards the n datagrams received: those that one client sent in a row
// together.
func (r *relay) forwardDatagrams(in *inbox, n int) {
	current := r.route.Load()
	for first, last := 0, 0; first < n; first = last {
		client := in.senderAddress(first)
		for last = first + 1; last < n && in.senderAddress(last) == client; last++ { //nolint:revive // It only counts.
		}
		r.forwardFromClient(current, client, in, first, last)
	}
}

// forwardFromClient forwards the datagrams from first to before last, all of one client,
// in its session. If it has none, or its session's target may no longer be used, it opens
// a new session.
func (r *relay) forwardFromClient(current *route, client netip.AddrPort, in *inbox, first, last int) {
	if !current.allowsClient(client.Addr().WithZone("")) {
		r.refused.Add(int64(last - first))
		return
	}
	r.mu.Lock()
	s := r.sessions[client]
	r.mu.Unlock()
	if s != nil && s.route != current && s.route.listener.TargetPort == current.listener.TargetPort &&
		slices.Contains(current.targets, s.target) {
		s.route = current
	}
	if s != nil && s.route == current {
		first += r.sendToTarget(s, in, first, last)
	}
	if first < last {
		r.openSession(current, client, in, first, last)
	}
}

// openSession opens a session with the first candidate that the datagrams can be sent to.
func (r *relay) openSession(current *route, client netip.AddrPort, in *inbox, first, last int) {
	r.endSessionOf(client)
	for t := range r.candidatesFor(current, client.Addr()) {
		upstream, forth, err := dialUDP(current.targetAddress(t))
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
		if !r.claimConnection(current) {
			_ = upstream.Close()
			r.refused.Add(int64(last - first))
			return
		}
		s := &session{
			client: client, peer: in.senderPeer(first), target: t, route: current,
			idleTimeout: cmp.Or(current.idleTimeout, r.balancer.plane.sessionIdle), upstream: upstream,
			targetOutlet: forth,
		}
		r.addSession(s)
		r.balancer.goroutines.Go(func() { r.relayAnswers(s) })
		if first += r.sendToTarget(s, in, first, last); first == last {
			return
		}
	}
	r.failed.Add(int64(last - first))
}

func dialUDP(at netip.AddrPort) (*net.UDPConn, outlet, error) {
	conn, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(at))
	if err != nil {
		return nil, nil, err
	}
	_ = conn.SetReadBuffer(receiveBufferSize)
	forth, err := outletOf(conn)
	return conn, forth, err
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

// sendToTarget sends the datagrams from first to before last to the session's target. It
// returns how many are done with: fewer than all if the session has ended. A datagram
// that cannot be sent, for example because it is too large, is dropped.
func (r *relay) sendToTarget(s *session, in *inbox, first, last int) (done int) {
	for first+done < last {
		n, err := in.sendDatagrams(s.targetOutlet, nil, first+done, last)
		s.lastActivity.Store(int64(time.Since(r.start)))
		bytes := in.totalBytes(first+done, first+done+n)
		r.bytesIn.Add(bytes)
		s.target.bytesIn.Add(bytes)
		done += n
		switch {
		case err == nil:
		case isTargetFailure(err), errors.Is(err, net.ErrClosed):
			r.endFailedSession(s, err)
			return done
		default:
			r.failed.Add(1)
			done++
		}
	}
	return done
}

// relayAnswers sends the target's answers to the client, from the balancer's address,
// until the session ends.
func (r *relay) relayAnswers(s *session) {
	in, err := newInbox(s.upstream)
	if err != nil {
		return // It is closed already.
	}
	defer in.releaseBatch()
	for wait := s.idleTimeout; wait > 0; wait = s.idleTimeout - (time.Since(r.start) - time.Duration(s.lastActivity.Load())) {
		_ = s.upstream.SetReadDeadline(time.Now().Add(wait))
		err := r.copyAnswers(s, in)
		in.releaseBatch() // Before waiting, so that others have it meanwhile.
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			r.endFailedSession(s, err)
			return
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.endSession(s)
}

func (r *relay) copyAnswers(s *session, in *inbox) error {
	for {
		n, err := in.receiveBatch()
		if err != nil {
			return err
		}
		s.lastActivity.Store(int64(time.Since(r.start)))
		for first := 0; first < n; first++ { // A datagram that cannot be sent is skipped.
			sent, _ := in.sendDatagrams(r.clientOutlet, &s.peer, first, n)
			bytes := in.totalBytes(first, first+sent)
			r.bytesOut.Add(bytes)
			s.target.bytesOut.Add(bytes)
			first += sent
		}
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
	r.active.Add(-1)
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
