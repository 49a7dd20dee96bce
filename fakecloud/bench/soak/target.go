package main

import (
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"

	"github.com/ccmlab/ccmlab/fakecloud/cloud"
)

// ending says which side ends a connection first.
type ending byte

const (
	// clientEnds: the client says all and ends its direction. Its side, and the
	// balancer's towards the target, are left in TIME_WAIT.
	clientEnds ending = iota
	// targetEnds: the target ends when it has answered. Its side, and the
	// balancer's towards the client, are left in TIME_WAIT.
	targetEnds
	// clientResets: the client breaks the connection when it has the whole
	// answer. Nobody is left in TIME_WAIT. Most end like this: a million others
	// in the minute that TIME_WAIT lasts would be the kernel's soak, not ours.
	clientResets
)

// header begins a request: how it ends, and how many bytes follow.
const headerSize = 1 + 4

// life is a target from its start to its crash.
type life struct {
	name    string
	crashed atomic.Bool // or is about to
}

func (l *life) String() string {
	if l == nil {
		return "a target that did not say its name"
	}
	return "target " + l.name
}

// lives are all there ever were, by number: a connection's target says its own
// first of all.
type lives struct {
	mu  sync.Mutex
	all []*life
}

func (l *lives) begin(name string) (uint32, *life) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = append(l.all, &life{name: name})
	return uint32(len(l.all) - 1), l.all[len(l.all)-1]
}

// of gives a life by its number; nil if there is none.
func (l *lives) of(number uint32) *life {
	l.mu.Lock()
	defer l.mu.Unlock()
	if int(number) >= len(l.all) {
		return nil
	}
	return l.all[number]
}

// target answers on TCP and UDP, at the same ports in each of its lives.
type target struct {
	backend  cloud.Backend
	lives    *lives
	tcp, udp int // 0 before the first life

	life     *life
	listener *net.TCPListener
	socket   *net.UDPConn
	running  sync.WaitGroup

	mu    sync.Mutex
	conns map[*net.TCPConn]bool // nil while it is dead
}

func newTarget(l *lives, i int, address netip.Addr, tcp, udp int) *target {
	return &target{backend: cloud.Backend{Target: fmt.Sprintf("i-%d", i), Address: address}, lives: l, tcp: tcp, udp: udp}
}

// start begins a life.
func (t *target) start() (err error) {
	if t.listener, err = net.ListenTCP("tcp4", &net.TCPAddr{IP: t.backend.Address.AsSlice(), Port: t.tcp}); err != nil {
		return err
	}
	if t.socket, err = net.ListenUDP("udp4", &net.UDPAddr{IP: t.backend.Address.AsSlice(), Port: t.udp}); err != nil {
		return err
	}
	_ = t.socket.SetReadBuffer(1 << 20) // For what all of a crowd say at once, if the system allows.
	t.tcp, t.udp = t.listener.Addr().(*net.TCPAddr).Port, t.socket.LocalAddr().(*net.UDPAddr).Port
	var number uint32
	number, t.life = t.lives.begin(t.backend.Target)
	t.mu.Lock()
	t.conns = map[*net.TCPConn]bool{}
	t.mu.Unlock()
	listener, socket := t.listener, t.socket
	t.running.Go(func() { t.accept(listener, number) })
	t.running.Go(func() { mirror(socket) })
	return nil
}

// crash ends a life, its connections with it, and waits until all is over.
func (t *target) crash() {
	t.life.crashed.Store(true)
	_ = t.listener.Close()
	_ = t.socket.Close()
	t.mu.Lock()
	for c := range t.conns {
		_ = c.SetLinger(0)
		_ = c.Close()
	}
	t.conns = nil
	t.mu.Unlock()
	t.running.Wait()
}

func (t *target) accept(listener *net.TCPListener, number uint32) {
	for {
		c, err := listener.AcceptTCP()
		if err != nil {
			return
		}
		t.running.Go(func() { t.serve(c, number) })
	}
}

// serve answers one request with the same bytes. What goes wrong is the
// client's to judge.
func (t *target) serve(c *net.TCPConn, number uint32) {
	defer func() { _ = c.Close() }()
	t.mu.Lock()
	dead := t.conns == nil
	if dead {
		_ = c.SetLinger(0)
	} else {
		t.conns[c] = true
	}
	t.mu.Unlock()
	if dead {
		return
	}
	defer func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		delete(t.conns, c)
	}()
	var header [headerSize]byte
	if _, err := c.Write(binary.BigEndian.AppendUint32(nil, number)); err != nil {
		return
	}
	if _, err := io.ReadFull(c, header[:]); err != nil {
		return
	}
	body := make([]byte, min(binary.BigEndian.Uint32(header[1:]), maxBody))
	if _, err := io.ReadFull(c, body); err != nil {
		return
	}
	if ending(header[0]) == clientEnds {
		if n, err := io.Copy(io.Discard, c); n != 0 || err != nil {
			return // The client gets no answer, and tells.
		}
	}
	if _, err := c.Write(body); err != nil || ending(header[0]) != clientResets {
		return
	}
	_, _ = c.Read(header[:]) // Until the client breaks it.
}

// mirror answers each datagram with the same.
func mirror(socket *net.UDPConn) {
	buffer := make([]byte, 64<<10)
	for {
		n, from, err := socket.ReadFromUDPAddrPort(buffer)
		if err != nil {
			return
		}
		_, _ = socket.WriteToUDPAddrPort(buffer[:n], from)
	}
}
