package server_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/fakecloud/api"
)

func TestScenarios(t *testing.T) {
	r, ctx := newRig(t), t.Context()
	one := r.nodes(t, "one")[0]
	started, err := r.RunScenario(ctx, api.ScenarioCreate{Name: "mine", Description: "a test", Seed: 7, Steps: []api.ScenarioStep{
		{At: "0s", Fault: &api.FaultCreate{Effect: api.FaultEffect{Crash: true}}},
		{At: "1h", Action: api.StepStop, Instances: &api.ScenarioSelector{Name: "one"}},
	}})
	require.NoError(t, err)
	assert.Equal(t, api.ScenarioRunning, started.State)
	assert.EqualValues(t, 7, started.Seed)
	r.awaitReason(t, one.ID, api.InstanceError, "crashed")
	var fault string
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		got, err := r.GetScenario(ctx, started.ID)
		assert.NoError(c, err)
		fault = got.Steps[0].Fault
		assert.NotEmpty(c, fault)
	}, patience, 2*time.Millisecond)
	f := must(r.GetFault(ctx, fault))(t)
	assert.Equal(t, started.ID, f.Scenario)

	assert.Empty(t, must(r.other.ListScenarios(ctx))(t))

	stopped := must(r.StopScenario(ctx, started.ID))(t)
	assert.Equal(t, api.ScenarioStopped, stopped.State)
	assert.NotNil(t, stopped.EndedAt)
	assert.Nil(t, stopped.Steps[1].DoneAt)
	requireCode(t, api.NotFound)(r.GetFault(ctx, fault))
	assert.Equal(t, []api.Scenario{*stopped}, must(r.ListScenarios(ctx))(t))
	require.NoError(t, r.DeleteScenario(ctx, started.ID))
	requireCode(t, api.NotFound)(r.GetScenario(ctx, started.ID))
}
