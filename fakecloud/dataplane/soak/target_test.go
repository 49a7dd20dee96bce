package soak

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
	// clientEnds: the client sends its request and closes its direction. Its end, and
	// the balancer's end towards the target, stay in TIME_WAIT.
	clientEnds ending = iota
	// targetEnds: the target closes when it has answered. Its end, and the balancer's
	// end towards the client, stay in TIME_WAIT.
	targetEnds
	// clientResets: the client resets the connection when it has the whole answer. No
	// end stays in TIME_WAIT. Most connections end like this: a million in TIME_WAIT,
	// which lasts a minute, would load the kernel and not the balancer.
	clientResets
)

// headerSize is the size of a request's header: how the connection ends, and how many bytes
// follow.
const headerSize = 1 + 4

// targetLife is a life of a target, from its start to its crash.
type targetLife struct {
	name    string
	crashed atomic.Bool // or is about to
}

func (l *targetLife) String() string {
	if l == nil {
		return "a target that did not say its name"
	}
	return "target " + l.name
}

// targetLives are all lives of all targets, by number. A target first sends the number of its life
// on each connection.
type targetLives struct {
	mu  sync.Mutex
	all []*targetLife
}

func (l *targetLives) beginLife(name string) (uint32, *targetLife) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = append(l.all, &targetLife{name: name})
	return uint32(len(l.all) - 1), l.all[len(l.all)-1]
}

// byNumber returns the life with that number, or nil.
func (l *targetLives) byNumber(number uint32) *targetLife {
	l.mu.Lock()
	defer l.mu.Unlock()
	if int(number) >= len(l.all) {
		return nil
	}
	return l.all[number]
}

// target echoes on TCP and UDP, on the same ports in each of its lives.
type target struct {
	backend  cloud.Backend
	lives    *targetLives
	tcp, udp int // 0 before the first life

	life     *targetLife
	listener *net.TCPListener
	socket   *net.UDPConn
	running  sync.WaitGroup

	mu    sync.Mutex
	conns map[*net.TCPConn]bool // nil while it is dead
}

func newTarget(l *targetLives, i int, address netip.Addr, tcp, udp int) *target {
	return &target{
		backend: cloud.Backend{Target: fmt.Sprintf("i-%d", i), Address: address}, lives: l, tcp: tcp, udp: udp,
	}
}

// startLife starts the target, in a new life.
func (t *target) startLife() (err error) {
	if t.listener, err = net.ListenTCP("tcp4", &net.TCPAddr{IP: t.backend.Address.AsSlice(), Port: t.tcp}); err != nil {
		return err
	}
	if t.socket, err = net.ListenUDP("udp4", &net.UDPAddr{IP: t.backend.Address.AsSlice(), Port: t.udp}); err != nil {
		return err
	}
	_ = t.socket.SetReadBuffer(1 << 20) // For the datagrams of a whole session group, if the system allows.
	t.tcp, t.udp = t.listener.Addr().(*net.TCPAddr).Port, t.socket.LocalAddr().(*net.UDPAddr).Port
	var number uint32
	number, t.life = t.lives.beginLife(t.backend.Target)
	t.mu.Lock()
	t.conns = map[*net.TCPConn]bool{}
	t.mu.Unlock()
	listener, socket := t.listener, t.socket
	t.running.Go(func() { t.acceptConnections(listener, number) })
	t.running.Go(func() { echoDatagrams(socket) })
	return nil
}

// crash ends the life of the target, resets its connections, and waits until its goroutines have
// ended.
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

func (t *target) acceptConnections(listener *net.TCPListener, number uint32) {
	for {
		c, err := listener.AcceptTCP()
		if err != nil {
			return
		}
		t.running.Go(func() { t.serveRequest(c, number) })
	}
}

// serveRequest answers one request with the same bytes. It reports no errors: the client does.
func (t *target) serveRequest(c *net.TCPConn, number uint32) {
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
			return // The client gets no answer, and reports that.
		}
	}
	if _, err := c.Write(body); err != nil || ending(header[0]) != clientResets {
		return
	}
	_, _ = c.Read(header[:]) // Until the client resets it.
}

// echoDatagrams answers each datagram with the same bytes.
func echoDatagrams(socket *net.UDPConn) {
	buffer := make([]byte, 64<<10)
	for {
		n, from, err := socket.ReadFromUDPAddrPort(buffer)
		if err != nil {
			return
		}
		_, _ = socket.WriteToUDPAddrPort(buffer[:n], from)
	}
}
