package dataplane_test

import (
	"io"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/fakecloud/cloud"
	"github.com/ccmlab/ccmlab/fakecloud/dataplane"
)

// hourly is a check that, in a test, is made once.
func hourly(port int) *cloud.HealthCheck {
	return &cloud.HealthCheck{Protocol: cloud.CheckTCP, Port: port, Interval: time.Hour, Timeout: patience, HealthyThreshold: 3, UnhealthyThreshold: 3}
}

// mortal is a backend that greets with its name, of one letter, echoes, and can
// die as a process does: its port closes, and its connections end in good order
// or, if it had not read all, are reset.
type mortal struct {
	net.Listener
	conns chan *net.TCPConn
}

func newMortal(t *testing.T, host, name string, port int) *mortal {
	t.Helper()
	l := listen(t, host, port)
	m := &mortal{l, make(chan *net.TCPConn, 100)}
	t.Cleanup(func() { m.die(0) })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			m.conns <- c.(*net.TCPConn)
			_, _ = io.WriteString(c, name)
			go func() { _, _ = io.Copy(c, c) }()
		}
	}()
	return m
}

func (m *mortal) die(linger int) {
	_ = m.Close()
	for {
		select {
		case c := <-m.conns:
			_ = c.SetLinger(linger)
			_ = c.Close()
		default:
			return
		}
	}
}

// beforeADeath is a balancer with two healthy targets: a, which is to die, and b.
func beforeADeath(t *testing.T) (p *dataplane.Plane, port int, a *mortal) {
	t.Helper()
	p, port, a = newPlane(t), freePort(t), newMortal(t, two, "a", 0)
	target := a.Addr().(*net.TCPAddr).Port
	newMortal(t, three, "b", target)
	f := forwarding(target, []string{two, three}, port)
	f.HealthCheck = hourly(target)
	require.NoError(t, p.Apply(f))
	awaitHealth(t, p, 0, cloud.Healthy)
	awaitHealth(t, p, 1, cloud.Healthy)
	return p, port, a
}

func TestDeathMidConnectionIsNoticedAtOnce(t *testing.T) {
	for how, linger := range map[string]int{"connections end": -1, "connections break": 0} {
		t.Run(how, func(t *testing.T) {
			p, port, a := beforeADeath(t)

			var c net.Conn
			for name := ""; name != "a"; {
				c, name = greeted(t, four, port)
			}
			a.die(linger)
			_, err := c.Read(make([]byte, 1))
			require.Error(t, err, "its client learns at once")
			dead := awaitHealth(t, p, 0, cloud.Unhealthy)
			assert.Contains(t, dead.Reason, "connection refused")
			var states []cloud.Health
			for _, was := range dead.History {
				states = append(states, was.Health)
			}
			assert.Equal(t, []cloud.Health{cloud.Unhealthy, cloud.Healthy, cloud.Unknown}, states, "the latest first")
			assert.Equal(t, cloud.HealthChange{Health: cloud.Unhealthy, Reason: dead.Reason, At: dead.Since}, dead.History[0])
			if linger == 0 {
				require.Eventually(t, func() bool { return stats(p).Broken >= 1 }, patience, time.Millisecond)
			}
			// A connection is counted with its listener first.
			require.Eventually(t, func() bool { return stats(p).Broken == p.Stats("lb-1").Targets[0].Broken }, patience, time.Millisecond)
			for range 4 {
				assert.Equal(t, "b", greeter(t, port))
			}
		})
	}
}

func greeter(t *testing.T, port int) string {
	t.Helper()
	c, name := greeted(t, four, port)
	_ = c.Close()
	return name
}

func TestRefusedConnectionIsNoticedAtOnce(t *testing.T) {
	p, port, a := beforeADeath(t)
	a.die(0)
	for range 2 { // One of them is for the dead one, and goes on to the other.
		assert.Equal(t, "b", greeter(t, port))
	}
	awaitHealth(t, p, 0, cloud.Unhealthy)
	assert.EqualValues(t, 1, p.Stats("lb-1").Targets[0].Failed)
	assert.Zero(t, stats(p).Failed, "no client was turned away")
}

func resets(c net.Conn) {
	_ = c.(*net.TCPConn).SetLinger(0)
	_ = c.Close()
}

