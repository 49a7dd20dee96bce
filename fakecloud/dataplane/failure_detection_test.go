package dataplane_test

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/cloud"
	"github.com/ccmlab/ccmlab/fakecloud/dataplane"
)

// hourlyCheck is a health check that a test sees once, unless a failure requests more.
func hourlyCheck(port int) *cloud.HealthCheck {
	return &cloud.HealthCheck{
		Protocol: api.HealthCheckTCP, Port: port, IntervalSeconds: seconds(time.Hour), TimeoutSeconds: seconds(testTimeout), HealthyThreshold: 3,
		UnhealthyThreshold: 3,
	}
}

// killableTarget is a target that greets with its name, echoes, and can die as
// a process does: its port closes, and its connections end in good order or, if it had
// not read everything, are reset.
type killableTarget struct {
	net.Listener
	conns chan *net.TCPConn
}

func newKillableTarget(t *testing.T, host, name string, port int) *killableTarget {
	t.Helper()
	l := listen(t, host, port)
	m := &killableTarget{l, make(chan *net.TCPConn, 100)}
	t.Cleanup(func() { m.kill(0) })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			m.conns <- c.(*net.TCPConn)
			_, _ = io.WriteString(c, name+"\n")
			go func() { _, _ = io.Copy(c, c) }()
		}
	}()
	return m
}

func (m *killableTarget) kill(linger int) {
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

// newKillablePair starts a balancer with two healthy targets. The test kills the first.
func newKillablePair(t *testing.T) (p *dataplane.Plane, port int, a *killableTarget) {
	t.Helper()
	p, port, a = newPlane(t), freePort(t), newKillableTarget(t, two, "two", 0)
	target := a.Addr().(*net.TCPAddr).Port
	newKillableTarget(t, three, "three", target)
	f := forwarding(target, []string{two, three}, port)
	f.HealthCheck = hourlyCheck(target)
	require.NoError(t, p.Apply(f))
	awaitHealth(t, p, 0, api.TargetHealthy)
	awaitHealth(t, p, 1, api.TargetHealthy)
	return p, port, a
}

func TestTargetDeathMidConnectionTriggersCheck(t *testing.T) {
	for how, linger := range map[string]int{"connections end": -1, "connections break": 0} {
		t.Run(how, func(t *testing.T) {
			p, port, a := newKillablePair(t)

			var c net.Conn
			for name := ""; name != "two"; {
				c, name = dialAndReadName(t, four, port)
			}
			a.kill(linger)
			_, err := c.Read(make([]byte, 1))
			require.Error(t, err, "its client learns at once")
			dead := awaitHealth(t, p, 0, api.TargetUnhealthy)
			assert.Contains(t, dead.Reason, "connection refused")
			var states []api.TargetHealthState
			for _, was := range dead.History {
				states = append(states, was.Health)
			}
			assert.Equal(t, []api.TargetHealthState{api.TargetUnhealthy, api.TargetHealthy, api.TargetUnknown}, states, "the latest first")
			assert.Equal(
				t, api.HealthChange{Health: api.TargetUnhealthy, Reason: dead.Reason, At: *dead.Since}, dead.History[0],
			)
			if linger == 0 {
				await(t, func() bool { return listenerStats(p).BrokenConnections >= 1 })
			}
			// The listener counts a connection before the target does.
			await(t, func() bool { return listenerStats(p).BrokenConnections == p.Stats("lb-1").Targets[0].BrokenConnections })
			for range 4 {
				assert.Equal(t, "three", greetingFrom(t, four, port))
			}
		})
	}
}

func TestRefusedConnectionTriggersCheck(t *testing.T) {
	p, port, a := newKillablePair(t)
	a.kill(0)
	for range 2 { // One of them is first sent to the dead target, then to the other.
		assert.Equal(t, "three", greetingFrom(t, four, port))
	}
	awaitHealth(t, p, 0, api.TargetUnhealthy)
	assert.EqualValues(t, 1, p.Stats("lb-1").Targets[0].FailedConnections)
	assert.Zero(t, listenerStats(p).FailedConnections, "no client was turned away")
}

// A target that serves one port and refuses another keeps its clients on the first.
func TestRefusalsArePerPort(t *testing.T) {
	p, good, f := newPair(t)
	bad, nobody := freePort(t), freePort(t)
	startTarget(t, three, nobody, greetAndEcho("three"))
	f.Listeners = append(f.Listeners, cloud.Listener{Protocol: api.ProtocolTCP, Port: bad, TargetPort: nobody})
	f.Affinity = time.Hour
	require.NoError(t, p.Apply(f))
	host := ""
	for i := 1; host == ""; i++ {
		if at := fmt.Sprintf("127.81.2.%d", i); greetingFrom(t, at, good) == "two" {
			host = at
		}
	}
	for i := range 4 { // Other clients are refused on the broken port.
		assert.Equal(t, "three", greetingFrom(t, fmt.Sprintf("127.81.3.%d", i+1), bad))
	}
	for range 4 {
		assert.Equal(t, "two", greetingFrom(t, host, good))
	}
}

// Clients whose connections break cause more checks of the target, and these extra checks
// do not count towards the thresholds.
func TestClientFailuresDoNotHastenUnhealthy(t *testing.T) {
	p, port := newPlane(t), freePort(t)
	target := startTarget(t, two, 0, func(c net.Conn) { _ = c.(*net.TCPConn).SetLinger(0) })
	sick := newHealthEndpoint(t, two, 0)
	f := forwarding(target, []string{two}, port)
	f.HealthCheck = httpCheck(sick.port)
	f.HealthCheck.IntervalSeconds, f.HealthCheck.TimeoutSeconds, f.HealthCheck.UnhealthyThreshold = seconds(time.Hour), seconds(testTimeout), 1
	require.NoError(t, p.Apply(f))
	awaitHealth(t, p, 0, api.TargetHealthy)
	sick.status.Store(http.StatusServiceUnavailable)
	asked := sick.checks.Load()
	require.Eventually(t, func() bool {
		requireReset(t, four, port)
		return sick.checks.Load() >= asked+2
	}, testTimeout, time.Millisecond)
	assert.Equal(t, api.TargetHealthy, p.Health("lb-1")[0].Health)
}
