package dataplane_test

import (
	"net"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestConnectionLimitIsSharedByIPFamilies(t *testing.T) {
	p, port := newPlane(t), freePort(t)
	six := netip.IPv6Loopback()
	c, err := net.DialUDP("udp6", nil, net.UDPAddrFromAddrPort(netip.AddrPortFrom(six, uint16(port))))
	if err != nil {
		t.Skipf("this machine has no IPv6 on loopback: %v", err)
	}
	t.Cleanup(func() { _ = c.Close() })
	f := udpForwarding(portOf(udpBackend(t, two, "two", 0)), []string{two}, port)
	f.Addresses, f.Listeners[0].ConnectionLimit = append(f.Addresses, six), 1
	require.NoError(t, p.Apply(f))
	assert.Equal(t, "two", sendAndReadName(t, udpClient(t, four, port), "hello"))
	sendText(t, c, "one too many")
	await(t, func() bool { return listenerStats(p).RefusedConnections == 1 })
	assert.EqualValues(t, 1, listenerStats(p).ActiveConnections)
}

func TestConnectionLimit(t *testing.T) {
	p, port := newPlane(t), freePort(t)
	target := startTarget(t, two, 0, greetAndEcho("a"))
	f := forwarding(target, []string{two}, port)
	f.Listeners[0].ConnectionLimit = 2
	require.NoError(t, p.Apply(f))
	one, _ := dialAndReadName(t, four, port)
	_, _ = dialAndReadName(t, three, port)
	requireReset(t, four, port)
	s := listenerStats(p)
	assert.EqualValues(t, 1, s.RefusedConnections)
	assert.EqualValues(t, 2, s.Connections)
	require.NoError(t, one.Close())
	await(t, func() bool { return listenerStats(p).ActiveConnections == 1 })
	_, _ = dialAndReadName(t, four, port)

	f.Listeners[0].ConnectionLimit = 3
	require.NoError(t, p.Apply(f))
	_, _ = dialAndReadName(t, four, port)
	requireReset(t, four, port)
	f.Listeners[0].ConnectionLimit = 0
	require.NoError(t, p.Apply(f))
	_, _ = dialAndReadName(t, four, port)
	assert.EqualValues(t, 2, listenerStats(p).RefusedConnections)
}

func TestConnectionLimitOfABalancer(t *testing.T) {
	p, one, other := newPlane(t), freePort(t), freePort(t)
	f := forwarding(startTarget(t, two, 0, greetAndEcho("a")), []string{two}, one, other)
	udp := udpForwarding(portOf(udpBackend(t, two, "two", 0)), nil, one).Listeners[0]
	f.Listeners = append(f.Listeners, udp)
	f.ConnectionLimit = 2
	require.NoError(t, p.Apply(f))
	open, _ := dialAndReadName(t, four, one)
	client := udpClient(t, four, one)
	assert.Equal(t, "two", sendAndReadName(t, client, "hello"))
	requireReset(t, four, other)
	assert.EqualValues(t, 1, p.Stats("lb-1").Listeners[1].RefusedConnections)
	require.NoError(t, open.Close())
	await(t, func() bool { return listenerStats(p).ActiveConnections == 0 })
	_, _ = dialAndReadName(t, four, other)
}

func TestConnectionLimitOfDatagrams(t *testing.T) {
	p, port := newPlane(t), freePort(t)
	target := portOf(udpBackend(t, two, "two", 0))
	f := udpForwarding(target, []string{two}, port)
	f.Listeners[0].ConnectionLimit = 1
	require.NoError(t, p.Apply(f))
	inside, outside := udpClient(t, four, port), udpClient(t, three, port)
	assert.Equal(t, "two", sendAndReadName(t, inside, "hello"))
	sendText(t, outside, "me too")
	await(t, func() bool { return listenerStats(p).RefusedConnections == 1 })
	assert.Equal(t, "two", sendAndReadName(t, inside, "who is in stays"))
	f.Listeners[0].ConnectionLimit = 2
	require.NoError(t, p.Apply(f))
	assert.Equal(t, "two", sendAndReadName(t, outside, "hello"))
}
