// Package soak sends small connections, and datagrams beside them, through load balancers on loopback, while targets
// come, go and crash: some thousand in the tests, a million by `make soak`. It fails if a connection fails that no
// crash of its target explains, if more datagrams are lost than crashes explain, or if files, goroutines or memory are
// left over. It stops when its time is over, and says so if that was before all connections were made.
//
// Clients, balancers and targets share one process, so that everything left over is counted. Begin with TestSoak.
package soak

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/cloud"
	"github.com/ccmlab/ccmlab/fakecloud/dataplane"
)

const (
	targetCount = 5
	crashEvery  = 5 // changes of the targets in force
	maxBody     = 4096
	// ioTimeout is how long a connection may take before it counts as failed.
	ioTimeout = 20 * time.Second
	// lossAfter is how long a client waits until a datagram counts as lost.
	lossAfter = 500 * time.Millisecond
	// lostPerCrash is how many datagrams a session may lose by a crash: the first is refused, for many sessions at
	// once, while the next are on their way to the dead target.
	lostPerCrash = 3
	// sessionIdle is the idle timeout of sessions. It is short, because the soak waits until the last has ended.
	sessionIdle = 2 * time.Second
	// maxGrowth is how many bytes of memory may be left after all connections. A connection takes some hundred bytes in
	// its balancer while it is open: if one in ten leaked, a million would leave more.
	maxGrowth = 8 << 20
)

var (
	connections = flag.Int("connections", 3000, "how many connections to make, if -for allows")
	sessions    = flag.Int("sessions", 300, "how many sessions of datagrams to keep open; at most 1000")
	clients     = flag.Int("clients", 16, "how many clients connect at a time; at most 250")
	limit       = flag.Duration("for", time.Minute, "stop after so long, however many were made; that is no failure")
	seed        = flag.Uint64("seed", 1, "of the changes and of what is sent; their times differ all the same")
)

func TestSoak(t *testing.T) {
	before := measure(figures{})
	s := &soak{t: t, plane: dataplane.New(dataplane.Options{}), changeDue: make(chan struct{}, 1)}
	t.Cleanup(s.plane.Close)
	tcp, udp := 0, 0
	for i := range targetCount {
		s.targets[i] = &target{number: byte(i), address: ownAddress(121 + i), tcp: tcp, udp: udp}
		require.NoError(t, s.targets[i].start())
		tcp, udp = s.targets[i].tcp, s.targets[i].udp
	}
	free, err := net.ListenTCP("tcp4", &net.TCPAddr{IP: ownAddress(120).AsSlice()})
	require.NoError(t, err)
	s.front = free.Addr().(*net.TCPAddr).AddrPort()
	require.NoError(t, free.Close())
	require.NoError(t, s.apply(s.targets[:], 0))
	ctx, cancel := context.WithTimeout(t.Context(), *limit)
	defer cancel()
	began := time.Now()

	s.stage(ctx, max(*connections/50, min(*connections, 1000))) // Pools and stacks get their final size.
	warm := measure(figures{})
	s.stage(ctx, *connections)
	end := measure(warm)
	made, took, crashes := s.made.Load(), time.Since(began), s.crashes()
	s.plane.Close()
	for _, target := range s.targets {
		target.crash()
	}
	after := measure(before)

	t.Logf("%d of %d connections in %v (%.0f/s): %d crashed with a target", made, *connections, took.Round(time.Second),
		float64(made)/took.Seconds(), s.crashed.Load())
	t.Logf("%d datagrams: %d lost; %d changes of targets, %d crashes", s.sent.Load(), s.lost.Load(), s.changes.Load(),
		crashes)
	t.Logf("before %v\nwarm %v\nend %v\nafter %v", before, warm, end, after)
	if made < int64(*connections) {
		t.Logf("NOT ALL WAS MADE: stopped by -for %v", *limit)
	}
	assert.Positive(t, crashes)
	assert.Positive(t, s.sent.Load())
	// Now and then one is lost without a crash: in a full buffer, or on its way when its target is taken out.
	assert.LessOrEqual(t, s.lost.Load(), crashes*lostPerCrash*int64(*sessions)+s.sent.Load()/100)
	assert.LessOrEqual(t, end.files, warm.files, "files are left after the connections")
	assert.LessOrEqual(t, end.goroutines, warm.goroutines, "goroutines are left after the connections")
	assert.LessOrEqual(t, end.memory, warm.memory+maxGrowth, "memory is left after the connections")
	assert.LessOrEqual(t, after.files, before.files, "files are left after the balancers")
	assert.LessOrEqual(t, after.goroutines, before.goroutines, "goroutines are left after the balancers")
}

