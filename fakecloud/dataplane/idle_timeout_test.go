package dataplane_test

import (
	"io"
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
	require.Eventually(t, func() bool { return listenerStats(p).Active == 0 }, testTimeout, time.Millisecond)
	assert.Zero(t, listenerStats(p).Failed)
}

func TestIdleTimeoutSparesActiveConnections(t *testing.T) {
	p, port := newPlane(t), freePort(t)
	target := startTarget(t, two, 0, echo)
	f := forwarding(target, []string{two}, port)
	f.IdleTimeout = time.Hour
	require.NoError(t, p.Apply(f))
	c := dial(t, port)
	requireEcho(t, c, "hello")
	large := make([]byte, 1<<20)
	go func() {
		_, _ = c.Write(large)
		_ = c.CloseWrite()
	}()
	n, err := io.Copy(io.Discard, c)
	require.NoError(t, err)
	assert.EqualValues(t, len(large), n)
	require.Eventually(t, func() bool {
		s := listenerStats(p)
		return s.Active == 0 && s.In == 5+1<<20 &&
			s.Out == s.In
	}, testTimeout, time.Millisecond)
}

func TestIdleUDPSessionsEnd(t *testing.T) {
	p, port := newPlane(t), freePort(t)
	target := portOf(udpBackend(t, two, "two", 0))
	f := udpForwarding(target, []string{two}, port)
	f.IdleTimeout = time.Second // Below the default, and longer than a target takes on a busy machine.
	require.NoError(t, p.Apply(f))
	c := udpClient(t, four, port)
	assert.Equal(t, "two", sendAndReadName(t, c, "hello"))
	require.Eventually(t, func() bool { return listenerStats(p).Active == 0 }, testTimeout, time.Millisecond)
	assert.Equal(t, "two", sendAndReadName(t, c, "hello again"))
	assert.EqualValues(t, 2, listenerStats(p).Connections)
}
