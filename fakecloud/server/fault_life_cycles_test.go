package server_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
)

func (r *rig) awaitReason(t *testing.T, id string, want api.InstanceState, reason string) {
	t.Helper()
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		in, err := r.GetInstance(t.Context(), id)
		if assert.NoError(c, err) {
			assert.Equal(c, want, in.State)
			assert.Equal(c, reason, valueOrZero(in.StateReason, ""))
		}
	}, patience, 2*time.Millisecond)
}

// How life cycles go wrong is for the tests of faults; here is how the API shows it.
func TestLifeCyclesGoWrong(t *testing.T) {
	r, ctx := newRig(t), t.Context()
	in := r.nodes(t, "one")[0]
	r.awaitReason(t, in.ID, api.InstanceRunning, "")
	crash := r.createFault(
		t,
		api.FaultCreate{Effect: api.FaultEffect{Crash: true}, Match: api.FaultMatch{Tag: "name=one"}, Times: 1},
	)
	assert.Equal(t, 1, crash.Hits)
	r.awaitReason(t, in.ID, api.InstanceError, "crashed")
	requireCode(t, api.WrongState)(r.RebootInstance(ctx, in.ID))
	requireOK(t)(r.StartInstance(ctx, in.ID))
	r.awaitReason(t, in.ID, api.InstanceRunning, "")
	rebooted := must(r.RebootInstance(ctx, in.ID))(t)
	assert.Equal(t, "rebooting", valueOrZero(rebooted.StateReason, ""))
	r.awaitReason(t, in.ID, api.InstanceRunning, "")
}

func TestZonesShowTheirOutage(t *testing.T) {
	r, ctx := newRig(t), t.Context()
	states := func(c *client.Client) (all []api.ZoneState) {
		for _, z := range must(c.ListZones(ctx))(t) {
			all = append(all, z.State)
		}
		return all
	}
	well := []api.ZoneState{api.ZoneAvailable, api.ZoneAvailable, api.ZoneAvailable}
	assert.Equal(t, well, states(r.Client))
	f := r.createFault(t, api.FaultCreate{Effect: api.FaultEffect{ZoneOutage: "nebula-1b"}})
	assert.Equal(t, []api.ZoneState{api.ZoneAvailable, api.ZoneOutage, api.ZoneAvailable}, states(r.Client))
	assert.Equal(t, well, states(r.other))
	requireCode(t, api.ZoneUnavailable)(r.CreateInstance(ctx, api.InstanceCreate{Zone: new("nebula-1b")}))
	require.NoError(t, r.DeleteFault(ctx, f.ID))
	assert.Equal(t, well, states(r.Client))
}