// ownAddress is different in each process, so that several soaks can run at the same time.
func ownAddress(network int) netip.Addr {
	return netip.AddrFrom4([4]byte{127, byte(network), byte(os.Getpid() >> 8), byte(os.Getpid())})
}

// clientAddress is a client's own: one address has too few ports for all connections in TIME_WAIT.
func clientAddress(i int) []byte { return []byte{127, 127, byte(os.Getpid()), byte(i%250 + 1)} }

// figures are what this process uses at one time.
type figures struct {
	files, goroutines int
	memory            uint64 // bytes of heap and stacks in use
}

// measure collects garbage first, which also closes the pipes that sync.Pool keeps for splicing. It waits for a while
// until there are no more files and goroutines than before: some end a little later.
func measure(before figures) (f figures) {
	for range 100 {
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		files, _ := os.ReadDir("/proc/self/fd")
		f = figures{len(files), runtime.NumGoroutine(), m.HeapAlloc + m.StackInuse}
		if before == (figures{}) || f.files <= before.files && f.goroutines <= before.goroutines {
			break
		}
		time.Sleep(50 * time.Millisecond)
	}
	return f
}

type soak struct {
	t         *testing.T
	plane     *dataplane.Plane
	front     netip.AddrPort
	targets   [targetCount]*target
	changeDue chan struct{} // holds a value when the targets are to be changed
	changes   atomic.Int64

	begun, made, crashed atomic.Int64 // connections
	sent, lost           atomic.Int64 // datagrams
}

// crashes counts those that have ended.
func (s *soak) crashes() (n int64) {
	for _, t := range s.targets {
		n += t.crashes.Load() / 2
	}
	return n
}

// apply puts targets in force, on the balancer for connections and on the one for datagrams.
func (s *soak) apply(using []*target, turn int64) error {
	f := cloud.Forwarding{
		ID: "lb-tcp", Addresses: []netip.Addr{s.front.Addr()},
		Listeners: []cloud.Listener{{Protocol: api.ProtocolTCP, Port: int(s.front.Port()), TargetPort: s.targets[0].tcp}},
		// Each algorithm in turn. With and without an idle timeout a balancer may copy in different ways.
		Algorithm:   []cloud.Algorithm{api.AlgorithmRoundRobin, api.AlgorithmLeastConnections, api.AlgorithmSourceHash}[turn%3],
		IdleTimeout: []time.Duration{0, time.Hour}[turn%2],
	}
	for _, t := range using {
		f.Backends = append(f.Backends, cloud.Backend{Target: fmt.Sprintf("i-%d", t.number), Address: t.address})
	}
	err := s.plane.Apply(f)
	f.ID, f.IdleTimeout = "lb-udp", sessionIdle
	f.Listeners = []cloud.Listener{{Protocol: api.ProtocolUDP, Port: int(s.front.Port()), TargetPort: s.targets[0].udp}}
	return errors.Join(err, s.plane.Apply(f))
}

// active counts the connections or sessions that a balancer has open.
func (s *soak) active(id string) (n int64) {
	for _, l := range s.plane.Stats(id).Listeners {
		n += l.ActiveConnections
	}
	return n
}

// stage runs until last connections have been made, and then waits until the balancers have none open.
func (s *soak) stage(ctx context.Context, last int) {
	s.begun.Store(s.made.Load())
	talk, stop := context.WithCancel(s.t.Context())
	defer stop()
	var running, connecting sync.WaitGroup
	for i := range *sessions {
		running.Go(func() { s.talk(talk, i) })
	}
	assert.Eventually(s.t, func() bool { return s.active("lb-udp") >= int64(*sessions)/2 }, ioTimeout, time.Millisecond)
	running.Go(func() { s.changeTargets(talk) })
	for i := range *clients {
		connecting.Go(func() { s.connect(ctx, i, int64(last)) })
	}
	connecting.Wait()
	stop()
	running.Wait()
	drained := func() bool { return s.active("lb-tcp")+s.active("lb-udp") == 0 }
	assert.Eventually(s.t, drained, ioTimeout, 10*time.Millisecond, "connections or sessions are still open")
}

