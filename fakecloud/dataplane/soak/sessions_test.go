package soak

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// sendInterval is how often all sessions of a group send, so that the balancer
	// does not end them as idle.
	sendInterval = sessionIdle / 4
	// maxUnansweredRounds is how often in a row, for five seconds, all sessions may send
	// without any answer, before datagrams count as no longer forwarded.
	maxUnansweredRounds = 20
	// sendsAfterCrash is how often all sessions send right after a crash, and so how
	// many datagrams each may lose by it: the first are refused, for many sessions at
	// once, while the next are on their way to the dead target.
	sendsAfterCrash = 3
	// groupDatagramSize is the size of a datagram: small, so that those of all sessions
	// fit into the balancer's socket.
	groupDatagramSize = 64
)

// sessionGroup is a group of sessions of datagrams that stay open, so that a crash of a target
// meets many at once.
type sessionGroup struct {
	*soak
	members []*groupSession
	running sync.WaitGroup

	mu sync.Mutex // held while sending
}

// groupSession is one session of a group.
type groupSession struct {
	conn           *net.UDPConn
	datagram       [groupDatagramSize]byte // begins with the numbers of the session and the datagram
	sent, answered atomic.Uint64           // numbers of the last datagram sent and answered
}

// openSessionGroup opens the sockets of a group, and starts to receive answers.
func (s *soak) openSessionGroup() (*sessionGroup, error) {
	g := &sessionGroup{soak: s}
	random := rand.New(rand.NewPCG(s.seed, 1<<32))
	for i := range s.sessions {
		from := net.UDPAddrFromAddrPort(netip.AddrPortFrom(clientAddress(i%maxClients), 0))
		conn, err := net.DialUDP("udp4", from, net.UDPAddrFromAddrPort(s.front))
		if err != nil {
			g.closeSessions()
			return nil, err
		}
		m := &groupSession{conn: conn}
		for at := 0; at < groupDatagramSize; at += 8 {
			binary.BigEndian.PutUint64(m.datagram[at:], random.Uint64())
		}
		binary.BigEndian.PutUint32(m.datagram[:], uint32(i))
		g.members = append(g.members, m)
		g.running.Go(func() { g.receiveAnswers(m) })
	}
	return g, nil
}

// closeSessions closes the sockets, and waits until nothing is received any more.
func (g *sessionGroup) closeSessions() {
	for _, m := range g.members {
		_ = m.conn.Close()
	}
	g.running.Wait()
}

// sendAll sends a datagram in each session.
func (g *sessionGroup) sendAll() {
	g.mu.Lock()
	defer g.mu.Unlock()
	for i, m := range g.members {
		number := m.sent.Add(1)
		binary.BigEndian.PutUint64(m.datagram[4:], number)
		g.groupSent.Add(1)
		if _, err := m.conn.Write(m.datagram[:]); err != nil {
			g.recordFailure(fmt.Errorf("datagram %d of session %d: %w", number, i, err))
		}
	}
}

// receiveAnswers receives the answers of a session until it is closed. Late answers count too.
func (g *sessionGroup) receiveAnswers(m *groupSession) {
	var answer [2 * groupDatagramSize]byte
	for {
		n, err := m.conn.Read(answer[:])
		switch {
		case errors.Is(err, net.ErrClosed):
			return
		case err != nil:
			g.recordFailure(fmt.Errorf("a session's answers: %w", err))
			return
		}
		number, err := m.parseAnswer(answer[:n])
		if err != nil {
			g.recordFailure(err)
			continue
		}
		g.groupAnswered.Add(1)
		m.answered.Store(max(m.answered.Load(), number))
	}
}

// parseAnswer checks an answer and returns the number of the datagram answered.
func (m *groupSession) parseAnswer(answer []byte) (number uint64, err error) {
	const head = 4 + 8
	if len(answer) == groupDatagramSize {
		number = binary.BigEndian.Uint64(answer[4:head])
	}
	if number == 0 || number > m.sent.Load() || !bytes.Equal(answer[:4], m.datagram[:4]) ||
		!bytes.Equal(answer[head:], m.datagram[head:]) {
		return 0, fmt.Errorf("session %d was answered with %.60q", binary.BigEndian.Uint32(m.datagram[:]), answer)
	}
	return number, nil
}

// establishSessions sends in all sessions until most were answered, which takes several tries on
// a busy machine. It returns how many sessions are open for certain.
func (g *sessionGroup) establishSessions() (open int64) {
	for deadline := time.Now().Add(clientTimeout); ; {
		if open = g.countAnswered(); 2*open >= int64(len(g.members)) || time.Now().After(deadline) {
			return open
		}
	}
}

// countAnswered sends in all sessions and waits lossAfter for the answers. It returns how many
// came.
func (g *sessionGroup) countAnswered() (open int64) {
	g.sendAll()
	asked := make([]uint64, len(g.members))
	for i, m := range g.members {
		asked[i] = m.sent.Load()
	}
	for deadline := time.Now().Add(lossAfter); ; time.Sleep(time.Millisecond) {
		open = 0
		for i, m := range g.members {
			if m.answered.Load() >= asked[i] {
				open++
			}
		}
		if int(open) == len(g.members) || time.Now().After(deadline) {
			return open
		}
	}
}

// crashWithSessions crashes a target while the sessions are open, and then sends in all of them,
// so that many datagrams go to the dead target.
func (g *sessionGroup) crashWithSessions(crash func()) {
	if open := g.establishSessions(); g.crashes.Load() == 0 || open < g.fewestOpen.Load() {
		g.fewestOpen.Store(open)
	}
	g.crashes.Add(1)
	crash()
	g.crashes.Add(1)
	for range sendsAfterCrash {
		g.sendAll()
	}
}

// keepSessionsAlive sends in all sessions at each tick until ctx ends. It fails if there has been
// no answer for maxUnansweredRounds: a target is always alive and in force.
func (g *sessionGroup) keepSessionsAlive(ctx context.Context, tick <-chan time.Time) error {
	heard, unansweredRounds := g.groupAnswered.Load(), 0
	for len(g.members) > 0 {
		select {
		case <-ctx.Done():
			return nil
		case <-tick:
		}
		now := g.groupAnswered.Load()
		if unansweredRounds++; now != heard {
			heard, unansweredRounds = now, 0
		}
		if unansweredRounds > maxUnansweredRounds {
			return fmt.Errorf(
				"no datagram has been answered for %v, though a target lived all the while",
				maxUnansweredRounds*sendInterval,
			)
		}
		g.sendAll()
	}
	return nil
}