// A target that breaks connections and passes its checks stays healthy.
func TestSuspicionAloneIsNoVerdict(t *testing.T) {
	p, port := newPlane(t), freePort(t)
	target := backend(t, two, 0, resets)
	well := newWellness(t, two, 0)
	f := forwarding(target, []string{two}, port)
	f.HealthCheck = overHTTP(well.port)
	f.HealthCheck.Interval, f.HealthCheck.Timeout = time.Hour, patience
	require.NoError(t, p.Apply(f))
	awaitHealth(t, p, 0, cloud.Healthy)
	asked := well.asks.Load()
	for range 5 {
		requireReset(t, four, port)
	}
	require.Eventually(t, func() bool { return well.asks.Load() > asked }, patience, time.Millisecond, "it is asked at once")
	// Of some, the reset comes while the balancer still connects.
	require.Eventually(t, func() bool { return stats(p).Broken+stats(p).Failed == 5 }, patience, time.Millisecond)
	assert.Equal(t, cloud.Healthy, p.Health("lb-1")[0].Health)
}

func TestTargetsAreCounted(t *testing.T) {
	p, port := newPlane(t), freePort(t)
	target := backend(t, two, 0, echo)
	backend(t, three, target, echo)
	f := forwarding(target, []string{two, three}, port)
	require.NoError(t, p.Apply(f))
	for range 3 {
		exchange(t, dial(t, port), "four")
	}
	// While they are still open.
	require.Eventually(t, func() bool { return stats(p).Bytes == cloud.Bytes{In: 12, Out: 12} }, patience, time.Millisecond)
	all := p.Stats("lb-1").Targets
	require.Len(t, all, 2)
	assert.Equal(t, cloud.TargetStats{Target: "i-" + two, Connections: 2, Active: 2, Bytes: cloud.Bytes{In: 8, Out: 8}}, all[0])
	assert.Equal(t, cloud.TargetStats{Target: "i-" + three, Connections: 1, Active: 1, Bytes: cloud.Bytes{In: 4, Out: 4}}, all[1])

	f.Backends = f.Backends[1:]
	require.NoError(t, p.Apply(f))
	assert.Equal(t, []cloud.TargetStats{all[1], all[0]}, p.Stats("lb-1").Targets, "one that is left out goes on with what it has")
	require.NoError(t, p.Apply(forwarding(target, []string{two, three}, port)))
	assert.Equal(t, all, p.Stats("lb-1").Targets, "one that comes back counts on")
}

func TestBothFamilies(t *testing.T) {
	p, port := newPlane(t), freePort(t)
	six := netip.IPv6Loopback()
	if l, err := net.Listen("tcp6", netip.AddrPortFrom(six, uint16(port)).String()); err != nil {
		t.Skipf("this machine has no IPv6 on loopback, or the port is taken there: %v", err)
	} else {
		require.NoError(t, l.Close())
	}
	target := backend(t, two, 0, echo)
	udp := portOf(udpBackend(t, two, "two", 0))
	f := forwarding(target, []string{two}, port)
	f.Listeners = append(f.Listeners, cloud.Listener{Protocol: cloud.UDP, Port: port, TargetPort: udp})
	f.Address6 = six
	require.NoError(t, p.Apply(f))

	over := func(network string) net.Conn {
		c, err := net.DialTimeout(network, netip.AddrPortFrom(six, uint16(port)).String(), patience)
		require.NoError(t, err)
		t.Cleanup(func() { _ = c.Close() })
		require.NoError(t, c.SetDeadline(time.Now().Add(patience)))
		return c
	}
	exchange(t, over("tcp6"), "over six")
	exchange(t, dial(t, port), "over four")
	assert.Equal(t, "two", talk(t, over("udp6").(*net.UDPConn), "hello"))
	assert.Equal(t, "two", talk(t, udpClient(t, four, port), "hello"))
	assert.EqualValues(t, 2, p.Stats("lb-1").Listeners[0].Connections, "both count as one listener's")
	assert.EqualValues(t, 2, p.Stats("lb-1").Listeners[1].Connections)

	f.SourceRanges = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}
	require.NoError(t, p.Apply(f))
	c, err := net.DialTimeout("tcp6", netip.AddrPortFrom(six, uint16(port)).String(), patience)
	if err == nil {
		_, err = c.Read(make([]byte, 1))
		_ = c.Close()
	}
	require.Error(t, err, "no range has it")
	exchange(t, dial(t, port), "over four")

	kept := dial(t, port)
	exchange(t, kept, "before")
	f.Address6 = netip.Addr{}
	require.NoError(t, p.Apply(f))
	_, err = net.DialTimeout("tcp6", netip.AddrPortFrom(six, uint16(port)).String(), patience)
	require.Error(t, err)
	exchange(t, kept, "after")
}
