package dataplane_test

import (
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/fakecloud/cloud"
)

// listenUDP is listen for datagrams.
func listenUDP(t *testing.T, host string, port int) *net.UDPConn {
	t.Helper()
	for {
		c, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.ParseIP(host), Port: port})
		require.NoError(t, err)
		if port != 0 {
			return c
		}
		other, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.ParseIP(three), Port: portOf(c)})
		if err == nil {
			_ = other.Close()
			return c
		}
		_ = c.Close()
	}
}

// udpBackend answers each datagram with its name and what it got, on host at
// port (0: any), until it is closed.
func udpBackend(t *testing.T, host, name string, port int) *net.UDPConn {
	t.Helper()
	c := listenUDP(t, host, port)
	t.Cleanup(func() { _ = c.Close() })
	go func() {
		buf := make([]byte, 64<<10)
		for {
			n, from, err := c.ReadFromUDPAddrPort(buf)
			if err != nil {
				return
			}
			_, _ = c.WriteToUDPAddrPort(append([]byte(name+" "), buf[:n]...), from)
		}
	}()
	return c
}

func portOf(c net.PacketConn) int { return c.LocalAddr().(*net.UDPAddr).Port }

func udpForwarding(targetPort int, hosts []string, ports ...int) cloud.Forwarding {
	f := forwarding(targetPort, hosts, ports...)
	for i := range f.Listeners {
		f.Listeners[i].Protocol = cloud.UDP
	}
	return f
}

