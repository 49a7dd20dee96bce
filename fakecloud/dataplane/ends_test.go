// This file answers: does what was cut short ever look complete?

package dataplane_test

import (
	"io"
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
