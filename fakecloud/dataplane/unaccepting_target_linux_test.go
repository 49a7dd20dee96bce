package dataplane_test

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// listenWithFullBacklog listens on host, never accepts, and fills its own backlog.
func listenWithFullBacklog(t *testing.T, host string) (port int) {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	t.Cleanup(func() { _ = unix.Close(fd) })
	require.NoError(t, unix.Bind(fd, &unix.SockaddrInet4{Addr: netip.MustParseAddr(host).As4()}))
	require.NoError(t, unix.Listen(fd, 0))
	at, err := unix.Getsockname(fd)
	require.NoError(t, err)
	port = at.(*unix.SockaddrInet4).Port
	for range 100 {
		c, err := net.DialTimeout("tcp4", fmt.Sprintf("%s:%d", host, port), 100*time.Millisecond)
		if err != nil {
			failure, ok := errors.AsType[net.Error](err)
			require.True(t, ok && failure.Timeout(), "%v", err)
			return port
		}
		t.Cleanup(func() { _ = c.Close() })
	}
	t.Skip("this system's backlogs do not fill")
	return 0
}

func TestTargetsThatNeverAcceptAreSkipped(t *testing.T) {
	p, port := newPlane(t), freePort(t)
	target := listenWithFullBacklog(t, two)
	startTarget(t, three, target, greetAndEcho("three"))
	require.NoError(t, p.Apply(forwarding(target, []string{two, three}, port)))
	for range 4 {
		assert.Equal(t, "three", greetingFrom(t, four, port))
	}
	awaitNoConnections(t, p)
	assert.Zero(t, listenerStats(p).FailedConnections)
	assert.EqualValues(t, 4, listenerStats(p).Connections)
}

// Clients that give up while their target is being dialled do not keep the balancer from
// serving later clients.
func TestClientClosesWhileTargetIsDialled(t *testing.T) {
	p, port := newPlane(t), freePort(t)
	target := listenWithFullBacklog(t, two)
	require.NoError(t, p.Apply(forwarding(target, []string{two}, port)))
	for range 5 {
		c := dial(t, port)
		require.NoError(t, c.SetLinger(0))
		require.NoError(t, c.Close())
	}
	await(t, func() bool { return listenerStats(p).Connections == 5 })
	startTarget(t, three, target, greetAndEcho("three"))
	require.NoError(t, p.Apply(forwarding(target, []string{three}, port)))
	assert.Equal(t, "three", greetingFrom(t, four, port))
	awaitNoConnections(t, p)
}
