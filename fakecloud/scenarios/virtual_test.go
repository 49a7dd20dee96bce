package scenarios_test

import (
	"context"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/fakecloud/cloud"
	"github.com/ccmlab/ccmlab/fakecloud/faults"
	"github.com/ccmlab/ccmlab/fakecloud/scenarios"
	"github.com/ccmlab/ccmlab/fakecloud/store"
)

// Steps happen at their own times, however far the clock is moved at once.
func TestAVirtualClockStopsAtEachStep(t *testing.T) {
	ctx := t.Context()
	play := func(moves ...time.Duration) (told []string) {
		st, err := store.Open(ctx, store.Memory)
		require.NoError(t, err)
		defer func() { require.NoError(t, st.Close()) }()
		v, err := cloud.StartVirtualTime(ctx, st, epoch)
		require.NoError(t, err)
		c, err := cloud.New(cloud.Config{Store: st, DataPlane: fakePlane{}, Profile: cloud.Profiles[1], Virtual: v, Seed: 1})
		require.NoError(t, err)
		p, err := c.EnsureProject(ctx, "default", nil)
		require.NoError(t, err)
		quiet := slog.New(slog.DiscardHandler)
		rules, err := faults.Open(ctx, c, map[string]faults.Operation{}, quiet)
		require.NoError(t, err)
		defer rules.Close()
		runner := scenarios.New(c, rules, quiet)
		defer runner.Close()
		in, err := c.CreateInstance(ctx, p, cloud.InstanceSpec{Name: "a"})
		require.NoError(t, err)
		a := &scenarios.Selector{Name: "a"}
		started, err := runner.Run(ctx, p, scenarios.Spec{Name: "s", Steps: []scenarios.Step{
			{At: 10 * time.Second, Action: "stop", Instances: a},
			{At: 20 * time.Second, Action: "start", Instances: a},
			{At: 10 * time.Minute, Action: "stop", Instances: a},
		}})
		require.NoError(t, err)
		for _, d := range moves {
			moved, err := c.Advance(ctx, func(now time.Time) time.Time { return now.Add(d) })
			require.NoError(t, err)
			require.True(t, moved.Complete)
		}
		s, err := runner.Get(p.ID, started.ID)
		require.NoError(t, err)
		assert.Equal(t, scenarios.Done, s.State)
		for i, at := range []time.Duration{10 * time.Second, 20 * time.Second, 10 * time.Minute} {
			assert.Equal(t, epoch.Add(at), s.Steps[i].DoneAt)
			assert.Empty(t, s.Steps[i].Error)
		}
		events, _, err := c.Events(context.Background(), p, cloud.Oldest)
		require.NoError(t, err)
		for _, e := range events {
			if e.ID == in.ID {
				told = append(told, fmt.Sprint(e.Time.Sub(epoch), " ", e.To))
			}
		}
		return told
	}
	want := []string{
		"0s pending", "300ms running", "10s stopping", "10.2s stopped", "20s pending", "20.3s running", "10m0s stopping", "10m0.2s stopped",
	}
	assert.Equal(t, want, play(time.Hour))
	assert.Equal(t, want, play(time.Second, 9*time.Second, 0, 5*time.Second, time.Minute, time.Hour))
}
