package dataplane_test

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/cloud"
)

// A long transfer in each direction outlives any number of changes that keep its listener
// and target.
func TestReconfigurationSparesLongTransfers(t *testing.T) {
	inAllCopyModes(t, func(t *testing.T, w copyMode) {
		p, port, other := newPlane(t), freePort(t), freePort(t)
		target := startTarget(t, two, 0, echo)
		startTarget(t, three, target, echo)
		f := forwarding(target, []string{two}, port)
		f.IdleTimeout = w.idle
		require.NoError(t, p.Apply(f))
		c := dial(t, port)
		requireEcho(t, c, "hello") // The connection now has its target.
		said := newRandomStream(12, 64<<10)
		done, written := make(chan struct{}), make(chan error, 1)
		go func() {
			var err error
			for more := true; more && err == nil; {
				err = said.write(c, 256<<10)
				select {
				case <-done:
					more = false
				default:
				}
			}
			written <- errors.Join(err, c.CloseWrite())
		}()
		changed := make(chan error, 1)
		go func() {
			defer close(done)
			for i := range 100 {
				g := f
				g.Drain, g.Listeners = time.Nanosecond, f.Listeners[:1:1]
				g.Backends = forwarding(0, [][]string{{two}, {three, two}, {two, three}}[i%3]).Backends
				g.Affinity = time.Duration(i%2) * time.Hour
				if i%2 == 0 {
					g.Listeners = append(g.Listeners, cloud.Listener{Protocol: api.ProtocolTCP, Port: other, TargetPort: target})
				}
				if i%5 == 0 {
					g.HealthCheck = &cloud.HealthCheck{
						Protocol: api.HealthCheckTCP, Port: 1, IntervalSeconds: seconds(time.Second), TimeoutSeconds: seconds(time.Second),
					}
				}
				g.Algorithm = []cloud.Algorithm{api.AlgorithmRoundRobin, api.AlgorithmLeastConnections, api.AlgorithmSourceHash}[i%3]
				g.IdleTimeout = []time.Duration{w.idle, time.Minute}[i%2]
				g.Listeners[0].ConnectionLimit = i % 2
				g.SourceRanges = [][]netip.Prefix{nil, {netip.MustParsePrefix("10.0.0.0/8")}}[i%2]
				g.Listeners[0].ProxyProtocol = []api.ProxyProtocol{"", api.ProxyProtocolV1, api.ProxyProtocolV2}[i%3]
				if err := p.Apply(g); err != nil {
					changed <- err
					return
				}
			}
			changed <- nil
		}()
		_, digest, err := readToEnd(c)
		require.NoError(t, err)
		require.NoError(t, <-written)
		require.NoError(t, <-changed)
		assert.Equal(t, said.digest(), digest)
		awaitNoConnections(t, p)
	})
}

// A balancer that gets another address accepts connections there, and the connections to
// its former address go on.
func TestConnectionsOutliveAddressChange(t *testing.T) {
	p, port := newPlane(t), freePort(t)
	target := startTarget(t, two, 0, echo)
	f := forwarding(target, []string{two}, port)
	require.NoError(t, p.Apply(f))
	c := dial(t, port)
	requireEcho(t, c, "hello")
	f.Addresses = []netip.Addr{netip.AddrFrom4([4]byte{127, 76, byte(os.Getpid() >> 8), byte(os.Getpid())})}
	require.NoError(t, p.Apply(f))
	requireEcho(t, c, "still here")
	there, err := net.DialTimeout("tcp4", netip.AddrPortFrom(f.Addresses[0], uint16(port)).String(), testTimeout)
	require.NoError(t, err)
	defer func() { _ = there.Close() }()
	requireEcho(t, there, "and there")
	_, err = net.DialTimeout("tcp4", netip.AddrPortFrom(front, uint16(port)).String(), testTimeout)
	require.Error(t, err)
}
