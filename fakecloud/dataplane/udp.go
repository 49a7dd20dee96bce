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
	// sessionIdle is how long neither side may be silent before a session ends.
	sessionIdle = 30 * time.Second
	// maxSessions bounds the sessions of one listener, each of which takes a
	// socket. Another one ends the one that has been silent longest: clients
	// that ask from a new port each time, as resolvers do, would else shut out
	// everybody for as long as their sessions idle.
	maxSessions = 1024
	// queue is how many bytes of datagrams may wait for us in a socket, if the
	// system lets us have so many: what does not fit is lost.
	queue = 1 << 20
)

// relay is a UDP listener at work: one goroutine reads what clients send, one
// per session what its target answers. Each takes all that is there at a time.
type relay struct {
	*listener
	socket *net.UDPConn
	back   outlet    // the socket
	began  time.Time // sessions' clocks count from here

	mu       sync.Mutex
	sessions map[netip.AddrPort]*session
}

// session is one client's traffic to one target.
type session struct {
	client   netip.AddrPort
	peer     peer // the client, as answers are sent to it
	target   target
	route    *route // has the target; only the relay's goroutine looks
	idle     time.Duration
	upstream *net.UDPConn
	forth    outlet       // upstream
	last     atomic.Int64 // when either side was heard, since the relay began
}

func newRelay(l *listener, socket *net.UDPConn) *relay {
	_ = socket.SetReadBuffer(queue)
	return &relay{listener: l, socket: socket, began: time.Now(), sessions: map[netip.AddrPort]*session{}}
}

// run relays until the socket is closed. Then the sessions end too: they
// could answer from no other.
func (r *relay) run() {
	defer r.endAll()
	in, err := newInbox(r.socket)
	if err == nil {
		r.back, err = outletOf(r.socket)
	}
	if err != nil {
		return // It is closed already.
	}
	defer in.drop()
	pause := readPause
	for {
		n, err := in.receive()
		switch {
		case err == nil:
			pause = readPause
			r.relay(in, n)
		case errors.Is(err, net.ErrClosed):
			return
		default:
			r.balancer.log.Warn("cannot receive datagrams", "err", err)
			if !r.balancer.rest(pause) {
				return
			}
			pause = min(2*pause, maxReadPause)
		}
	}
}

// relay sends datagrams on: those together that one client sent in a row.
func (r *relay) relay(in *inbox, n int) {
	now := r.route.Load()
	for first, last := 0, 0; first < n; first = last {
		client := in.from(first)
		for last = first + 1; last < n && in.from(last) == client; last++ { //nolint:revive // It only counts.
		}
		r.pass(now, client, in, first, last)
	}
}

// pass sends a client's datagrams on: in its session, or in a new one if there
// is none, or none whose target may be used.
func (r *relay) pass(now *route, client netip.AddrPort, in *inbox, first, last int) {
	if !now.admits(client.Addr().WithZone("")) {
		r.refused.Add(int64(last - first))
		return
	}
	r.mu.Lock()
	s := r.sessions[client]
	r.mu.Unlock()
	if s != nil && s.route != now && s.route.listener.TargetPort == now.listener.TargetPort && slices.Contains(now.targets, s.target) {
		s.route = now
	}
	if s != nil && s.route == now {
		first += r.send(s, in, first, last)
	}
	if first < last {
		r.open(now, client, in, first, last)
	}
}

