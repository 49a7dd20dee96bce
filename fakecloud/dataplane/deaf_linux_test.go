package dataplane_test

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// deaf listens on host and does not accept: its backlog is full.
func deaf(t *testing.T, host string) (port int) {
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

func TestTargetsThatNeverAcceptArePassedOver(t *testing.T) {
	p, port := newPlane(t), freePort(t)
	target := deaf(t, two)
	backend(t, three, target, says("three"))
	require.NoError(t, p.Apply(forwarding(target, []string{two, three}, port)))
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() { assert.Equal(t, "three\n", readAll(t, port)) })
	}
	all.Wait()
	awaitNone(t, p)
	assert.Zero(t, stats(p).Failed)
	assert.EqualValues(t, 4, stats(p).Connections)
}

// A client that gives up while its target is still being dialled costs that
// target nothing more, and nobody else anything.
func TestClientsMayLeaveWhileTheirTargetIsDialled(t *testing.T) {
	p, port := newPlane(t), freePort(t)
	target := deaf(t, two)
	require.NoError(t, p.Apply(forwarding(target, []string{two}, port)))
	for range 5 {
		c := dial(t, port)
		require.NoError(t, c.SetLinger(0))
		require.NoError(t, c.Close())
	}
	require.Eventually(t, func() bool { return stats(p).Connections == 5 }, patience, time.Millisecond)
	backend(t, three, target, says("three"))
	require.NoError(t, p.Apply(forwarding(target, []string{three}, port)))
	assert.Equal(t, "three\n", readAll(t, port))
	awaitNone(t, p)
}
