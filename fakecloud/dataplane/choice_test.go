package dataplane_test

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/fakecloud/cloud"
)

// greets says a name, then echoes until the client has said all.
func greets(name string) func(net.Conn) {
	return func(c net.Conn) {
		_, _ = io.WriteString(c, name)
		echo(c)
	}
}

// greeted opens a connection and gives who answers it.
func greeted(t *testing.T, host string, port int) (*net.TCPConn, string) {
	t.Helper()
	c, err := dialFrom(t, host, port)
	require.NoError(t, err)
	name := make([]byte, 1)
	_, err = io.ReadFull(c, name)
	require.NoError(t, err)
	return c, string(name)
}

// requireBroken wants a connection to break, but not for want of patience.
func requireBroken(t *testing.T, c net.Conn) {
	t.Helper()
	_, err := c.Read(make([]byte, 1))
	require.Error(t, err)
	require.NotErrorIs(t, err, os.ErrDeadlineExceeded)
}

func TestLeastConnections(t *testing.T) {
	p, port, udpPort := newPlane(t), freePort(t), freePort(t)
	target := backend(t, two, 0, greets("a"))
	backend(t, three, target, greets("b"))
	f := forwarding(target, []string{two, three}, port)
	f.Algorithm = cloud.LeastConnections
	udp := portOf(udpBackend(t, two, "a", 0))
	udpBackend(t, three, "b", udp)
	f.Listeners = append(f.Listeners, cloud.Listener{Protocol: cloud.UDP, Port: udpPort, TargetPort: udp})
	require.NoError(t, p.Apply(f))
	first, busy := greeted(t, four, port)
	other := map[string]string{"a": "b", "b": "a"}[busy]
	_, also := greeted(t, four, port)
	assert.Equal(t, other, also)
	var held []string
	for range 4 {
		_, name := greeted(t, four, port)
		held = append(held, name)
	}
	assert.ElementsMatch(t, []string{"a", "a", "b", "b"}, held)

	require.NoError(t, first.Close())
	require.Eventually(t, func() bool { return stats(p).Active+p.Stats("lb-1").Listeners[1].Active == 5 }, patience, time.Millisecond)
	assert.Equal(t, busy, talk(t, udpClient(t, four, udpPort), "hello"), "it has the fewest now, on all ports")
}

func TestSourceHashSendsAClientToItsTarget(t *testing.T) {
	port := freePort(t)
	target := backend(t, two, 0, says("two"))
	backend(t, three, target, says("three"))
	f := forwarding(target, []string{two, three}, port)
	f.Algorithm = cloud.SourceHash
	var was map[string]string
	for range 2 { // The second plane knows nothing of the first.
		p := newPlane(t)
		require.NoError(t, p.Apply(f))
		is, seen := map[string]string{}, map[string]bool{}
		for i := range 20 {
			host := fmt.Sprintf("127.81.0.%d", i+1)
			is[host] = who(t, host, port)
			seen[is[host]] = true
			assert.Equal(t, is[host], who(t, host, port))
		}
		assert.Len(t, seen, 2)
		if was != nil {
			assert.Equal(t, was, is)
		}
		was = is
		p.Remove(f.ID)
	}
}

func TestConnectionLimit(t *testing.T) {
	p, port := newPlane(t), freePort(t)
	target := backend(t, two, 0, greets("a"))
	f := forwarding(target, []string{two}, port)
	f.Listeners[0].ConnectionLimit = 2
	require.NoError(t, p.Apply(f))
	one, _ := greeted(t, four, port)
	_, _ = greeted(t, three, port)
	requireReset(t, four, port)
	s := stats(p)
	assert.EqualValues(t, 1, s.Refused)
	assert.EqualValues(t, 2, s.Connections)
	require.NoError(t, one.Close())
	require.Eventually(t, func() bool { return stats(p).Active == 1 }, patience, time.Millisecond)
	_, _ = greeted(t, four, port)

	f.Listeners[0].ConnectionLimit = 3
	require.NoError(t, p.Apply(f))
	_, _ = greeted(t, four, port)
	requireReset(t, four, port)
	f.Listeners[0].ConnectionLimit = 0
	require.NoError(t, p.Apply(f))
	_, _ = greeted(t, four, port)
	assert.EqualValues(t, 2, stats(p).Refused)
}

func TestConnectionLimitOfDatagrams(t *testing.T) {
	p, port := newPlane(t), freePort(t)
	target := portOf(udpBackend(t, two, "two", 0))
	f := udpForwarding(target, []string{two}, port)
	f.Listeners[0].ConnectionLimit = 1
	require.NoError(t, p.Apply(f))
	inside, outside := udpClient(t, four, port), udpClient(t, three, port)
	assert.Equal(t, "two", talk(t, inside, "hello"))
	say(t, outside, "me too")
	require.Eventually(t, func() bool { return stats(p).Refused == 1 }, patience, time.Millisecond)
	assert.Equal(t, "two", talk(t, inside, "who is in stays"))
	f.Listeners[0].ConnectionLimit = 2
	require.NoError(t, p.Apply(f))
	assert.Equal(t, "two", talk(t, outside, "hello"))
}

