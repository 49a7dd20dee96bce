package dataplane_test

import (
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/fakecloud/cloud"
)

// Many sessions learn at once that their target is gone. All of them want memory
// for datagrams and the relay's lock at the same time.
func TestDeathOfATargetWithManySessions(t *testing.T) {
	p, port := newPlane(t), freePort(t)
	gone := udpBackend(t, two, "two", 0)
	target := portOf(gone)
	udpBackend(t, three, "three", target)
	f := udpForwarding(target, []string{two, three}, port)
	f.Algorithm = cloud.SourceHash // So that a client's sessions have one target.
	require.NoError(t, p.Apply(f))
	host := ""
	for i := 1; host == ""; i++ {
		if at := fmt.Sprintf("127.81.1.%d", i); talk(t, udpClient(t, at, port), "hello") == "two" {
			host = at
		}
	}
	for range 3 {
		p.Remove("lb-1") // It forgets who refused.
		require.NoError(t, p.Apply(f))
		var clients []*net.UDPConn
		for range 300 {
			c := udpClient(t, host, port)
			require.Eventually(t, func() bool { return answerer(c) == "two" }, patience, time.Millisecond)
			clients = append(clients, c)
		}
		require.NoError(t, gone.Close())
		for _, c := range clients {
			say(t, c, "lost")
		}
		for _, c := range clients {
			require.Eventually(t, func() bool { return answerer(c) == "three" }, patience, time.Millisecond)
			require.NoError(t, c.Close())
		}
		gone = udpBackend(t, two, "two", target)
	}
}

// answerer is who answers a datagram within a while: it may get lost.
func answerer(c *net.UDPConn) string {
	_, _ = c.Write([]byte("hello"))
	buffer := make([]byte, 1000)
	_ = c.SetReadDeadline(time.Now().Add(time.Second))
	n, err := c.Read(buffer)
	if err != nil {
		return ""
	}
	var name string
	_, _ = fmt.Sscan(string(buffer[:n]), &name)
	return name
}

// A target that serves one port and not the other keeps the clients of the first.
func TestABrokenPortIsNoMatterOfTheOthers(t *testing.T) {
	p, good, bad := newPlane(t), freePort(t), freePort(t)
	target := backend(t, two, 0, says("two"))
	backend(t, three, target, says("three"))
	nobody := freePort(t)
	backend(t, three, nobody, says("three"))
	f := forwarding(target, []string{two, three}, good)
	f.Listeners = append(f.Listeners, cloud.Listener{Protocol: cloud.TCP, Port: bad, TargetPort: nobody})
	f.Affinity = time.Hour
	require.NoError(t, p.Apply(f))
	host := ""
	for i := 1; host == ""; i++ {
		if at := fmt.Sprintf("127.81.2.%d", i); who(t, at, good) == "two" {
			host = at
		}
	}
	for i := range 4 { // Others meet with the broken port.
		assert.Equal(t, "three", who(t, fmt.Sprintf("127.81.3.%d", i+1), bad))
	}
	for range 4 {
		assert.Equal(t, "two", who(t, host, good))
	}
}

// Clients whose connections break have a target asked more often, and can make
// nothing of its answers.
func TestClientsCannotHastenAVerdict(t *testing.T) {
	p, port := newPlane(t), freePort(t)
	target := backend(t, two, 0, resets)
	sick := newWellness(t, two, 0)
	f := forwarding(target, []string{two}, port)
	f.HealthCheck = overHTTP(sick.port)
	f.HealthCheck.Interval, f.HealthCheck.Timeout, f.HealthCheck.UnhealthyThreshold = time.Hour, patience, 1
	require.NoError(t, p.Apply(f))
	awaitHealth(t, p, 0, cloud.Healthy)
	sick.status.Store(http.StatusServiceUnavailable)
	asked := sick.asks.Load()
	require.Eventually(t, func() bool {
		requireReset(t, four, port)
		return sick.asks.Load() >= asked+2
	}, patience, time.Millisecond)
	assert.Equal(t, cloud.Healthy, p.Health("lb-1")[0].Health)
}

// A datagram that fits IPv6 and not IPv4 is nobody's fault but its sender's.
func TestADatagramTooLargeIsDropped(t *testing.T) {
	p, port := newPlane(t), freePort(t)
	six := netip.IPv6Loopback()
	c, err := net.DialUDP("udp6", nil, net.UDPAddrFromAddrPort(netip.AddrPortFrom(six, uint16(port))))
	if err != nil {
		t.Skipf("this machine has no IPv6 on loopback: %v", err)
	}
	t.Cleanup(func() { _ = c.Close() })
	target := portOf(udpBackend(t, two, "two", 0))
	udpBackend(t, three, "three", target)
	f := udpForwarding(target, []string{two, three}, port)
	f.Address6 = six
	require.NoError(t, p.Apply(f))
	first := talk(t, c, "hello")
	_, err = c.Write(make([]byte, 65_520))
	require.NoError(t, err)
	assert.Equal(t, first, talk(t, c, "hello"), "the session goes on")
	s := stats(p)
	assert.EqualValues(t, 1, s.Failed)
	assert.EqualValues(t, 1, s.Connections)
	assert.Zero(t, s.Broken)
	for _, target := range p.Stats("lb-1").Targets {
		assert.Zero(t, target.Failed)
	}
}

func TestTheLimitIsForBothFamilies(t *testing.T) {
	p, port := newPlane(t), freePort(t)
	six := netip.IPv6Loopback()
	c, err := net.DialUDP("udp6", nil, net.UDPAddrFromAddrPort(netip.AddrPortFrom(six, uint16(port))))
	if err != nil {
		t.Skipf("this machine has no IPv6 on loopback: %v", err)
	}
	t.Cleanup(func() { _ = c.Close() })
	f := udpForwarding(portOf(udpBackend(t, two, "two", 0)), []string{two}, port)
	f.Address6, f.Listeners[0].ConnectionLimit = six, 1
	require.NoError(t, p.Apply(f))
	assert.Equal(t, "two", talk(t, udpClient(t, four, port), "hello"))
	say(t, c, "one too many")
	require.Eventually(t, func() bool { return stats(p).Refused == 1 }, patience, time.Millisecond)
	assert.EqualValues(t, 1, stats(p).Active)
}

// A client that has a connection is not silent, however long ago that began.
func TestAffinityLastsAsLongAsAConnection(t *testing.T) {
	p, port := newPlane(t), freePort(t)
	a := newMortal(t, two, "a", 0)
	target := a.Addr().(*net.TCPAddr).Port
	newMortal(t, three, "b", target)
	f := forwarding(target, []string{two, three}, port)
	f.Affinity = time.Millisecond
	require.NoError(t, p.Apply(f))
	_, own := greeted(t, four, port)
	for range 20 {
		_, name := greeted(t, four, port)
		require.Equal(t, own, name)
	}
}
