package dataplane_test

import (
	"net"
	"net/netip"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/cloud"
)

func TestRoundRobinSkipsTargetsThatDoNotAnswer(t *testing.T) {
	p, port, f := newPair(t)
	f.Backends = append(f.Backends, forwarding(0, []string{four}).Backends...)
	require.NoError(t, p.Apply(f))
	seen := map[string]int{}
	for range 9 {
		seen[greetingFrom(t, four, port)]++
	}
	assert.GreaterOrEqual(t, seen["two"], 3)
	assert.GreaterOrEqual(t, seen["three"], 3)
	assert.Zero(t, listenerStats(p).FailedConnections)
}

func TestNoTargetMeansReset(t *testing.T) {
	p, port := newPlane(t), freePort(t)
	require.NoError(t, p.Apply(forwarding(1, nil, port)))
	requireReset(t, four, port)
	awaitNoConnections(t, p)
	s := listenerStats(p)
	assert.EqualValues(t, 1, s.Connections)
	assert.EqualValues(t, 1, s.FailedConnections)
}

func TestReconfigurationKeepsConnections(t *testing.T) {
	p, a, b := newPlane(t), freePort(t), freePort(t)
	target := startTarget(t, two, 0, echo)
	startTarget(t, three, target, greetAndEcho("three"))
	require.NoError(t, p.Apply(forwarding(target, []string{two}, a, b)))
	onA, onB := dial(t, a), dial(t, b)
	requireEcho(t, onA, "hello")
	requireEcho(t, onB, "hello")

	require.NoError(t, p.Apply(forwarding(target, []string{three}, a)))
	assert.Equal(t, "three", greetingFrom(t, four, a), "new connections go to the new target")
	requireEcho(t, onA, "still here")
	requireEcho(t, onB, "still here")
	_, err := net.DialTimeout("tcp4", netip.AddrPortFrom(front, uint16(b)).String(), testTimeout)
	require.ErrorIs(t, err, syscall.ECONNREFUSED, "a removed listener accepts no more")

	p.Remove("lb-1")
	for _, c := range []net.Conn{onA, onB} {
		requireBroken(t, c)
	}
	assert.Empty(t, p.Stats("lb-1").Listeners)
	require.NoError(t, p.Apply(forwarding(target, []string{three}, a, b)), "the ports are free again")
}

func TestApplyOpensAllPortsOrNone(t *testing.T) {
	p, free, kept := newPlane(t), freePort(t), freePort(t)
	blocker, err := net.Listen("tcp4", ":0")
	require.NoError(t, err)
	taken := blocker.Addr().(*net.TCPAddr).Port
	target := startTarget(t, two, 0, greetAndEcho("two"))
	hosts := []string{two}

	err = p.Apply(forwarding(target, hosts, free, taken))
	require.ErrorContains(t, err, "another server holds port")
	require.ErrorContains(t, err, "0.0.0.0")
	_, err = net.DialTimeout("tcp4", netip.AddrPortFrom(front, uint16(free)).String(), testTimeout)
	require.ErrorIs(t, err, syscall.ECONNREFUSED)

	require.NoError(t, p.Apply(forwarding(target, hosts, kept)))
	require.Error(t, p.Apply(forwarding(target, hosts, kept, free, taken)))
	assert.Equal(t, "two", greetingFrom(t, four, kept), "what was in force stays")

	require.NoError(t, blocker.Close())
	require.NoError(t, p.Apply(forwarding(target, hosts, free, taken)))
	assert.Equal(t, "two", greetingFrom(t, four, taken))
}

func TestCountersOutliveTheirListener(t *testing.T) {
	p, a, b := newPlane(t), freePort(t), freePort(t)
	target := startTarget(t, two, 0, echo)
	both := forwarding(target, []string{two}, a, b)
	require.NoError(t, p.Apply(both))
	c := dial(t, b)
	requireEcho(t, c, "x")
	require.NoError(t, p.Apply(forwarding(target, []string{two}, a)))
	require.Len(t, p.Stats("lb-1").Listeners, 1)
	require.NoError(t, p.Apply(both))
	again := dial(t, b)
	requireEcho(t, again, "y")
	stats := func() api.ListenerStats {
		all := p.Stats("lb-1").Listeners
		return all[slices.IndexFunc(all, func(s api.ListenerStats) bool { return s.Port == b })]
	}
	assert.EqualValues(t, 2, stats().Connections)
	assert.EqualValues(t, 2, stats().ActiveConnections)
	require.NoError(t, c.CloseWrite())
	require.NoError(t, again.CloseWrite())
	await(t, func() bool { return stats().ActiveConnections == 0 && carriedBytes(stats()) == [2]int64{2, 2} })
}

