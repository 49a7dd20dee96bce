package dataplane_test

import (
	"io"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/fakecloud/cloud"
	"github.com/ccmlab/ccmlab/fakecloud/dataplane"
)

// requireCut wants both ends of a connection to learn that what they had of it
// is not all, once something has cut it.
func requireCut(t *testing.T, from, to end, cut func()) {
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
	inAllWeathers(t, func(t *testing.T, w weather) {
		w.eachWay(t, func(t *testing.T, p *dataplane.Plane, from, to end) {
			requireCut(t, from, to, func() {
				left := []cloud.Listener{stats(p).Listener}
				require.NoError(t, p.Apply(cloud.Forwarding{ID: "lb-1", Address: front, Listeners: left, Drain: time.Millisecond}))
			})
			awaitNone(t, p)
		})
	})
}

func TestIdleConnectionsAreReset(t *testing.T) {
	for _, proxy := range []cloud.ProxyProtocol{"", cloud.ProxyV1, cloud.ProxyV2} {
		weather{200 * time.Millisecond, proxy}.eachWay(t, func(t *testing.T, p *dataplane.Plane, from, to end) {
			requireCut(t, from, to, func() {})
			awaitNone(t, p)
		})
	}
}

func TestConnectionsOfRemovedBalancersAreReset(t *testing.T) {
	inAllWeathers(t, func(t *testing.T, w weather) {
		w.eachWay(t, func(t *testing.T, p *dataplane.Plane, from, to end) {
			requireCut(t, from, to, func() { p.Remove("lb-1") })
		})
	})
}

// A connection breaks while one direction is being written and the other read:
// whichever learns of it first, the end that is left sees no orderly end.
func TestResetWhileTheWriterWaits(t *testing.T) {
	inAllWeathers(t, func(t *testing.T, w weather) {
		w.eachWay(t, func(t *testing.T, p *dataplane.Plane, from, to end) {
			require.NoError(t, from.SetWriteDeadline(time.Now().Add(100*time.Millisecond)))
			require.ErrorIs(t, newNoise(11, 64<<10).write(from, 1<<30), os.ErrDeadlineExceeded)
			require.NoError(t, to.reset())
			from.requireReset(t)
			awaitNone(t, p)
		})
	})
}
