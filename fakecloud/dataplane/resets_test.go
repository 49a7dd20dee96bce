package dataplane_test

import (
	"io"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/fakecloud/cloud"
	"github.com/ccmlab/ccmlab/fakecloud/dataplane"
)

// requireCut requires that cut resets both ends of a connection: neither sees an orderly
// end.
func requireCut(t *testing.T, from, to connEnd, cut func()) {
	t.Helper()
	_, err := io.WriteString(from, "half of")
	require.NoError(t, err)
	_, err = io.ReadFull(to, make([]byte, len("half of")))
	require.NoError(t, err)
	cut()
	to.requireReset(t)
	from.requireReset(t)
}

func TestDrainedConnectionsAreReset(t *testing.T) {
	inAllCopyModes(t, func(t *testing.T, w copyMode) {
		w.inBothDirections(t, func(t *testing.T, p *dataplane.Plane, from, to connEnd) {
			requireCut(t, from, to, func() {
				left := []cloud.Listener{listenerStats(p).Listener}
				require.NoError(
					t, p.Apply(cloud.Forwarding{ID: "lb-1", Addresses: []netip.Addr{front}, Listeners: left, Drain: time.Millisecond}),
				)
			})
			awaitNoConnections(t, p)
		})
	})
}

func TestIdleConnectionsAreReset(t *testing.T) {
	for _, proxy := range []cloud.ProxyProtocol{"", cloud.ProxyV1, cloud.ProxyV2} {
		copyMode{
			200 * time.Millisecond, proxy,
		}.inBothDirections(t, func(t *testing.T, p *dataplane.Plane, from, to connEnd) {
			requireCut(t, from, to, func() {})
			awaitNoConnections(t, p)
		})
	}
}

func TestConnectionsOfRemovedBalancersAreReset(t *testing.T) {
	inAllCopyModes(t, func(t *testing.T, w copyMode) {
		w.inBothDirections(t, func(t *testing.T, p *dataplane.Plane, from, to connEnd) {
			requireCut(t, from, to, func() { p.Remove("lb-1") })
		})
	})
}

// One end resets while the other one's writes are blocked: that end sees no orderly end,
// whichever direction notices the reset first.
func TestResetWhileTheWriterWaits(t *testing.T) {
	inAllCopyModes(t, func(t *testing.T, w copyMode) {
		w.inBothDirections(t, func(t *testing.T, p *dataplane.Plane, from, to connEnd) {
			require.NoError(t, from.SetWriteDeadline(time.Now().Add(100*time.Millisecond)))
			require.ErrorIs(t, newRandomStream(11, 64<<10).write(from, 1<<30), os.ErrDeadlineExceeded)
			require.NoError(t, to.reset())
			from.requireReset(t)
			awaitNoConnections(t, p)
		})
	})
}

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
