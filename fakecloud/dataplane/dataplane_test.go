package dataplane_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/fakecloud/cloud"
	"github.com/ccmlab/ccmlab/fakecloud/dataplane"
)

const patience = 10 * time.Second

// front is where the tests' balancer listens, two to four are where its targets
// are: addresses of this process, so that tests can run twice at once.
var (
	front = netip.AddrFrom4([4]byte{127, 77, byte(os.Getpid() >> 8), byte(os.Getpid())})
	two   = netip.AddrFrom4([4]byte{127, 78, byte(os.Getpid() >> 8), byte(os.Getpid())}).String()
	three = netip.AddrFrom4([4]byte{127, 79, byte(os.Getpid() >> 8), byte(os.Getpid())}).String()
	four  = netip.AddrFrom4([4]byte{127, 80, byte(os.Getpid() >> 8), byte(os.Getpid())}).String()
)

// given are the ports that freePort has returned.
var given sync.Map

// freePort is one that nobody listens on, and that no test was given before: the
// kernel may name a port again that is free again.
func freePort(t *testing.T) int {
	t.Helper()
	for {
		l, err := net.Listen("tcp4", net.JoinHostPort(front.String(), "0"))
		require.NoError(t, err)
		port := l.Addr().(*net.TCPAddr).Port
		require.NoError(t, l.Close())
		if _, before := given.LoadOrStore(port, true); !before {
			return port
		}
	}
}

func newPlane(t *testing.T) *dataplane.Plane {
	t.Helper()
	before := runtime.NumGoroutine()
	p := dataplane.New(dataplane.Options{})
	t.Cleanup(func() {
		p.Close()
		// Looked at from here: what testify awaits runs in a goroutine of its own.
		late := time.After(patience)
		for look := time.Tick(time.Millisecond); runtime.NumGoroutine() > before; {
			select {
			case <-look:
			case <-late:
				t.Fatalf("%d goroutines are left, %d were there before", runtime.NumGoroutine(), before)
			}
		}
	})
	return p
}

// listen listens on a port, or on any that the other target, which is to listen on
// the same, can have, too: there it may be that of somebody's outgoing connection.
func listen(t *testing.T, host string, port int) net.Listener {
	t.Helper()
	for {
		l, err := net.Listen("tcp4", fmt.Sprintf("%s:%d", host, port))
		require.NoError(t, err)
		if port != 0 {
			return l
		}
		other, err := net.Listen("tcp4", fmt.Sprintf("%s:%d", three, l.Addr().(*net.TCPAddr).Port))
		if err == nil {
			_ = other.Close()
			return l
		}
		_ = l.Close()
	}
}

// backend answers each connection through serve, on host at port (0: any).
func backend(t *testing.T, host string, port int, serve func(net.Conn)) int {
	t.Helper()
	l := listen(t, host, port)
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer func() { _ = c.Close() }()
				serve(c)
			}()
		}
	}()
	return l.Addr().(*net.TCPAddr).Port
}

func says(name string) func(net.Conn) {
	return func(c net.Conn) { _, _ = io.WriteString(c, name+"\n") }
}

func echo(c net.Conn) { _, _ = io.Copy(c, c) }

func dial(t *testing.T, port int) *net.TCPConn {
	t.Helper()
	c, err := net.DialTimeout("tcp4", netip.AddrPortFrom(front, uint16(port)).String(), patience)
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	require.NoError(t, c.SetDeadline(time.Now().Add(patience)))
	return c.(*net.TCPConn)
}

func ask(t *testing.T, port int) string {
	t.Helper()
	line, err := bufio.NewReader(dial(t, port)).ReadString('\n')
	require.NoError(t, err)
	return strings.TrimSpace(line)
}

func exchange(t *testing.T, c net.Conn, text string) {
	t.Helper()
	_, err := io.WriteString(c, text)
	require.NoError(t, err)
	got := make([]byte, len(text))
	_, err = io.ReadFull(c, got)
	require.NoError(t, err)
	require.Equal(t, text, string(got))
}

