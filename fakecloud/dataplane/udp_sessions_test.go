package dataplane_test

import (
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/cloud"
)

func TestUDPSessionKeepsTarget(t *testing.T) {
	p, port, f := newUDPPair(t)
	require.NoError(t, p.Apply(f))
	seen := map[string]int{}
	var clients []*net.UDPConn
	for range 4 {
		c := udpClient(t, four, port)
		name := sendAndReadName(t, c, "first")
		seen[name]++
		for range 3 {
			assert.Equal(t, name, sendAndReadName(t, c, "again"))
		}
		clients = append(clients, c)
	}
	assert.Equal(t, map[string]int{"two": 2, "three": 2}, seen)
	in := int64(4 * len("firstagainagainagain"))
	bytes := [2]int64{in, in + int64(8*len("two three "))}
	await(t, func() bool { return carriedBytes(listenerStats(p)) == bytes })
	s := listenerStats(p)
	assert.EqualValues(t, 4, s.Connections)
	assert.EqualValues(t, 4, s.ActiveConnections)
	assert.Zero(t, s.FailedConnections)

	listeners := f.Listeners
	f.Backends, f.Listeners = f.Backends[:1], nil
	require.NoError(t, p.Apply(f))
	f.Listeners = listeners
	require.NoError(t, p.Apply(f))
	assert.Equal(t, "two", sendAndReadName(t, clients[0], "hello"))
	assert.Equal(t, "two", sendAndReadName(t, clients[1], "hello"))
	assert.EqualValues(t, 6, listenerStats(p).Connections, "sessions ended with their listener")
}

func TestUDPSessionLeavesDeadTarget(t *testing.T) {
	p, port := newPlane(t), freePort(t)
	backends := map[string]*net.UDPConn{"two": udpBackend(t, two, "two", 0)}
	target := portOf(backends["two"])
	backends["three"] = udpBackend(t, three, "three", target)
	f := udpForwarding(target, []string{two, three}, port)
	f.Affinity = time.Hour
	require.NoError(t, p.Apply(f))
	c := udpClient(t, four, port)
	first := sendAndReadName(t, c, "hello")
	require.NoError(t, backends[first].Close())
	sendText(t, c, "lost: it is refused")
	awaitNoConnections(t, p)
	second := sendAndReadName(t, c, "hello")
	assert.NotEqual(t, first, second)
	assert.Equal(t, second, sendAndReadName(t, udpClient(t, four, port), "hello"), "the client has a new target")
	for range 4 { // Clients from other addresses are not sent to the target that refused.
		assert.Equal(t, second, sendAndReadName(t, udpClient(t, two, port), "hello"))
	}
	host := map[string]string{"two": two, "three": three}[first]
	udpBackend(t, host, first, target)
	f.Backends = forwarding(target, []string{host}).Backends
	require.NoError(t, p.Apply(f))
	assert.Equal(t, first, sendAndReadName(t, c, "hello"), "nothing is sent to what is no target any more")

	f.Backends = nil
	require.NoError(t, p.Apply(f))
	sendText(t, c, "dropped")
	await(t, func() bool { return listenerStats(p).FailedConnections == 1 })
}

func TestUDPSessionsEnd(t *testing.T) {
	p, port := newPlane(t), freePort(t)
	p.LimitSessions(2, testTimeout)
	target := portOf(udpBackend(t, two, "two", 0))
	f := udpForwarding(target, []string{two}, port)
	require.NoError(t, p.Apply(f))
	a, b, c := udpClient(t, three, port), udpClient(t, three, port), udpClient(t, three, port)
	sendAndReadName(t, a, "1")
	sendAndReadName(t, b, "2")
	sendAndReadName(t, a, "3")
	sendAndReadName(t, c, "4 makes room by ending what was silent longest: b")
	await(t, func() bool { return listenerStats(p).ActiveConnections == 2 })
	sendAndReadName(t, a, "5")
	assert.EqualValues(t, 3, listenerStats(p).Connections, "a goes on")
	sendAndReadName(t, b, "6")
	assert.EqualValues(t, 4, listenerStats(p).Connections)

	p.Remove("lb-1")
	p.LimitSessions(2, time.Second)
	require.NoError(t, p.Apply(f))
	sendAndReadName(t, a, "1")
	awaitNoConnections(t, p)
	sendAndReadName(t, a, "2")
	assert.EqualValues(t, 2, listenerStats(p).Connections)
}

