package dataplane_test

import (
	"io"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/pires/go-proxyproto"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/fakecloud/cloud"
)

func TestSourceRangesRefuseOthers(t *testing.T) {
	p, port := newPlane(t), freePort(t)
	dialled := make(chan struct{}, 10)
	target := startTarget(t, four, 0, func(c net.Conn) {
		dialled <- struct{}{}
		echo(c)
	})
	f := forwarding(target, []string{four}, port)
	f.SourceRanges = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.PrefixFrom(netip.MustParseAddr(two), 32)}
	require.NoError(t, p.Apply(f))
	inside, err := dialFrom(t, two, port)
	require.NoError(t, err)
	requireEcho(t, inside, "hello")
	requireReset(t, three, port)

	f.SourceRanges = []netip.Prefix{netip.PrefixFrom(netip.MustParseAddr(three), 32)}
	require.NoError(t, p.Apply(f))
	requireReset(t, two, port)
	requireEcho(t, inside, "connected before")
	other, err := dialFrom(t, three, port)
	require.NoError(t, err)
	requireEcho(t, other, "hello")

	assert.Len(t, dialled, 2, "who is refused costs the targets nothing")
	s := listenerStats(p)
	assert.EqualValues(t, 2, s.Refused)
	assert.EqualValues(t, 2, s.Connections)
	assert.Zero(t, s.Failed)
}

func TestAffinityOverChangingTargets(t *testing.T) {
	p, port := newPlane(t), freePort(t)
	target := startTarget(t, two, 0, greetAndClose("two"))
	startTarget(t, three, target, greetAndClose("three"))
	f := forwarding(target, []string{two, three, four}, port) // Nobody answers at four.
	f.Affinity = time.Hour
	require.NoError(t, p.Apply(f))
	first, second := greetingFrom(t, two, port), greetingFrom(t, three, port)
	for range 5 {
		assert.Equal(t, first, greetingFrom(t, two, port))
		assert.Equal(t, second, greetingFrom(t, three, port))
	}

	left := map[string]string{"two": three, "three": two}[first]
	other := map[string]string{"two": "three", "three": "two"}[first]
	f.Backends = forwarding(target, []string{left, four}).Backends
	require.NoError(t, p.Apply(f))
	for range 3 {
		assert.Equal(t, other, greetingFrom(t, two, port))
	}
	f.Backends = forwarding(target, []string{two, three, four}).Backends
	require.NoError(t, p.Apply(f))
	for range 5 {
		assert.Equal(t, other, greetingFrom(t, two, port), "the new choice is kept")
	}

	f.Affinity = 0
	require.NoError(t, p.Apply(f))
	seen := map[string]bool{}
	for range 6 {
		seen[greetingFrom(t, two, port)] = true
	}
	assert.Len(t, seen, 2)
}

func TestAffinityEndsWithSilence(t *testing.T) {
	p, port := newPlane(t), freePort(t)
	target := startTarget(t, two, 0, greetAndClose("two"))
	startTarget(t, three, target, greetAndClose("three"))
	f := forwarding(target, []string{two, three}, port)
	f.Affinity = time.Millisecond
	require.NoError(t, p.Apply(f))
	first := greetingFrom(t, four, port)
	require.Eventually(t, func() bool { return greetingFrom(t, four, port) != first }, testTimeout, 5*time.Millisecond)
}

func TestProxyProtocolNamesClient(t *testing.T) {
	for version, number := range map[cloud.ProxyProtocol]byte{cloud.ProxyV1: 1, cloud.ProxyV2: 2} {
		t.Run(string(version), func(t *testing.T) {
			p, port := newPlane(t), freePort(t)
			l, err := net.Listen("tcp4", two+":0")
			require.NoError(t, err)
			proxied := &proxyproto.Listener{Listener: l, ReadHeaderTimeout: testTimeout}
			t.Cleanup(func() { _ = proxied.Close() })
			got := make(chan *proxyproto.Header, 1)
			go func() {
				c, err := proxied.Accept()
				if err != nil {
					return
				}
				defer func() { _ = c.Close() }()
				got <- c.(*proxyproto.Conn).ProxyHeader()
				_, _ = io.Copy(c, c)
			}()
			f := forwarding(l.Addr().(*net.TCPAddr).Port, []string{four, two}, port)
			f.Listeners[0].ProxyProtocol = version
			require.NoError(t, p.Apply(f))
			c, err := dialFrom(t, three, port)
			require.NoError(t, err)
			select { // The client has sent nothing yet.
			case h := <-got:
				require.NotNil(t, h)
				assert.Equal(t, number, h.Version)
				assert.Equal(t, c.LocalAddr().String(), h.SourceAddr.String())
				assert.Equal(t, c.RemoteAddr().String(), h.DestinationAddr.String())
			case <-time.After(testTimeout):
				t.Fatal("no header came")
			}
			requireEcho(t, c, "hello")
			require.NoError(t, c.CloseWrite())
			_, err = c.Read(make([]byte, 1))
			require.ErrorIs(t, err, io.EOF)
			require.Eventually(t, func() bool {
				return listenerStats(p).In == 5 &&
					listenerStats(p).Out == 5
			}, testTimeout, time.Millisecond)
		})
	}
}

// A client with an open connection is not silent, however old the connection is.
func TestAffinityLastsAsLongAsAConnection(t *testing.T) {
	p, port := newPlane(t), freePort(t)
	target := startTarget(t, two, 0, greetAndEcho("a"))
	startTarget(t, three, target, greetAndEcho("b"))
	f := forwarding(target, []string{two, three}, port)
	f.Affinity = time.Millisecond
	require.NoError(t, p.Apply(f))
	_, own := dialAndReadName(t, four, port)
	for range 20 {
		_, name := dialAndReadName(t, four, port)
		require.Equal(t, own, name)
	}
}
