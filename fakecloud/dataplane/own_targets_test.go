package dataplane_test

import (
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/cloud"
	"github.com/ccmlab/ccmlab/fakecloud/dataplane"
)

// newThree is a pair, and a target on a third address that no listener has yet.
func newThree(t *testing.T) (p *dataplane.Plane, port int, f cloud.Forwarding, third cloud.Backend) {
	t.Helper()
	p, port, f = newPair(t)
	startTarget(t, four, f.Listeners[0].TargetPort, greetAndEcho("four"))
	return p, port, f, cloud.Backend{Target: "i-" + four, Address: netip.MustParseAddr(four)}
}

// withOwn adds a listener with targets of its own.
func withOwn(t *testing.T, f *cloud.Forwarding, own ...cloud.Backend) (port int) {
	t.Helper()
	l := f.Listeners[0]
	l.Port, l.Targets = freePort(t), []api.Target{}
	f.Listeners = append(f.Listeners, l)
	f.Own = map[cloud.ListenerKey][]cloud.Backend{{Protocol: l.Protocol, Port: l.Port}: own}
	return l.Port
}

func TestListenersForwardToTheirOwnTargets(t *testing.T) {
	p, shared, f, third := newThree(t)
	f.Drain = 10 * time.Millisecond
	own := withOwn(t, &f, third, f.Backends[1])
	require.NoError(t, p.Apply(f))
	seen := func(port int) map[string]bool {
		names := map[string]bool{}
		for range 4 {
			names[greetingFrom(t, two, port)] = true
		}
		return names
	}
	assert.Equal(t, map[string]bool{"two": true, "three": true}, seen(shared))
	assert.Equal(t, map[string]bool{"three": true, "four": true}, seen(own))
	stats := p.Stats("lb-1")
	require.Len(t, stats.Targets, 3)
	assert.EqualValues(t, 4, stats.Targets[1].Connections, "through both listeners")
	health := p.Health("lb-1")
	require.Len(t, health, 3)
	assert.Len(t, health[0].Listeners, 1)
	assert.Len(t, health[1].Listeners, 2)
	assert.Equal(t, own, health[2].Listeners[0].Port)

	withThree := func(port int) (c interface{ Read([]byte) (int, error) }) {
		for {
			if conn, name := dialAndReadName(t, two, port); name == "three" {
				requireEcho(t, conn, "hello")
				return conn
			}
		}
	}
	drained, kept := withThree(own), withThree(shared)
	f.Own = map[cloud.ListenerKey][]cloud.Backend{{Protocol: api.ProtocolTCP, Port: own}: {}}
	require.NoError(t, p.Apply(f))
	_, err := drained.Read(make([]byte, 1))
	require.Error(t, err, "it is a target of the other listener only")
	assert.NotNil(t, kept)
	requireReset(t, two, own)
	reason, _ := p.Condition("lb-1")
	assert.Contains(t, reason, "no target is healthy for tcp port")
	assert.Equal(t, map[string]bool{"two": true, "three": true}, seen(shared))
}

func TestWeightsDrainsAndBackups(t *testing.T) {
	p, port, f, third := newThree(t)
	f.Backends = append(f.Backends, third)
	f.Backends[0].Weight, f.Backends[1].Weight, f.Backends[2].Backup = 3, 1, true
	require.NoError(t, p.Apply(f))
	share := map[string]int{}
	for range 8 {
		share[greetingFrom(t, two, port)]++
	}
	assert.Equal(t, map[string]int{"two": 6, "three": 2}, share)

	f.Algorithm = api.AlgorithmLeastConnections
	require.NoError(t, p.Apply(f))
	awaitNoConnections(t, p)
	clear(share)
	for range 8 {
		_, name := dialAndReadName(t, two, port)
		share[name]++
	}
	assert.Equal(t, map[string]int{"two": 6, "three": 2}, share, "they are all open")

	open, name := dialAndReadName(t, two, port)
	f.Backends[0].Drain, f.Backends[1].Drain, f.Drain = true, true, 10*time.Millisecond
	require.NoError(t, p.Apply(f))
	assert.Equal(t, "four", greetingFrom(t, two, port), "the backup")
	requireEcho(t, open, "goes on at "+name)
	f.Backends[2].Drain = true
	require.NoError(t, p.Apply(f))
	requireReset(t, two, port)
	reason, _ := p.Condition("lb-1")
	assert.Contains(t, reason, "clients are refused")
}
