package dataplane_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/fakecloud/cloud"
)

func TestLeastConnections(t *testing.T) {
	p, port, udpPort := newPlane(t), freePort(t), freePort(t)
	target := startTarget(t, two, 0, greetAndEcho("a"))
	startTarget(t, three, target, greetAndEcho("b"))
	f := forwarding(target, []string{two, three}, port)
	f.Algorithm = cloud.LeastConnections
	udp := portOf(udpBackend(t, two, "a", 0))
	udpBackend(t, three, "b", udp)
	f.Listeners = append(f.Listeners, cloud.Listener{Protocol: cloud.UDP, Port: udpPort, TargetPort: udp})
	require.NoError(t, p.Apply(f))
	first, busy := dialAndReadName(t, four, port)
	other := map[string]string{"a": "b", "b": "a"}[busy]
	_, also := dialAndReadName(t, four, port)
	assert.Equal(t, other, also)
	var held []string
	for range 4 {
		_, name := dialAndReadName(t, four, port)
		held = append(held, name)
	}
	assert.ElementsMatch(t, []string{"a", "a", "b", "b"}, held)

	require.NoError(t, first.Close())
	require.Eventually(
		t, func() bool { return listenerStats(p).Active+p.Stats("lb-1").Listeners[1].Active == 5 }, testTimeout,
		time.Millisecond,
	)
	assert.Equal(
		t, busy, sendAndReadName(t, udpClient(t, four, udpPort), "hello"), "it has the fewest now, on all ports",
	)
}