// changeTargets changes the targets in force whenever that is due. Each crashEvery-th time it crashes one that is in
// force, while most sessions are open, and restarts it at the next change. At least one other is always in force.
func (s *soak) changeTargets(ctx context.Context) {
	random := rand.New(rand.NewPCG(*seed, uint64(s.changes.Load())))
	var dead *target
	restart := func() {
		if dead != nil {
			assert.NoError(s.t, dead.start())
		}
		dead = nil
	}
	defer restart()
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.changeDue:
		}
		restart()
		var using []*target
		for _, i := range random.Perm(targetCount)[:2+random.IntN(targetCount-1)] {
			using = append(using, s.targets[i])
		}
		turn := s.changes.Add(1)
		if turn%100 == 0 {
			s.t.Logf("%s: %d connections", time.Now().Format(time.TimeOnly), s.made.Load())
		}
		assert.NoError(s.t, s.apply(using, turn))
		if turn%crashEvery == 0 {
			assert.GreaterOrEqual(s.t, s.active("lb-udp"), int64(*sessions)/2, "few sessions are open at a crash")
			dead = using[0]
			dead.crash()
		}
	}
}

// connect makes connections until last have begun or ctx ends.
func (s *soak) connect(ctx context.Context, client int, last int64) {
	random := rand.New(rand.NewPCG(*seed, uint64(client)))
	for ctx.Err() == nil && s.begun.Add(1) <= last {
		var before [targetCount]int64
		for i, t := range s.targets {
			before[i] = t.crashes.Load()
		}
		served, err := s.exchange(random, client)
		if s.made.Add(1)%int64(max(1, min(*connections/20, 500))) == 0 {
			select {
			case s.changeDue <- struct{}{}:
			default: // A change is due already.
			}
		}
		if err == nil {
			continue
		}
		explained := false
		for i, t := range s.targets {
			// The kernel may have accepted the connection for a target that crashed before it said its number.
			own := served == i || served < 0 && isBroken(err)
			explained = explained || own && (before[i]%2 == 1 || t.crashes.Load() != before[i])
		}
		assert.True(s.t, explained, "connection of client %d to target %d: %v", client, served, err)
		s.crashed.Add(1)
	}
}

// isBroken tells whether the peer has broken the connection, rather than sent a wrong answer or none.
func isBroken(err error) bool {
	return errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) || errors.Is(err, io.EOF)
}

// Which side ends a connection first. The ends of that side stay in TIME_WAIT, but not after a reset. Most connections
// are reset: a million in TIME_WAIT, which lasts a minute, would load the kernel and not the balancer.
const (
	clientEnds = iota
	targetEnds
	clientResets
)

// exchange makes a connection, sends one request and checks its answer. It returns the number of the target that
// served it, or -1.
func (s *soak) exchange(random *rand.Rand, client int) (served int, err error) {
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: clientAddress(client)}, Timeout: ioTimeout}
	dialled, err := dialer.Dial("tcp4", s.front.String())
	if err != nil {
		return -1, err
	}
	c := dialled.(*net.TCPConn)
	defer func() { _ = c.Close() }()
	_ = c.SetDeadline(time.Now().Add(ioTimeout))
	number := make([]byte, 1)
	if _, err := io.ReadFull(c, number); err != nil {
		return -1, err
	}
	served = int(number[0])
	request := make([]byte, 3+random.IntN(maxBody))
	for i := range request {
		request[i] = byte(random.Uint32())
	}
	how := min(random.IntN(8), clientResets)
	request[0], request[1], request[2] = byte(how), byte(len(request)>>8), byte(len(request))
	if _, err := c.Write(request); err != nil {
		return served, err
	}
	if how == clientEnds {
		if err := c.CloseWrite(); err != nil {
			return served, err
		}
	}
	answer := make([]byte, len(request))
	if _, err := io.ReadFull(c, answer); err != nil {
		return served, err
	}
	if !bytes.Equal(answer, request) {
		return served, errors.New("the answer is not what was asked")
	}
	if how == clientResets {
		return served, c.SetLinger(0)
	}
	if rest, err := io.ReadAll(c); err != nil || len(rest) > 0 {
		return served, fmt.Errorf("%d bytes came after the answer: %w", len(rest), err)
	}
	return served, nil
}