func TestApplyAfterCloseFails(t *testing.T) {
	p := newPlane(t)
	p.Close()
	require.ErrorIs(t, p.Apply(forwarding(1, nil, freePort(t))), net.ErrClosed)
}

func TestTargetStats(t *testing.T) {
	p, port := newPlane(t), freePort(t)
	target := startTarget(t, two, 0, echo)
	startTarget(t, three, target, echo)
	f := forwarding(target, []string{two, three}, port)
	require.NoError(t, p.Apply(f))
	for range 3 {
		requireEcho(t, dial(t, port), "four")
	}
	// While the connections are still open.
	await(t, func() bool { return carriedBytes(listenerStats(p)) == [2]int64{12, 12} })
	all := p.Stats("lb-1").Targets
	assert.Equal(t, []api.TargetStats{
		{InstanceID: "i-" + two, Connections: 2, ActiveConnections: 2, BytesIn: 8, BytesOut: 8},
		{InstanceID: "i-" + three, Connections: 1, ActiveConnections: 1, BytesIn: 4, BytesOut: 4},
	}, all)

	f.Backends = f.Backends[1:]
	require.NoError(t, p.Apply(f))
	left := []api.TargetStats{all[1], all[0]}
	assert.Equal(t, left, p.Stats("lb-1").Targets, "one that is left out goes on with what it has")
	require.NoError(t, p.Apply(forwarding(target, []string{two, three}, port)))
	assert.Equal(t, all, p.Stats("lb-1").Targets, "one that comes back counts on")
}

func TestListenOnBothIPFamilies(t *testing.T) {
	p, port := newPlane(t), freePort(t)
	six := netip.IPv6Loopback()
	if l, err := net.Listen("tcp6", netip.AddrPortFrom(six, uint16(port)).String()); err != nil {
		t.Skipf("this machine has no IPv6 on loopback, or the port is taken there: %v", err)
	} else {
		require.NoError(t, l.Close())
	}
	target := startTarget(t, two, 0, echo)
	udp := portOf(udpBackend(t, two, "two", 0))
	f := forwarding(target, []string{two}, port)
	f.Listeners = append(f.Listeners, cloud.Listener{Protocol: api.ProtocolUDP, Port: port, TargetPort: udp})
	f.Addresses = append(f.Addresses[:1:1], six)
	require.NoError(t, p.Apply(f))

	over := func(network string) net.Conn {
		c, err := net.DialTimeout(network, netip.AddrPortFrom(six, uint16(port)).String(), testTimeout)
		require.NoError(t, err)
		t.Cleanup(func() { _ = c.Close() })
		require.NoError(t, c.SetDeadline(time.Now().Add(testTimeout)))
		return c
	}
	requireEcho(t, over("tcp6"), "over six")
	requireEcho(t, dial(t, port), "over four")
	assert.Equal(t, "two", sendAndReadName(t, over("udp6").(*net.UDPConn), "hello"))
	assert.Equal(t, "two", sendAndReadName(t, udpClient(t, four, port), "hello"))
	assert.EqualValues(t, 2, p.Stats("lb-1").Listeners[0].Connections, "both count as one listener's")
	assert.EqualValues(t, 2, p.Stats("lb-1").Listeners[1].Connections)

	f.SourceRanges = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}
	require.NoError(t, p.Apply(f))
	c, err := net.DialTimeout("tcp6", netip.AddrPortFrom(six, uint16(port)).String(), testTimeout)
	if err == nil {
		_, err = c.Read(make([]byte, 1))
		_ = c.Close()
	}
	require.Error(t, err, "no range has it")
	requireEcho(t, dial(t, port), "over four")

	kept := dial(t, port)
	requireEcho(t, kept, "before")
	f.Addresses = f.Addresses[:1]
	require.NoError(t, p.Apply(f))
	_, err = net.DialTimeout("tcp6", netip.AddrPortFrom(six, uint16(port)).String(), testTimeout)
	require.Error(t, err)
	requireEcho(t, kept, "after")
}
