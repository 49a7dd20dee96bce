package cloud

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/jonboulle/clockwork"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/internal/must"
	"github.com/ccmlab/ccmlab/fakecloud/store"
)

// What cannot be written holds up nothing else that is due.
func TestABadRowHoldsUpNoOther(t *testing.T) {
	c, p, plane := newCloudWithPlane(t)
	var ids []string
	for i := range 5 {
		in := newInstance(t, c, p, api.InstanceCreate{Name: fmt.Sprint(i)})
		ids = append(ids, in.ID)
	}
	lb := createBalancer(t, c, p, api.LoadBalancerCreate{Name: "lb", Listeners: oneListener, Targets: toTargets(ids...)})
	row := func(state string) {
		require.NoError(t, c.store.Write(t.Context(), func(tx *store.Tx) error {
			in := must.Do(resourceByID[Instance](t.Context(), tx, ids[2]))(t)
			in.State = api.InstanceState(state)
			return saveResource(t.Context(), &changeTx{Tx: tx, now: c.now()}, api.InstancePending, &in)
		}))
	}
	row("error") // Which is never due.
	c.clock.(*clockwork.FakeClock).Advance(time.Minute)
	_, err := c.runDueTransitions(t.Context())
	require.ErrorContains(t, err, ids[2])
	for i, id := range ids {
		got := getInstance(t, c, p, id)
		assert.Equal(t, i != 2, got.State == api.InstanceRunning, got)
	}
	assert.Equal(t, api.LoadBalancerActive, balancerState(t, c, p, lb.ID))
	assert.Len(t, plane.applied[lb.ID].Backends, 4)
	row("pending")
	advance(t, c, 0)
	assert.Len(t, plane.applied[lb.ID].Backends, 5)
}

// Instances that are targets of many balancers leave them in several writes, so that other
// writers need not wait for all. What a crash left undone follows.
func TestTerminatedTargetsLeaveInSteps(t *testing.T) {
	c, p := newCloud(t, nil)
	var ids []string
	for i := range 4 {
		ids = append(ids, newInstance(t, c, p, api.InstanceCreate{Name: fmt.Sprint(i)}).ID)
	}
	const balancers = 2*balancersPerWrite + 3
	for i := range balancers {
		createBalancer(t, c, p, api.LoadBalancerCreate{Name: fmt.Sprint("lb-", i), Listeners: oneListener, Targets: toTargets(ids...)})
	}
	advance(t, c, time.Minute)
	ending := ids[:3]
	for _, id := range ending {
		requireOK(t)(c.TerminateInstance(t.Context(), p, id))
	}
	targets := func() (n int64) {
		require.NoError(t, c.store.Read(t.Context(), func(tx *store.Tx) (err error) {
			n, err = tx.CountTargets(t.Context(), listJSON(ending))
			return err
		}))
		return n
	}
	c.SetFaults(&modelFaults{stuck: true})
	advance(t, c, time.Minute)
	require.EqualValues(t, len(ending)*balancers, targets(), "they do not end")
	c.SetFaults(nil)
	require.NoError(t, c.LiftFaults(t.Context(), []string{"f-1"}))
	require.NoError(t, c.change(t.Context(), func(ctx context.Context, tx *changeTx) error {
		more, err := c.removeSomeTargets(ctx, tx, ids, true) // And then it crashes.
		assert.True(t, more)
		return err
	}))
	require.EqualValues(t, len(ending)*(balancers-balancersPerWrite), targets())
	before := c.store.Stats().Writes
	requireOK(t)(c.runDueTransitions(t.Context()))
	assert.Zero(t, targets())
	assert.GreaterOrEqual(t, c.store.Stats().Writes-before, int64(3))
	for _, id := range ending {
		assert.Equal(t, api.InstanceTerminated, getInstance(t, c, p, id).State)
	}
	all := must.First(c.ListLoadBalancers(t.Context(), p, Filter{Limit: NoLimit}))(t)
	require.Len(t, all, balancers)
	for _, lb := range all {
		assert.Equal(t, ids[3:], lb.targetIDs())
	}
}
