package main

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
	// speakEvery is how often all of a crowd speak: before the balancer would end
	// their sessions.
	speakEvery = sessionIdle / 4
	// maxSilent: if all have spoken so often in a row, five seconds long, and
	// nobody was answered, datagrams flow no more.
	maxSilent = 20
	// lastWords is how often all speak at once after a crash, and so how many
	// datagrams each may lose with one: the first are refused, of many sessions at
	// once, while the next are on their way there.
	lastWords = 3
	// statement is how long a datagram is: short, so that those of all fit into
	// the socket of the balancer.
	statement = 64
)

// crowd are clients that each keep a session open, so that a target that
// crashes takes many along at once.
type crowd struct {
	*soak
	members []*member
	running sync.WaitGroup

	mu sync.Mutex // Who holds it speaks.
}

// member is one of a crowd.
type member struct {
	conn           *net.UDPConn
	says           [statement]byte // begins with its number and that of the datagram
	sent, answered atomic.Uint64   // the last datagram, by number
}

// gather has the crowd's sockets open, and answers taken.
func (s *soak) gather() (*crowd, error) {
	c := &crowd{soak: s}
	random := rand.New(rand.NewPCG(s.seed, 1<<32))
	for i := range s.sessions {
		from := net.UDPAddrFromAddrPort(netip.AddrPortFrom(clientAddress(i%maxClients), 0))
		conn, err := net.DialUDP("udp4", from, net.UDPAddrFromAddrPort(s.front))
		if err != nil {
			c.leave()
			return nil, err
		}
		m := &member{conn: conn}
		for at := 0; at < statement; at += 8 {
			binary.BigEndian.PutUint64(m.says[at:], random.Uint64())
		}
		binary.BigEndian.PutUint32(m.says[:], uint32(i))
		c.members = append(c.members, m)
		c.running.Go(func() { c.listen(m) })
	}
	return c, nil
}

// leave ends the crowd.
func (c *crowd) leave() {
	for _, m := range c.members {
		_ = m.conn.Close()
	}
	c.running.Wait()
}

// speak has all send a datagram.
func (c *crowd) speak() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, m := range c.members {
		number := m.sent.Add(1)
		binary.BigEndian.PutUint64(m.says[4:], number)
		c.spoken.Add(1)
		if _, err := m.conn.Write(m.says[:]); err != nil {
			c.fail(fmt.Errorf("datagram %d of session %d: %w", number, i, err))
		}
	}
}

// listen takes a member's answers. One that comes late is one all the same.
func (c *crowd) listen(m *member) {
	var answer [2 * statement]byte
	for {
		n, err := m.conn.Read(answer[:])
		switch {
		case errors.Is(err, net.ErrClosed):
			return
		case err != nil:
			c.fail(fmt.Errorf("a session's answers: %w", err))
			return
		}
		number, err := m.understand(answer[:n])
		if err != nil {
			c.fail(err)
			continue
		}
		c.heard.Add(1)
		m.answered.Store(max(m.answered.Load(), number))
	}
}

// understand gives the number of the datagram that was answered.
func (m *member) understand(answer []byte) (number uint64, err error) {
	const head = 4 + 8
	if len(answer) == statement {
		number = binary.BigEndian.Uint64(answer[4:head])
	}
	if number == 0 || number > m.sent.Load() || !bytes.Equal(answer[:4], m.says[:4]) || !bytes.Equal(answer[head:], m.says[head:]) {
		return 0, fmt.Errorf("session %d was answered with %.60q", binary.BigEndian.Uint32(m.says[:]), answer)
	}
	return number, nil
}

// settle has all speak until most were answered, which takes several tries where
// others keep the machine busy. It gives how many have a session for certain.
func (c *crowd) settle() (open int64) {
	for deadline := time.Now().Add(patience); ; {
		if open = c.ask(); 2*open >= int64(len(c.members)) || time.Now().After(deadline) {
			return open
		}
	}
}

// ask has all speak and waits for their answers, but not for one that is lost.
func (c *crowd) ask() (open int64) {
	c.speak()
	asked := make([]uint64, len(c.members))
	for i, m := range c.members {
		asked[i] = m.sent.Load()
	}
	for deadline := time.Now().Add(lossAfter); ; time.Sleep(time.Millisecond) {
		open = 0
		for i, m := range c.members {
			if m.answered.Load() >= asked[i] {
				open++
			}
		}
		if int(open) == len(c.members) || time.Now().After(deadline) {
			return open
		}
	}
}

// witness has a target crash while all have a session, and then speak, many of
// them to who is dead.
func (c *crowd) witness(crash func()) {
	if open := c.settle(); c.crashes.Load() == 0 || open < c.open.Load() {
		c.open.Store(open)
	}
	c.crashes.Add(1)
	crash()
	c.crashes.Add(1)
	for range lastWords {
		c.speak()
	}
}

// converse has all speak at each tick until ctx ends. It gives an error when
// nobody is answered any more: there always is a target in force that lives.
func (c *crowd) converse(ctx context.Context, tick <-chan time.Time) error {
	heard, silent := c.heard.Load(), 0
	for len(c.members) > 0 {
		select {
		case <-ctx.Done():
			return nil
		case <-tick:
		}
		now := c.heard.Load()
		if silent++; now != heard {
			heard, silent = now, 0
		}
		if silent > maxSilent {
			return fmt.Errorf("no datagram has been answered for %v, though a target lived all the while", maxSilent*speakEvery)
		}
		c.speak()
	}
	return nil
}