func TestSilentConnectionsEnd(t *testing.T) {
	p, port := newPlane(t), freePort(t)
	ended := make(chan struct{})
	target := backend(t, two, 0, func(c net.Conn) {
		echo(c)
		close(ended)
	})
	f := forwarding(target, []string{two}, port)
	f.IdleTimeout = 50 * time.Millisecond
	require.NoError(t, p.Apply(f))
	c := dial(t, port)
	requireBroken(t, c)
	select {
	case <-ended:
	case <-time.After(patience):
		t.Fatal("the target was not told")
	}
	require.Eventually(t, func() bool { return stats(p).Active == 0 }, patience, time.Millisecond)
	assert.Zero(t, stats(p).Failed)
}

func TestIdleTimeoutLetsTalkersBe(t *testing.T) {
	p, port := newPlane(t), freePort(t)
	target := backend(t, two, 0, echo)
	f := forwarding(target, []string{two}, port)
	f.IdleTimeout = time.Hour
	require.NoError(t, p.Apply(f))
	c := dial(t, port)
	exchange(t, c, "hello")
	large := make([]byte, 1<<20)
	go func() {
		_, _ = c.Write(large)
		_ = c.CloseWrite()
	}()
	n, err := io.Copy(io.Discard, c)
	require.NoError(t, err)
	assert.EqualValues(t, len(large), n)
	require.Eventually(t, func() bool { s := stats(p); return s.Active == 0 && s.In == 5+1<<20 && s.Out == s.In }, patience, time.Millisecond)
}

func TestSilentSessionsEnd(t *testing.T) {
	p, port := newPlane(t), freePort(t)
	target := portOf(udpBackend(t, two, "two", 0))
	f := udpForwarding(target, []string{two}, port)
	f.IdleTimeout = time.Second // Below what is usual; longer than a target takes on a busy machine.
	require.NoError(t, p.Apply(f))
	c := udpClient(t, four, port)
	assert.Equal(t, "two", talk(t, c, "hello"))
	require.Eventually(t, func() bool { return stats(p).Active == 0 }, patience, time.Millisecond)
	assert.Equal(t, "two", talk(t, c, "hello again"))
	assert.EqualValues(t, 2, stats(p).Connections)
}

func TestDraining(t *testing.T) {
	p, a, b := newPlane(t), freePort(t), freePort(t)
	target := backend(t, two, 0, echo)
	backend(t, three, target, echo)
	all := forwarding(target, []string{two}, a, b)
	all.Drain = time.Hour
	require.NoError(t, p.Apply(all))
	onA, onB := dial(t, a), dial(t, b)
	exchange(t, onA, "hello")
	exchange(t, onB, "hello")

	short := func(f cloud.Forwarding) cloud.Forwarding {
		f.Drain = time.Millisecond
		return f
	}
	noB := forwarding(target, []string{two}, a)
	noB.Drain = time.Hour
	require.NoError(t, p.Apply(noB))
	exchange(t, onB, "its listener is gone, and it drains")
	require.NoError(t, p.Apply(all))
	require.NoError(t, p.Apply(short(all)))
	exchange(t, onB, "its listener is back")
	require.NoError(t, p.Apply(short(noB)))
	requireBroken(t, onB)
	exchange(t, onA, "no matter of mine")

	moved := forwarding(target, []string{three}, a)
	require.NoError(t, p.Apply(moved), "without draining")
	exchange(t, onA, "its target is gone, and it may go on")
	require.NoError(t, p.Apply(short(moved)))
	requireBroken(t, onA)
	require.Eventually(t, func() bool { return stats(p).Active == 0 }, patience, time.Millisecond)
	fresh := dial(t, a)
	exchange(t, fresh, "new connections are as ever")
	p.Remove("lb-1")
	requireBroken(t, fresh)
}

func TestExpectedCodes(t *testing.T) {
	p, port := newPlane(t), freePort(t)
	well := newWellness(t, two, 0)
	f := forwarding(well.port, []string{two}, port)
	f.HealthCheck = overHTTP(well.port)
	f.HealthCheck.ExpectedCodes = "204,300-399"
	require.NoError(t, p.Apply(f))
	awaitHealth(t, p, 0, cloud.Unhealthy)
	require.Eventually(t, func() bool { return strings.Contains(p.Health("lb-1")[0].Reason, "200") }, patience, time.Millisecond)
	well.status.Store(http.StatusFound) // It is not followed.
	awaitHealth(t, p, 0, cloud.Healthy)
	well.status.Store(http.StatusServiceUnavailable)
	awaitHealth(t, p, 0, cloud.Unhealthy)
	well.status.Store(http.StatusNoContent)
	awaitHealth(t, p, 0, cloud.Healthy)
}
