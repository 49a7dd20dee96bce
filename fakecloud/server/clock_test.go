package server_test

import (
	"context"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/ccmlab/ccmlab/fakecloud"
	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
	"github.com/ccmlab/ccmlab/fakecloud/cloud"
	"github.com/ccmlab/ccmlab/fakecloud/internal/must"
	"github.com/ccmlab/ccmlab/fakecloud/store"
)

var start = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func virtualRig(t *testing.T) *rig {
	t.Helper()
	return newRigWith(t, func(cfg *fakecloud.Config) {
		cfg.StartClock = func(ctx context.Context, s *store.Store) (*cloud.VirtualTime, error) {
			return cloud.StartVirtualTime(ctx, s, start)
		}
		cfg.Cloud.Profile = cloud.Profiles[2]
	})
}

func TestTheVirtualClock(t *testing.T) {
	r, ctx := virtualRig(t), t.Context()
	clock := must.Do(r.Clock(ctx))(t)
	assert.Equal(t, &api.Clock{Mode: api.ClockVirtual, Now: start}, clock)
	var op string
	in := must.Do(r.CreateInstance(client.OperationInto(ctx, &op), api.InstanceCreate{}))(t)
	assert.Equal(t, start, in.CreatedAt)
	waited := make(chan *api.Operation, 1)
	go func() {
		op, err := r.AwaitOperation(ctx, op)
		assert.NoError(t, err)
		waited <- op
	}()
	moved := must.Do(r.AdvanceClock(ctx, 5*time.Minute))(t)
	assert.Equal(
		t, &api.ClockAdvanced{From: start, Now: start.Add(5 * time.Minute), Transitions: 1, Complete: true}, moved,
	)
	assert.Equal(t, api.OperationDone, (<-waited).State)
	in = must.Do(r.GetInstance(ctx, in.ID))(t)
	assert.Equal(t, api.InstanceRunning, in.State, "all that was due has happened")
	assert.WithinDuration(t, start.Add(15*time.Second), in.UpdatedAt, 3*time.Second)
	moved = must.Do(r.AdvanceClockTo(ctx, start.Add(time.Hour)))(t)
	assert.Equal(t, start.Add(time.Hour), moved.Now)
	clock = must.Do(r.Clock(ctx))(t)
	assert.Equal(t, start.Add(time.Hour), clock.Now)
}

func TestErrorsOfTheClock(t *testing.T) {
	r := virtualRig(t)
	const path = "/v1/clock:advance"
	for _, bad := range []string{
		`{}`, `{"seconds":-1}`, `{"seconds":31622401}`, `{"seconds":1,"until":"2027-01-01T00:00:00Z"}`,
		`{"until":"soon"}`, `{"hours":1}`, `{"until":"2026-01-01T00:00:00Z"}`, `{"until":"2036-01-01T00:00:00Z"}`,
	} {
		_, p := r.call(t, http.MethodPost, path, bad)
		assert.Equal(t, api.InvalidRequest, p.Code, bad)
	}
	check := api.HealthCheck{Protocol: api.HealthCheckTCP, Port: 1}
	body := api.LoadBalancerCreate{Name: "a", Listeners: oneListener, HealthCheck: &check}
	requireCode(t, api.VirtualClock, "health checks run in real time")(r.CreateLoadBalancer(t.Context(), body))
	body.HealthCheck = nil
	lb := r.createBalancer(t, body)
	update := api.LoadBalancerUpdate{HealthCheck: &check}
	requireCode(t, api.VirtualClock)(r.UpdateLoadBalancer(t.Context(), lb.ID, update))

	real := newRig(t)
	clock := must.Do(real.Clock(t.Context()))(t)
	assert.Equal(t, api.ClockReal, clock.Mode)
	requireCode(t, api.VirtualClock, "--clock virtual")(real.AdvanceClock(t.Context(), 0))
}