// udpClient takes answers from the balancer only: its socket is connected.
func udpClient(t *testing.T, host string, port int) *net.UDPConn {
	t.Helper()
	c, err := net.DialUDP("udp4", &net.UDPAddr{IP: net.ParseIP(host)}, net.UDPAddrFromAddrPort(netip.AddrPortFrom(front, uint16(port))))
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func say(t *testing.T, c *net.UDPConn, text string) {
	t.Helper()
	_, err := io.WriteString(c, text)
	require.NoError(t, err)
}

// talk says something and gives the name of who answers.
func talk(t *testing.T, c *net.UDPConn, text string) string {
	t.Helper()
	say(t, c, text)
	require.NoError(t, c.SetReadDeadline(time.Now().Add(patience)))
	buf := make([]byte, 64<<10)
	n, err := c.Read(buf)
	require.NoError(t, err)
	name, got, _ := strings.Cut(string(buf[:n]), " ")
	require.Equal(t, text, got)
	return name
}

func TestDatagramsStayInTheirSession(t *testing.T) {
	p, port := newPlane(t), freePort(t)
	target := portOf(udpBackend(t, two, "two", 0))
	udpBackend(t, three, "three", target)
	require.NoError(t, p.Apply(udpForwarding(target, []string{two, three}, port)))
	seen := map[string]int{}
	var clients []*net.UDPConn
	for i := range 4 {
		c := udpClient(t, four, port)
		name := talk(t, c, fmt.Sprint("first of ", i))
		seen[name]++
		for range 3 {
			assert.Equal(t, name, talk(t, c, "again"))
		}
		clients = append(clients, c)
	}
	assert.Equal(t, map[string]int{"two": 2, "three": 2}, seen)
	large := strings.Repeat("x", 60_000)
	name := talk(t, clients[0], large)
	assert.Equal(t, name, talk(t, clients[0], ""), "an empty datagram is one, too")
	in := 4*len("first of 0againagainagain") + len(large)
	out := in + 8*len("two three ") + 2*len(name+" ")
	require.Eventually(t, func() bool { return stats(p).In == int64(in) && stats(p).Out == int64(out) }, patience, time.Millisecond)
	s := stats(p)
	assert.EqualValues(t, 4, s.Connections)
	assert.EqualValues(t, 4, s.Active)
	assert.Zero(t, s.Failed)

	require.NoError(t, p.Apply(udpForwarding(target, []string{two})), "the listener goes")
	require.NoError(t, p.Apply(udpForwarding(target, []string{two}, port)), "and comes back")
	assert.Equal(t, "two", talk(t, clients[0], "hello"))
	assert.Equal(t, "two", talk(t, clients[1], "hello"))
	assert.EqualValues(t, 6, stats(p).Connections)
}

func TestDatagramsLeaveLostTargets(t *testing.T) {
	p, port := newPlane(t), freePort(t)
	backends := map[string]*net.UDPConn{"two": udpBackend(t, two, "two", 0)}
	target := portOf(backends["two"])
	backends["three"] = udpBackend(t, three, "three", target)
	f := udpForwarding(target, []string{two, three}, port)
	f.Affinity = time.Hour
	require.NoError(t, p.Apply(f))
	c := udpClient(t, four, port)
	first := talk(t, c, "hello")
	require.NoError(t, backends[first].Close())
	say(t, c, "lost: it is refused")
	require.Eventually(t, func() bool { return stats(p).Active == 0 }, patience, time.Millisecond)
	second := talk(t, c, "hello")
	assert.NotEqual(t, first, second)
	assert.Equal(t, second, talk(t, udpClient(t, four, port), "hello"), "the client has a new target")
	for range 4 { // Clients from elsewhere are spared the target that refused.
		assert.Equal(t, second, talk(t, udpClient(t, two, port), "hello"))
	}
	udpBackend(t, map[string]string{"two": two, "three": three}[first], first, target)

	gone := map[string]string{"two": two, "three": three}[second]
	f.Backends = forwarding(target, []string{map[string]string{two: three, three: two}[gone]}).Backends
	require.NoError(t, p.Apply(f))
	assert.Equal(t, first, talk(t, c, "hello"), "nothing is sent to what is no target any more")

	f.Backends = nil
	require.NoError(t, p.Apply(f))
	say(t, c, "dropped")
	require.Eventually(t, func() bool { return stats(p).Failed == 1 }, patience, time.Millisecond)
}

func TestSessionsEnd(t *testing.T) {
	p, port := newPlane(t), freePort(t)
	p.LimitSessions(2, patience)
	target := portOf(udpBackend(t, two, "two", 0))
	f := udpForwarding(target, []string{two}, port)
	require.NoError(t, p.Apply(f))
	a, b, c := udpClient(t, three, port), udpClient(t, three, port), udpClient(t, three, port)
	talk(t, a, "1")
	talk(t, b, "2")
	talk(t, a, "3")
	talk(t, c, "4 makes room by ending what was silent longest: b")
	require.Eventually(t, func() bool { return stats(p).Active == 2 }, patience, time.Millisecond)
	talk(t, a, "5")
	assert.EqualValues(t, 3, stats(p).Connections, "a goes on")
	talk(t, b, "6")
	assert.EqualValues(t, 4, stats(p).Connections)

	p.Remove("lb-1")
	p.LimitSessions(2, time.Second)
	require.NoError(t, p.Apply(f))
	talk(t, a, "1")
	require.Eventually(t, func() bool { return stats(p).Active == 0 }, patience, time.Millisecond)
	talk(t, a, "2")
	assert.EqualValues(t, 2, stats(p).Connections)
}

func TestSourceRangesDropDatagrams(t *testing.T) {
	p, port := newPlane(t), freePort(t)
	target := portOf(udpBackend(t, two, "two", 0))
	f := udpForwarding(target, []string{two}, port)
	f.SourceRanges = []netip.Prefix{netip.PrefixFrom(netip.MustParseAddr(three), 32)}
	require.NoError(t, p.Apply(f))
	inside, outside := udpClient(t, three, port), udpClient(t, four, port)
	talk(t, inside, "hello")
	say(t, outside, "dropped")
	say(t, outside, "dropped")
	require.Eventually(t, func() bool { return stats(p).Refused == 2 }, patience, time.Millisecond)
	f.SourceRanges = nil
	require.NoError(t, p.Apply(f))
	talk(t, outside, "hello")
	assert.EqualValues(t, 2, stats(p).Connections)
}

func TestOnePortOfEachProtocol(t *testing.T) {
	p, port := newPlane(t), freePort(t)
	u := udpBackend(t, two, "udp", 0)
	target := backend(t, two, portOf(u), says("tcp"))
	f := forwarding(target, []string{two}, port)
	f.Listeners = append(f.Listeners, udpForwarding(target, nil, port).Listeners...)
	require.NoError(t, p.Apply(f))
	c := udpClient(t, three, port)
	assert.Equal(t, "tcp", ask(t, port))
	assert.Equal(t, "udp", talk(t, c, "hello"))
	all := p.Stats("lb-1").Listeners
	require.Len(t, all, 2)
	for i, protocol := range []cloud.Protocol{cloud.TCP, cloud.UDP} {
		assert.Equal(t, protocol, all[i].Listener.Protocol)
		assert.EqualValues(t, 1, all[i].Connections)
	}
	f.Listeners = f.Listeners[1:]
	require.NoError(t, p.Apply(f))
	assert.Equal(t, "udp", talk(t, c, "hello"))
	assert.EqualValues(t, 1, stats(p).Connections, "the session went on")

	blocker, err := net.ListenUDP("udp4", &net.UDPAddr{IP: front.AsSlice()})
	require.NoError(t, err)
	defer func() { _ = blocker.Close() }()
	require.ErrorContains(t, p.Apply(udpForwarding(target, []string{two}, port, portOf(blocker))), "ss -lnup")
}
