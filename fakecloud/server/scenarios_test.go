package server_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
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
	f, err := r.GetFault(ctx, fault)
	require.NoError(t, err)
	assert.Equal(t, started.ID, f.Scenario)

	_, err = r.other.GetScenario(ctx, started.ID)
	require.True(t, client.IsNotFound(err), err)
	_, err = r.other.StopScenario(ctx, started.ID)
	require.True(t, client.IsNotFound(err), err)
	require.True(t, client.IsNotFound(r.other.DeleteScenario(ctx, started.ID)))
	theirs, err := r.other.ListScenarios(ctx)
	require.NoError(t, err)
	assert.Empty(t, theirs)

	stopped, err := r.StopScenario(ctx, started.ID)
	require.NoError(t, err)
	assert.Equal(t, api.ScenarioStopped, stopped.State)
	assert.NotNil(t, stopped.EndedAt)
	assert.Nil(t, stopped.Steps[1].DoneAt)
	_, err = r.GetFault(ctx, fault)
	require.True(t, client.IsNotFound(err), err)
	all, err := r.ListScenarios(ctx)
	require.NoError(t, err)
	assert.Equal(t, []api.Scenario{*stopped}, all)
	require.NoError(t, r.DeleteScenario(ctx, started.ID))
	_, err = r.GetScenario(ctx, started.ID)
	require.True(t, client.IsNotFound(err), err)
}

func TestScenariosThatAreRefused(t *testing.T) {
	r := newRig(t)
	for body, field := range map[string]string{
		`{"name":"x"}`: "steps",
		`{"name":"x","steps":[{"at":"0s","what":1}]}`:                                       "steps.0.what",
		`{"name":"x","steps":[{"at":"0s","fault":{"effect":{"drop":true},"oops":1}}]}`:      "steps.0.fault.oops",
		`{"name":"x","steps":[{"at":"soon","fault":{"effect":{"drop":true}}}]}`:             "steps.0.at",
		`{"name":"x","steps":[{"at":"9999999h","fault":{"effect":{"drop":true}}}]}`:         "steps.0.at",
		`{"name":"x","steps":[{"at":"0s","for":"0s","fault":{"effect":{"drop":true}}}]}`:    "steps.0.for",
		`{"name":"x","steps":[{"at":"0s"},{"at":"0s"}]}`:                                    "steps.0",
		`{"name":"x","steps":[{"at":"0s","action":"fly","instances":{"name":"a"}}]}`:        "steps.0.action",
		`{"name":"x","steps":[{"at":"0s","action":"stop","instances":{}}]}`:                 "steps.0.instances",
		`{"name":"x","steps":[{"at":"0s","action":"stop","instances":{"pick":0}}]}`:         "steps.0.instances.pick",
		`{"name":"x","steps":[{"at":"0s","fault":{"effect":{"zoneOutage":"nebula-9z"}}}]}`:  "steps.0.fault.effect.zoneOutage",
		`{"name":"x","steps":[{"at":"0s","action":"delete","loadBalancers":{"zone":"z"}}]}`: "steps.0.loadBalancers.zone",
	} {
		resp, p := r.call(t, "POST", "/v1/scenarios", body)
		assert.Equal(t, 400, resp.StatusCode, body)
		if assert.NotNil(t, p.Fields, body) {
			assert.Equal(t, field, (*p.Fields)[0].Field, body)
		}
	}
	all, err := r.ListScenarios(t.Context())
	require.NoError(t, err)
	assert.Empty(t, all)
}
