package dataplane_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/fakecloud/cloud"
)

func TestDraining(t *testing.T) {
	p, a, b := newPlane(t), freePort(t), freePort(t)
	target := startTarget(t, two, 0, echo)
	startTarget(t, three, target, echo)
	all := forwarding(target, []string{two}, a, b)
	all.Drain = time.Hour
	require.NoError(t, p.Apply(all))
	onA, onB := dial(t, a), dial(t, b)
	requireEcho(t, onA, "hello")
	requireEcho(t, onB, "hello")

	short := func(f cloud.Forwarding) cloud.Forwarding {
		f.Drain = time.Millisecond
		return f
	}
	noB := forwarding(target, []string{two}, a)
	noB.Drain = time.Hour
	require.NoError(t, p.Apply(noB))
	requireEcho(t, onB, "its listener is gone, and it drains")
	require.NoError(t, p.Apply(all))
	require.NoError(t, p.Apply(short(all)))
	requireEcho(t, onB, "its listener is back")
	require.NoError(t, p.Apply(short(noB)))
	requireBroken(t, onB)
	requireEcho(t, onA, "no matter of mine")

	moved := forwarding(target, []string{three}, a)
	require.NoError(t, p.Apply(moved), "without draining")
	requireEcho(t, onA, "its target is gone, and it may go on")
	require.NoError(t, p.Apply(short(moved)))
	requireBroken(t, onA)
	awaitNoConnections(t, p)
	fresh := dial(t, a)
	requireEcho(t, fresh, "new connections are as ever")
	p.Remove("lb-1")
	requireBroken(t, fresh)
}