// talk keeps a session of datagrams open until ctx ends. A lost datagram ends it, so that a late answer is not taken
// for that of the next one.
func (s *soak) talk(ctx context.Context, session int) {
	random := rand.New(rand.NewPCG(*seed, 1<<32+uint64(session)))
	front := net.UDPAddrFromAddrPort(s.front)
	answer := make([]byte, maxBody)
	for ctx.Err() == nil {
		c, err := net.DialUDP("udp4", &net.UDPAddr{IP: clientAddress(session)}, front)
		if !assert.NoError(s.t, err) {
			return
		}
		for n := 0; ctx.Err() == nil; n++ {
			datagram := fmt.Appendf(nil, "%d of session %d: %d", n, session, random.Uint64())
			s.sent.Add(1)
			_, err := c.Write(datagram)
			_ = c.SetReadDeadline(time.Now().Add(lossAfter))
			var size int
			if err == nil {
				size, err = c.Read(answer)
			}
			if errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, syscall.ECONNREFUSED) {
				s.lost.Add(1)
				break
			}
			if !assert.NoError(s.t, err) || !assert.Equal(s.t, string(datagram), string(answer[:size])) {
				break
			}
			select {
			case <-ctx.Done():
			case <-time.After(sessionIdle / 20):
			}
		}
		_ = c.Close()
	}
}

// target echoes on TCP and UDP, on the same ports in each of its lives.
type target struct {
	number   byte
	address  netip.Addr
	tcp, udp int          // 0 before the first life
	crashes  atomic.Int64 // counts twice: at the begin and at the end of each crash

	listener *net.TCPListener
	socket   *net.UDPConn
	running  sync.WaitGroup

	mu    sync.Mutex
	conns map[*net.TCPConn]bool // nil while it is dead
}

func (t *target) start() (err error) {
	if t.listener, err = net.ListenTCP("tcp4", &net.TCPAddr{IP: t.address.AsSlice(), Port: t.tcp}); err != nil {
		return err
	}
	if t.socket, err = net.ListenUDP("udp4", &net.UDPAddr{IP: t.address.AsSlice(), Port: t.udp}); err != nil {
		return err
	}
	_ = t.socket.SetReadBuffer(1 << 20) // For the datagrams of all sessions, if the system allows.
	t.tcp, t.udp = t.listener.Addr().(*net.TCPAddr).Port, t.socket.LocalAddr().(*net.UDPAddr).Port
	t.mu.Lock()
	t.conns = map[*net.TCPConn]bool{}
	t.mu.Unlock()
	listener, socket := t.listener, t.socket
	t.running.Go(func() {
		for c, err := listener.AcceptTCP(); err == nil; c, err = listener.AcceptTCP() {
			t.running.Go(func() { t.serve(c) })
		}
	})
	t.running.Go(func() {
		buffer := make([]byte, 64<<10)
		for {
			n, from, err := socket.ReadFromUDPAddrPort(buffer)
			if err != nil {
				return
			}
			_, _ = socket.WriteToUDPAddrPort(buffer[:n], from)
		}
	})
	return nil
}

// crash resets the target's connections, and waits until its goroutines have ended.
func (t *target) crash() {
	t.crashes.Add(1)
	_, _ = t.listener.Close(), t.socket.Close()
	t.mu.Lock()
	for c := range t.conns {
		_, _ = c.SetLinger(0), c.Close()
	}
	t.conns = nil
	t.mu.Unlock()
	t.running.Wait()
	t.crashes.Add(1)
}

// serve answers one request with the same bytes. It reports no errors: the client does.
func (t *target) serve(c *net.TCPConn) {
	t.mu.Lock()
	if t.conns == nil {
		_ = c.SetLinger(0)
	} else {
		t.conns[c] = true
	}
	dead := t.conns == nil
	t.mu.Unlock()
	defer func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		delete(t.conns, c)
		_ = c.Close()
	}()
	request := make([]byte, 3+maxBody)
	if _, err := c.Write([]byte{t.number}); dead || err != nil {
		return
	}
	if _, err := io.ReadFull(c, request[:3]); err != nil {
		return
	}
	request = request[:int(request[1])<<8+int(request[2])]
	if _, err := io.ReadFull(c, request[3:]); err != nil {
		return
	}
	if request[0] == clientEnds {
		if n, err := io.Copy(io.Discard, c); n != 0 || err != nil {
			return // The client gets no answer, and reports that.
		}
	}
	if _, err := c.Write(request); err == nil && request[0] == clientResets {
		_, _ = c.Read(request[:1]) // Until the client resets it.
	}
}
