package dataplane_test

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/internal/must"
)

func TestDatagramsOfEachSize(t *testing.T) {
	const largest = 65_507 // payload of an IPv4 datagram
	p, port := newPlane(t), freePort(t)
	require.NoError(t, p.Apply(udpForwarding(portOf(startUDPEcho(t, two, 0)), []string{two}, port)))
	c, total := udpClient(t, four, port), 0
	require.NoError(t, c.SetDeadline(time.Now().Add(testTimeout)))
	got, source := make([]byte, 64<<10), rand.NewChaCha8([32]byte{1})
	for _, size := range []int{
		0, 1, 2, 511, 512, 1471, 1472, 1473, 1500, 2047, 2048, 2049, 4096, 8192, 9000, 16_384, 32_767, 65_506, largest,
		0, largest, 1,
	} {
		sent := make([]byte, size)
		_, _ = source.Read(sent)
		must.Do(c.Write(sent))(t)
		n := must.Do(c.Read(got))(t, "%d bytes", size)
		require.True(t, bytes.Equal(sent, got[:n]), "%d bytes went, %d came", size, n)
		total += size
	}
	_, err := c.Write(make([]byte, largest+1))
	require.ErrorIs(t, err, syscall.EMSGSIZE)
	await(t, func() bool { return carriedBytes(listenerStats(p)) == [2]int64{int64(total), int64(total)} })
	assert.EqualValues(t, 1, listenerStats(p).Connections)
	assert.Zero(t, listenerStats(p).FailedConnections)
}

func TestDatagramsKeepTheirOrder(t *testing.T) {
	const rounds, burst = 100, 8 // Few enough to fit any socket's buffer.
	p, port := newPlane(t), freePort(t)
	require.NoError(t, p.Apply(udpForwarding(portOf(startUDPEcho(t, two, 0)), []string{two}, port)))
	c := udpClient(t, four, port)
	for round := range rounds {
		for i := range burst {
			sendText(t, c, fmt.Sprint(round, i))
		}
		for i := range burst {
			require.Equal(t, fmt.Sprint(round, i), receiveText(t, c))
		}
	}
}

func TestOptionsEndNoSession(t *testing.T) {
	p, port, f := newUDPPair(t)
	require.NoError(t, p.Apply(f))
	c := udpClient(t, four, port)
	own := sendAndReadName(t, c, "hello")
	for _, change := range []func(){
		func() { f.Algorithm = api.AlgorithmLeastConnections },
		func() { f.Algorithm = api.AlgorithmSourceHash },
		func() { f.Affinity = time.Hour },
		func() { f.IdleTimeout = time.Hour },
		func() { f.SourceRanges = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")} },
		func() { f.ConnectionLimit, f.Listeners[0].ConnectionLimit = 1, 1 },
	} {
		change()
		require.NoError(t, p.Apply(f))
		for range 3 {
			assert.Equal(t, own, sendAndReadName(t, c, "again"))
		}
	}
	assert.EqualValues(t, 1, listenerStats(p).Connections)
	assert.Zero(t, listenerStats(p).FailedConnections+listenerStats(p).RefusedConnections)
}

func TestOtherTargetsEndNoSession(t *testing.T) {
	p, port, f := newUDPPair(t)
	require.NoError(t, p.Apply(f))
	clients := map[string]*net.UDPConn{}
	for range 2 {
		c := udpClient(t, four, port)
		clients[sendAndReadName(t, c, "hello")] = c
	}
	both := f.Backends
	f.Backends = both[1:]
	require.NoError(t, p.Apply(f))
	assert.Equal(t, "three", sendAndReadName(t, clients["three"], "hello"))
	assert.EqualValues(t, 2, listenerStats(p).Connections)
	assert.Equal(t, "three", sendAndReadName(t, clients["two"], "hello"))
	assert.EqualValues(t, 3, listenerStats(p).Connections, "only the session of the target that left ends")
	f.Backends = both
	require.NoError(t, p.Apply(f))
	for _, c := range clients {
		assert.Equal(t, "three", sendAndReadName(t, c, "hello"), "a target that comes takes no session")
	}
	assert.EqualValues(t, 3, listenerStats(p).Connections)
}

func TestUDPListenerChangesPortAndTargetPort(t *testing.T) {
	p, port, next := newPlane(t), freePort(t), freePort(t)
	target := portOf(udpBackend(t, two, "one", 0))
	other := portOf(udpBackend(t, two, "other", 0))
	require.NoError(t, p.Apply(udpForwarding(target, []string{two}, port)))
	c := udpClient(t, four, port)
	assert.Equal(t, "one", sendAndReadName(t, c, "hello"))
	require.NoError(t, p.Apply(udpForwarding(other, []string{two}, port)))
	assert.Equal(t, "other", sendAndReadName(t, c, "the listener's target port is another"))

	require.NoError(t, p.Apply(udpForwarding(other, []string{two}, next)))
	assert.Equal(t, "other", sendAndReadName(t, udpClient(t, four, next), "hello"))
	require.NoError(t, c.SetReadDeadline(time.Now().Add(testTimeout)))
	_, _ = io.WriteString(c, "nobody is there")
	_, err := c.Read(make([]byte, 64))
	require.ErrorIs(t, err, syscall.ECONNREFUSED)
	await(t, func() bool { return listenerStats(p).ActiveConnections == 1 })

	p.Remove("lb-1")
	tcp := startTarget(t, two, 0, echo)
	require.NoError(t, p.Apply(forwarding(tcp, []string{two}, port)), "the port can be of the other protocol")
	requireEcho(t, dial(t, port), "hello")
}

// A datagram that fits into IPv6 and not into IPv4 counts as no failure of the target.
func TestOversizedDatagramIsDropped(t *testing.T) {
	p, port, f := newUDPPair(t)
	six := netip.IPv6Loopback()
	c, err := net.DialUDP("udp6", nil, net.UDPAddrFromAddrPort(netip.AddrPortFrom(six, uint16(port))))
	if err != nil {
		t.Skipf("this machine has no IPv6 on loopback: %v", err)
	}
	t.Cleanup(func() { _ = c.Close() })
	f.Addresses = append(f.Addresses[:1:1], six)
	require.NoError(t, p.Apply(f))
	first := sendAndReadName(t, c, "hello")
	must.Do(c.Write(make([]byte, 65_520)))(t)
	assert.Equal(t, first, sendAndReadName(t, c, "hello"), "the session goes on")
	s := listenerStats(p)
	assert.EqualValues(t, 1, s.FailedConnections)
	assert.EqualValues(t, 1, s.Connections)
	assert.Zero(t, s.BrokenConnections)
	for _, target := range p.Stats("lb-1").Targets {
		assert.Zero(t, target.FailedConnections)
	}
}
