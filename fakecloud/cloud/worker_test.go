package cloud

import (
	"fmt"
	"testing"
	"time"

	"github.com/jonboulle/clockwork"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/fakecloud/store"
)

// What cannot be written holds up nothing else that is due.
func TestABadRowHoldsUpNoOther(t *testing.T) {
	plane := newFakePlane()
	c, p := newCloud(t, func(cfg *Config) { cfg.DataPlane = plane })
	var ids []string
	for i := range 5 {
		in := newInstance(t, c, p, InstanceSpec{Name: fmt.Sprint(i)})
		ids = append(ids, in.ID)
	}
	lb := createBalancer(t, c, p, LoadBalancerSpec{Name: "lb", Listeners: oneListener, Targets: ids})
	row := func(state string) {
		require.NoError(t, c.store.Write(t.Context(), func(tx *store.Tx) error {
			in, err := resourceByID[Instance](t.Context(), tx, ids[2])
			require.NoError(t, err)
			in.State = InstanceState(state)
			return saveResource(t.Context(), &changeTx{Tx: tx}, InstancePending, &in, c.now())
		}))
	}
	row("error") // Which is never due.
	c.clock.(*clockwork.FakeClock).Advance(time.Minute)
	_, err := c.runDueTransitions(t.Context())
	require.ErrorContains(t, err, ids[2])
	for i, id := range ids {
		got := getInstance(t, c, p, id)
		assert.Equal(t, i != 2, got.State == InstanceRunning, got)
	}
	assert.Equal(t, LoadBalancerActive, balancerState(t, c, p, lb.ID))
	assert.Len(t, plane.applied[lb.ID].Backends, 4)
	row("pending")
	advance(t, c, 0)
	assert.Len(t, plane.applied[lb.ID].Backends, 5)
}
