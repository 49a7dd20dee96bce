// This file answers: what happens to one datagram?

package dataplane

import (
	"cmp"
	"errors"
	"maps"
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
	// refusalMemory is how long a target that refused a datagram comes last. TCP
	// learns by dialling who does not answer; here only a loss tells.
	refusalMemory = 10 * time.Second
)

// buffers hold one datagram of any size.
var buffers = sync.Pool{New: func() any { return new([64 << 10]byte) }}

// relay is a UDP listener at work: one goroutine reads what clients send, one
// per session what its target answers.
type relay struct {
	*listener
	socket *net.UDPConn
	began  time.Time // sessions' clocks count from here

	mu       sync.Mutex
	sessions map[netip.AddrPort]*session
	refusals map[string]time.Time // by target
}

// session is one client's traffic to one target.
type session struct {
	client   netip.AddrPort
	target   target
	route    *route // has the target; only the relay's goroutine looks
	idle     time.Duration
	upstream *net.UDPConn
	last     atomic.Int64 // when either side was heard, since the relay began
}

func newRelay(l *listener, socket *net.UDPConn) *relay {
	return &relay{listener: l, socket: socket, began: time.Now(), refusals: map[string]time.Time{}, sessions: map[netip.AddrPort]*session{}}
}

// run relays until the socket is closed. Then the sessions end too: they
// could answer from no other.
func (r *relay) run() {
	defer r.endAll()
	buffer := buffers.Get().(*[64 << 10]byte)
	defer buffers.Put(buffer)
	pause := readPause
	for {
		n, client, err := r.socket.ReadFromUDPAddrPort(buffer[:])
		switch {
		case err == nil:
			pause = readPause
			r.relay(client, buffer[:n])
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

// relay sends a datagram on: in its client's session, or in a new one if there
// is none, or none whose target may be used.
func (r *relay) relay(client netip.AddrPort, datagram []byte) {
	now := r.route.Load()
	if !now.admits(client.Addr()) {
		r.refused.Add(1)
		return
	}
	r.mu.Lock()
	s := r.sessions[client]
	r.mu.Unlock()
	if s != nil && s.route != now && slices.Contains(now.targets, s.target) {
		s.route = now
	}
	if s == nil && r.full(now) {
		r.refused.Add(1)
		return
	}
	if s == nil || s.route != now || !r.send(s, datagram) {
		r.begin(now, client, datagram)
	}
}

// full tells whether the listener has as many sessions as it may.
func (r *relay) full(now *route) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	limit := now.listener.ConnectionLimit
	return limit > 0 && len(r.sessions) >= limit
}

// begin opens a session to the first candidate that can be sent the datagram.
func (r *relay) begin(now *route, client netip.AddrPort, datagram []byte) {
	r.connections.Add(1)
	for _, t := range r.likely(r.candidates(now, client.Addr())) {
		upstream, err := net.DialUDP("udp4", nil, net.UDPAddrFromAddrPort(t.at))
		if err != nil {
			r.balancer.log.Debug("cannot send datagrams to a target", "target", t.name, "at", t.at, "err", err)
			continue
		}
		s := &session{client: client, target: t, route: now, idle: cmp.Or(now.idle, r.balancer.plane.sessionIdle), upstream: upstream}
		r.add(s)
		r.balancer.clients.remember(client.Addr(), t.name)
		r.balancer.running.Go(func() { r.answer(s) })
		if r.send(s, datagram) {
			return
		}
	}
	r.failed.Add(1)
}

// likely moves those to the end that refused a datagram not long ago.
func (r *relay) likely(candidates []target) []target {
	r.mu.Lock()
	defer r.mu.Unlock()
	maps.DeleteFunc(r.refusals, func(_ string, at time.Time) bool { return time.Since(at) >= refusalMemory })
	slices.SortStableFunc(candidates, func(a, b target) int { return r.refusals[a.name].Compare(r.refusals[b.name]) })
	return candidates
}

// add makes a session the client's only one, and makes room for it.
func (r *relay) add(s *session) {
	r.active.Add(1)
	r.balancer.load.begin(s.target.name)
	s.last.Store(int64(time.Since(r.began)))
	r.mu.Lock()
	defer r.mu.Unlock()
	if old := r.sessions[s.client]; old != nil {
		r.end(old)
	}
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

// send passes a client's datagram to its target; false if that ended the
// session.
func (r *relay) send(s *session, datagram []byte) bool {
	if _, err := s.upstream.Write(datagram); err != nil {
		r.lose(s, err)
		return false
	}
	s.last.Store(int64(time.Since(r.began)))
	r.in.Add(int64(len(datagram)))
	return true
}

// answer passes a session's answers back, from the balancer's address, until
// the session ends.
func (r *relay) answer(s *session) {
	defer r.active.Add(-1)
	defer r.balancer.load.end(s.target.name)
	defer r.balancer.clients.ended(s.client.Addr(), s.target.name)
	buffer := buffers.Get().(*[64 << 10]byte)
	defer buffers.Put(buffer)
	for wait := s.idle; wait > 0; wait = s.idle - (time.Since(r.began) - time.Duration(s.last.Load())) {
		_ = s.upstream.SetReadDeadline(time.Now().Add(wait))
		if err := r.copyBack(s, buffer[:]); !errors.Is(err, os.ErrDeadlineExceeded) {
			r.lose(s, err)
			return
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.end(s)
}

func (r *relay) copyBack(s *session, buffer []byte) error {
	for {
		n, err := s.upstream.Read(buffer)
		if err != nil {
			return err
		}
		s.last.Store(int64(time.Since(r.began)))
		if _, err := r.socket.WriteToUDPAddrPort(buffer[:n], s.client); err == nil { // Datagrams may get lost.
			r.out.Add(int64(n))
		}
	}
}

// lose ends a session whose socket failed: the target, or the way there,
// refused a datagram, unless the session had been ended before.
func (r *relay) lose(s *session, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !errors.Is(err, net.ErrClosed) {
		r.balancer.log.Debug("a target does not take datagrams", "target", s.target.name, "at", s.target.at, "err", err)
		r.refusals[s.target.name] = time.Now()
	}
	r.end(s)
}

// end ends a session; its goroutine notices. The caller holds mu.
func (r *relay) end(s *session) {
	_ = s.upstream.Close()
	if r.sessions[s.client] == s {
		delete(r.sessions, s.client)
	}
}

func (r *relay) endAll() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, s := range r.sessions {
		r.end(s)
	}
}