func forwarding(targetPort int, hosts []string, ports ...int) cloud.Forwarding {
	f := cloud.Forwarding{ID: "lb-1", Address: front}
	for _, h := range hosts {
		f.Backends = append(f.Backends, cloud.Backend{Target: "i-" + h, Address: netip.MustParseAddr(h)})
	}
	for _, p := range ports {
		f.Listeners = append(f.Listeners, cloud.Listener{Protocol: cloud.TCP, Port: p, TargetPort: targetPort})
	}
	return f
}

func TestRoundRobinSkipsTargetsThatDoNotAnswer(t *testing.T) {
	p, port := newPlane(t), freePort(t)
	target := backend(t, two, 0, says("two"))
	backend(t, three, target, says("three"))
	require.NoError(t, p.Apply(forwarding(target, []string{two, three, four}, port)))
	seen := map[string]int{}
	for range 9 {
		seen[ask(t, port)]++
	}
	assert.Equal(t, 9, seen["two"]+seen["three"])
	assert.GreaterOrEqual(t, seen["two"], 3)
	assert.GreaterOrEqual(t, seen["three"], 3)
	assert.Zero(t, stats(p).Failed)
}

func TestNoTargetMeansReset(t *testing.T) {
	p, port := newPlane(t), freePort(t)
	require.NoError(t, p.Apply(forwarding(1, nil, port)))
	// The reset may come while the client still connects.
	c, err := net.DialTimeout("tcp4", netip.AddrPortFrom(front, uint16(port)).String(), patience)
	if err == nil {
		defer func() { _ = c.Close() }()
		_, err = c.Read(make([]byte, 1))
	}
	require.ErrorIs(t, err, syscall.ECONNRESET)
	require.Eventually(t, func() bool { return stats(p).Active == 0 }, patience, time.Millisecond)
	s := stats(p)
	assert.EqualValues(t, 1, s.Connections)
	assert.EqualValues(t, 1, s.Failed)
}

func TestHalfCloseGoesBothWays(t *testing.T) {
	p, port := newPlane(t), freePort(t)
	// Answers only once the client has said all; then says all and waits for
	// the client to notice.
	target := backend(t, two, 0, func(c net.Conn) {
		all, _ := io.ReadAll(c)
		_, _ = fmt.Fprintf(c, "got %d bytes", len(all))
	})
	require.NoError(t, p.Apply(forwarding(target, []string{two}, port)))
	c := dial(t, port)
	_, err := c.Write(make([]byte, 1<<20))
	require.NoError(t, err)
	require.NoError(t, c.CloseWrite())
	answer, err := io.ReadAll(c)
	require.NoError(t, err)
	assert.Equal(t, "got 1048576 bytes", string(answer))
	require.Eventually(t, func() bool { return stats(p).Out == 17 }, patience, time.Millisecond)
	assert.EqualValues(t, 1<<20, stats(p).In)

	late := make(chan string, 1)
	other := backend(t, two, 0, func(c net.Conn) {
		_ = c.(*net.TCPConn).CloseWrite() // The target ends first.
		all, _ := io.ReadAll(c)
		late <- string(all)
	})
	require.NoError(t, p.Apply(forwarding(other, []string{two}, port)))
	c = dial(t, port)
	_, err = c.Read(make([]byte, 1))
	require.ErrorIs(t, err, io.EOF)
	_, err = io.WriteString(c, "late")
	require.NoError(t, err)
	require.NoError(t, c.CloseWrite())
	select {
	case got := <-late:
		assert.Equal(t, "late", got)
	case <-time.After(patience):
		t.Fatal("the target did not get what came after its own end")
	}
}

