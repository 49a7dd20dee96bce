package dataplane_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/cloud"
)

// One client opens eight connections or sessions, in turn on two ports.
func TestAlgorithmsSpreadOneClient(t *testing.T) {
	for _, protocol := range []cloud.Protocol{api.ProtocolTCP, api.ProtocolUDP} {
		t.Run(string(protocol), func(t *testing.T) {
			p, port, f := newPair(t)
			if protocol == api.ProtocolUDP {
				p, port, f = newUDPPair(t)
			}
			next := f.Listeners[0]
			next.Port = freePort(t)
			f.Listeners = append(f.Listeners, next)
			answers := func() (by map[string]int) {
				require.NoError(t, p.Apply(f))
				by = map[string]int{}
				for i := range 8 {
					name, at := "", []int{port, next.Port}[i%2]
					if protocol == api.ProtocolUDP {
						name = sendAndReadName(t, udpClient(t, four, at), "hello")
					} else {
						_, name = dialAndReadName(t, four, at)
					}
					by[name]++
					by[fmt.Sprintf("%s on port %d", name, i%2)]++
				}
				return by
			}
			turns := map[string]int{
				"two": 4, "two on port 0": 2, "two on port 1": 2, "three": 4, "three on port 0": 2, "three on port 1": 2,
			}
			assert.Equal(t, turns, answers(), "each listener has its own round robin")
			f.Algorithm = api.AlgorithmLeastConnections
			assert.Equal(t, 4, answers()["two"])
			f.Algorithm = api.AlgorithmSourceHash
			assert.Len(t, answers(), 3, "one target on both ports")
			f.Algorithm, f.Affinity = api.AlgorithmRoundRobin, time.Hour
			assert.Len(t, answers(), 3, "one target on both ports")
		})
	}
}

func TestLeastConnections(t *testing.T) {
	p, port, f := newPair(t)
	f.Algorithm = api.AlgorithmLeastConnections
	udp, udpPort := portOf(udpBackend(t, two, "two", 0)), freePort(t)
	udpBackend(t, three, "three", udp)
	f.Listeners = append(f.Listeners, cloud.Listener{Protocol: api.ProtocolUDP, Port: udpPort, TargetPort: udp})
	require.NoError(t, p.Apply(f))
	_, first := dialAndReadName(t, four, port)
	assert.Equal(t, "two", first)
	c, second := dialAndReadName(t, four, port)
	assert.Equal(t, "three", second)
	require.NoError(t, c.Close())
	await(t, func() bool { return listenerStats(p).ActiveConnections == 1 })
	session := func() string { return sendAndReadName(t, udpClient(t, four, udpPort), "hello") }
	assert.Equal(t, "three", session(), "it has the fewest, on all ports")
	assert.ElementsMatch(t, []string{"two", "three"}, []string{session(), session()}, "sessions count as well")
	both := f.Listeners
	f.Listeners = both[:1]
	require.NoError(t, p.Apply(f))
	await(t, func() bool { return p.Stats("lb-1").Targets[1].ActiveConnections == 0 })
	f.Listeners = both
	require.NoError(t, p.Apply(f))
	assert.Equal(t, "three", session(), "its sessions have ended")
}