// Changed source ranges hold at once, for sessions that are open too.
func TestSourceRangesDropDatagrams(t *testing.T) {
	p, port := newPlane(t), freePort(t)
	f := udpForwarding(portOf(udpBackend(t, two, "two", 0)), []string{two}, port)
	require.NoError(t, p.Apply(f))
	inside, outside, late := udpClient(t, three, port), udpClient(t, four, port), udpClient(t, four, port)
	sendAndReadName(t, inside, "hello")
	sendAndReadName(t, outside, "hello")
	f.SourceRanges = []netip.Prefix{netip.PrefixFrom(netip.MustParseAddr(three), 32)}
	require.NoError(t, p.Apply(f))
	for i, c := range []*net.UDPConn{outside, late, late} {
		sendText(t, c, "dropped")
		await(t, func() bool { return listenerStats(p).RefusedConnections == int64(i+1) })
	}
	sendAndReadName(t, inside, "hello")
	f.SourceRanges = nil
	require.NoError(t, p.Apply(f))
	sendAndReadName(t, late, "hello")
	assert.EqualValues(t, 3, listenerStats(p).Connections)
}

func TestOnePortOfEachProtocol(t *testing.T) {
	p, port := newPlane(t), freePort(t)
	u := udpBackend(t, two, "udp", 0)
	target := startTarget(t, two, portOf(u), greetAndEcho("tcp"))
	f := forwarding(target, []string{two}, port)
	f.Listeners = append(f.Listeners, udpForwarding(target, nil, port).Listeners...)
	require.NoError(t, p.Apply(f))
	c := udpClient(t, three, port)
	assert.Equal(t, "tcp", greetingFrom(t, four, port))
	assert.Equal(t, "udp", sendAndReadName(t, c, "hello"))
	all := p.Stats("lb-1").Listeners
	require.Len(t, all, 2)
	for i, protocol := range []cloud.Protocol{api.ProtocolTCP, api.ProtocolUDP} {
		assert.Equal(t, protocol, all[i].Protocol)
		assert.EqualValues(t, 1, all[i].Connections)
	}
	f.Listeners = f.Listeners[1:]
	require.NoError(t, p.Apply(f))
	assert.Equal(t, "udp", sendAndReadName(t, c, "hello"))
	assert.EqualValues(t, 1, listenerStats(p).Connections, "the session went on")

	blocker, err := net.ListenUDP("udp4", &net.UDPAddr{IP: front.AsSlice()})
	require.NoError(t, err)
	defer func() { _ = blocker.Close() }()
	require.ErrorContains(t, p.Apply(udpForwarding(target, []string{two}, port, portOf(blocker))), "ss -lnup")
}

func TestIdleUDPSessionsEnd(t *testing.T) {
	p, port := newPlane(t), freePort(t)
	target := portOf(udpBackend(t, two, "two", 0))
	f := udpForwarding(target, []string{two}, port)
	f.IdleTimeout = time.Second // Below the default, and longer than a target takes on a busy machine.
	require.NoError(t, p.Apply(f))
	c := udpClient(t, four, port)
	assert.Equal(t, "two", sendAndReadName(t, c, "hello"))
	awaitNoConnections(t, p)
	assert.Equal(t, "two", sendAndReadName(t, c, "hello again"))
	assert.EqualValues(t, 2, listenerStats(p).Connections)
}
