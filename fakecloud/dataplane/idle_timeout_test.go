package dataplane_test

import (
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestIdleConnectionsEnd(t *testing.T) {
	p, port := newPlane(t), freePort(t)
	ended := make(chan struct{})
	target := startTarget(t, two, 0, func(c net.Conn) {
		echo(c)
		close(ended)
	})
	f := forwarding(target, []string{two}, port)
	f.IdleTimeout = 50 * time.Millisecond
	require.NoError(t, p.Apply(f))
	c := dial(t, port)
	requireBroken(t, c)
	select {
	case <-ended:
	case <-time.After(testTimeout):
		t.Fatal("the target was not told")
	}
	awaitNoConnections(t, p)
	assert.Zero(t, listenerStats(p).Failed)
}

func TestIdleUDPSessionsEnd(t *testing.T) {
	p, port := newPlane(t), freePort(t)
	target := portOf(udpBackend(t, two, "two", 0))
	f := udpForwarding(target, []string{two}, port)
	f.IdleTimeout = time.Second // Below the default, and longer than a target takes on a busy machine.
	require.NoError(t, p.Apply(f))
	c := udpClient(t, four, port)
	assert.Equal(t, "two", sendAndReadName(t, c, "hello"))
	awaitNoConnections(t, p)
	assert.Equal(t, "two", sendAndReadName(t, c, "hello again"))
	assert.EqualValues(t, 2, listenerStats(p).Connections)
}
