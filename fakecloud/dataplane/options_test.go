package dataplane_test

import (
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/fakecloud/cloud"
	"github.com/ccmlab/ccmlab/fakecloud/internal/must"
)

func TestSourceRangesRefuseOthers(t *testing.T) {
	p, port := newPlane(t), freePort(t)
	dialled := make(chan struct{}, 10)
	target := startTarget(t, four, 0, func(c net.Conn) {
		dialled <- struct{}{}
		echo(c)
	})
	f := forwarding(target, []string{four}, port)
	f.SourceRanges = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.PrefixFrom(netip.MustParseAddr(two), 32)}
	require.NoError(t, p.Apply(f))
	inside := must.Do(dialFrom(t, two, port))(t)
	requireEcho(t, inside, "hello")
	requireReset(t, three, port)

	f.SourceRanges = []netip.Prefix{netip.PrefixFrom(netip.MustParseAddr(three), 32)}
	require.NoError(t, p.Apply(f))
	requireReset(t, two, port)
	requireEcho(t, inside, "connected before")
	other := must.Do(dialFrom(t, three, port))(t)
	requireEcho(t, other, "hello")

	assert.Len(t, dialled, 2, "who is refused costs the targets nothing")
	s := listenerStats(p)
	assert.EqualValues(t, 2, s.RefusedConnections)
	assert.EqualValues(t, 2, s.Connections)
	assert.Zero(t, s.FailedConnections)
}

func TestAffinityOverChangingTargets(t *testing.T) {
	p, port, f := newPair(t)
	f.Backends = append(f.Backends, forwarding(0, []string{four}).Backends...) // Nobody answers at four.
	f.Affinity = time.Hour
	require.NoError(t, p.Apply(f))
	first, second := greetingFrom(t, two, port), greetingFrom(t, three, port)
	for range 5 {
		assert.Equal(t, first, greetingFrom(t, two, port))
		assert.Equal(t, second, greetingFrom(t, three, port))
	}

	all, other := f.Backends, otherOfPair[first]
	f.Backends = all[1:]
	if first == "three" {
		f.Backends = []cloud.Backend{all[0], all[2]}
	}
	require.NoError(t, p.Apply(f))
	for range 3 {
		assert.Equal(t, other, greetingFrom(t, two, port))
	}
	f.Backends = all
	require.NoError(t, p.Apply(f))
	for range 5 {
		assert.Equal(t, other, greetingFrom(t, two, port), "the new choice is kept")
	}

	f.Affinity = 0
	require.NoError(t, p.Apply(f))
	seen := map[string]bool{}
	for range 6 {
		seen[greetingFrom(t, two, port)] = true
	}
	assert.Len(t, seen, 2)
}

// A client with an open connection is not silent, however old the connection is.
func TestAffinityEndsWithSilence(t *testing.T) {
	p, port, f := newPair(t)
	f.Affinity = time.Millisecond
	require.NoError(t, p.Apply(f))
	var open []net.Conn
	c, own := dialAndReadName(t, four, port)
	for range 20 {
		next, name := dialAndReadName(t, four, port)
		require.Equal(t, own, name)
		open = append(open, next)
	}
	for _, c := range append(open, c) {
		require.NoError(t, c.Close())
	}
	await(t, func() bool { return greetingFrom(t, four, port) != own })
}