func TestReconfigurationKeepsConnections(t *testing.T) {
	p, a, b := newPlane(t), freePort(t), freePort(t)
	target := backend(t, two, 0, echo)
	backend(t, three, target, says("three"))
	require.NoError(t, p.Apply(forwarding(target, []string{two}, a, b)))
	onA, onB := dial(t, a), dial(t, b)
	exchange(t, onA, "hello")
	exchange(t, onB, "hello")

	require.NoError(t, p.Apply(forwarding(target, []string{three}, a)))
	assert.Equal(t, "three", ask(t, a), "new connections go to the new target")
	exchange(t, onA, "still here")
	exchange(t, onB, "still here")
	_, err := net.DialTimeout("tcp4", netip.AddrPortFrom(front, uint16(b)).String(), patience)
	require.ErrorIs(t, err, syscall.ECONNREFUSED, "a removed listener accepts no more")

	p.Remove("lb-1")
	for _, c := range []net.Conn{onA, onB} {
		_, err := c.Read(make([]byte, 1))
		require.Error(t, err)
		require.NotErrorIs(t, err, os.ErrDeadlineExceeded)
	}
	assert.Empty(t, p.Stats("lb-1").Listeners)
	require.NoError(t, p.Apply(forwarding(target, []string{three}, a, b)), "the ports are free again")
}

func TestAllPortsOrNone(t *testing.T) {
	p, free, kept := newPlane(t), freePort(t), freePort(t)
	blocker, err := net.Listen("tcp4", ":0")
	require.NoError(t, err)
	taken := blocker.Addr().(*net.TCPAddr).Port
	target := backend(t, two, 0, says("two"))
	hosts := []string{two}

	err = p.Apply(forwarding(target, hosts, free, taken))
	require.ErrorContains(t, err, "another server holds port")
	require.ErrorContains(t, err, "0.0.0.0")
	_, err = net.DialTimeout("tcp4", netip.AddrPortFrom(front, uint16(free)).String(), patience)
	require.ErrorIs(t, err, syscall.ECONNREFUSED)

	require.NoError(t, p.Apply(forwarding(target, hosts, kept)))
	require.Error(t, p.Apply(forwarding(target, hosts, kept, free, taken)))
	assert.Equal(t, "two", ask(t, kept), "what was in force stays")

	require.NoError(t, blocker.Close())
	require.NoError(t, p.Apply(forwarding(target, hosts, free, taken)))
	assert.Equal(t, "two", ask(t, taken))
}

func TestBrokenConnectionsBreakBothSides(t *testing.T) {
	p, port := newPlane(t), freePort(t)
	broke := make(chan error, 1)
	target := backend(t, two, 0, func(c net.Conn) {
		_, err := io.Copy(c, c)
		broke <- err
	})
	require.NoError(t, p.Apply(forwarding(target, []string{two}, port)))
	c := dial(t, port)
	exchange(t, c, "x")
	require.EqualValues(t, 1, stats(p).Active)
	require.NoError(t, c.SetLinger(0))
	require.NoError(t, c.Close())
	select {
	case err := <-broke:
		require.ErrorIs(t, err, syscall.ECONNRESET)
	case <-time.After(patience):
		t.Fatal("the target was not told")
	}
	require.Eventually(t, func() bool { return stats(p).Active == 0 }, patience, time.Millisecond)
}

func TestCountersOutliveTheirListener(t *testing.T) {
	p, a, b := newPlane(t), freePort(t), freePort(t)
	target := backend(t, two, 0, echo)
	both := forwarding(target, []string{two}, a, b)
	require.NoError(t, p.Apply(both))
	c := dial(t, b)
	exchange(t, c, "x")
	require.NoError(t, p.Apply(forwarding(target, []string{two}, a)))
	require.Len(t, p.Stats("lb-1").Listeners, 1)
	require.NoError(t, p.Apply(both))
	again := dial(t, b)
	exchange(t, again, "y")
	stats := func() cloud.ListenerStats {
		all := p.Stats("lb-1").Listeners
		return all[slices.IndexFunc(all, func(s cloud.ListenerStats) bool { return s.Listener.Port == b })]
	}
	assert.EqualValues(t, 2, stats().Connections)
	assert.EqualValues(t, 2, stats().Active)
	require.NoError(t, c.CloseWrite())
	require.NoError(t, again.CloseWrite())
	require.Eventually(t, func() bool { s := stats(); return s.Active == 0 && s.In == 2 && s.Out == 2 }, patience, time.Millisecond)
}

func TestClosedPlaneRefuses(t *testing.T) {
	p := newPlane(t)
	p.Close()
	require.ErrorIs(t, p.Apply(forwarding(1, nil, freePort(t))), net.ErrClosed)
}