// open begins a session with the first candidate that can be sent the datagrams.
func (r *relay) open(now *route, client netip.AddrPort, in *inbox, first, last int) {
	r.endOf(client)
	for t := range r.candidates(now, client.Addr()) {
		upstream, forth, err := dialUDP(now.at(t))
		if err != nil {
			r.balancer.log.Debug("cannot send datagrams to a target", "target", t.name, "at", now.at(t), "err", err)
			if blames(err) {
				t.failed.Add(1)
				r.refusals.note(t.endpoint)
			}
			if isShortage(err) {
				break
			}
			continue
		}
		if !r.claim(now) {
			_ = upstream.Close()
			r.refused.Add(int64(last - first))
			return
		}
		s := &session{
			client: client, peer: in.peer(first), target: t, route: now,
			idle: cmp.Or(now.idle, r.balancer.plane.sessionIdle), upstream: upstream, forth: forth,
		}
		r.add(s)
		r.balancer.running.Go(func() { r.answer(s) })
		if first += r.send(s, in, first, last); first == last {
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
	_ = conn.SetReadBuffer(queue)
	forth, err := outletOf(conn)
	return conn, forth, err
}

// add makes a session its client's, and makes room for it. It has been claimed.
func (r *relay) add(s *session) {
	r.connections.Add(1)
	s.target.begin()
	s.target.busy.Add(1)
	r.balancer.clients.begun(s.client.Addr(), s.target.name)
	s.last.Store(int64(time.Since(r.began)))
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.sessions) >= r.balancer.plane.maxSessions {
		var silent *session
		for _, other := range r.sessions {
			if silent == nil || other.last.Load() < silent.last.Load() {
				silent = other
			}
		}
		r.end(silent)
	}
	r.sessions[s.client] = s
}

// send passes a client's datagrams to its target and gives the number of those
// that are done with; fewer than all if that ended the session. One that cannot
// be sent, as it is too large say, is dropped.
func (r *relay) send(s *session, in *inbox, first, last int) (done int) {
	for first+done < last {
		n, err := in.send(s.forth, nil, first+done, last)
		s.last.Store(int64(time.Since(r.began)))
		bytes := in.size(first+done, first+done+n)
		r.in.Add(bytes)
		s.target.in.Add(bytes)
		done += n
		switch {
		case err == nil:
		case blames(err), errors.Is(err, net.ErrClosed):
			r.lose(s, err)
			return done
		default:
			r.failed.Add(1)
			done++
		}
	}
	return done
}

// answer passes a session's answers back, from the balancer's address, until
// the session ends.
func (r *relay) answer(s *session) {
	in, err := newInbox(s.upstream)
	if err != nil {
		return // It is closed already.
	}
	defer in.drop()
	for wait := s.idle; wait > 0; wait = s.idle - (time.Since(r.began) - time.Duration(s.last.Load())) {
		_ = s.upstream.SetReadDeadline(time.Now().Add(wait))
		err := r.copyBack(s, in)
		in.drop() // Before anything is waited for.
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			r.lose(s, err)
			return
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.end(s)
}

func (r *relay) copyBack(s *session, in *inbox) error {
	for {
		n, err := in.receive()
		if err != nil {
			return err
		}
		s.last.Store(int64(time.Since(r.began)))
		for first := 0; first < n; first++ { // One that cannot be sent is lost, as datagrams may be.
			sent, _ := in.send(r.back, &s.peer, first, n)
			bytes := in.size(first, first+sent)
			r.out.Add(bytes)
			s.target.out.Add(bytes)
			first += sent
		}
	}
}

// lose ends a session whose socket failed: the target, or the way there,
// refused a datagram, unless the session had been ended before.
func (r *relay) lose(s *session, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.sessions[s.client] == s && blames(err) {
		r.balancer.log.Debug("a target does not take datagrams", "target", s.target.name, "at", s.upstream.RemoteAddr(), "err", err)
		r.broken.Add(1)
		s.target.broken.Add(1)
		s.target.failed.Add(1)
		s.target.doubt()
		r.refusals.note(s.target.endpoint)
	}
	r.end(s)
}

// endOf ends a client's session, if it has one.
func (r *relay) endOf(client netip.AddrPort) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if s := r.sessions[client]; s != nil {
		r.end(s)
	}
}

// end ends a session, once; its goroutine notices. The caller holds mu.
func (r *relay) end(s *session) {
	if r.sessions[s.client] != s {
		return
	}
	delete(r.sessions, s.client)
	_ = s.upstream.Close()
	r.active.Add(-1)
	s.target.active.Add(-1)
	s.target.busy.Add(-1)
	r.balancer.clients.ended(s.client.Addr(), s.target.name)
}

func (r *relay) endAll() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, s := range r.sessions {
		r.end(s)
	}
}
