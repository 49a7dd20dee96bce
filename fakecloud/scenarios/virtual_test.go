package scenarios_test

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/fakecloud/cloud"
	"github.com/ccmlab/ccmlab/fakecloud/faults"
	"github.com/ccmlab/ccmlab/fakecloud/scenarios"
	"github.com/ccmlab/ccmlab/fakecloud/store"
)

// newVirtualWorld is a world whose time is virtual, and moves by advance only.
func newVirtualWorld(t *testing.T, profile cloud.Profile, seed int64) *world {
	ctx, cancel := context.WithCancel(context.Background())
	st := must(store.Open(ctx, store.Memory))(t)
	w := &world{cloud: must(cloud.New(cloud.Config{
		Store: st, DataPlane: fakePlane{}, Profile: profile, Seed: seed,
		Virtual: must(cloud.StartVirtualTime(ctx, st, epoch))(t),
	}))(t)}
	w.project = must(w.cloud.EnsureProject(ctx, "default", nil))(t)
	quiet := slog.New(slog.DiscardHandler)
	w.rules = must(faults.Open(ctx, w.cloud, map[string]faults.Operation{}, quiet))(t)
	w.Runner = scenarios.New(w.cloud, w.rules, quiet)
	t.Cleanup(func() {
		w.Close()
		w.rules.Close()
		cancel()
		assert.NoError(t, st.Close())
	})
	return w
}

// advance moves a virtual clock by each of moves, and wants all that falls due to happen.
func (w *world) advance(t *testing.T, moves ...time.Duration) {
	t.Helper()
	for _, d := range moves {
		moved := must(w.cloud.Advance(t.Context(), func(now time.Time) time.Time { return now.Add(d) }))(t)
		require.True(t, moved.Complete)
	}
}

// Steps happen at their own times, however far the clock is moved at once.
func TestAVirtualClockStopsAtEachStep(t *testing.T) {
	ctx := t.Context()
	play := func(moves ...time.Duration) (told []string) {
		w := newVirtualWorld(t, cloud.Profiles[1], 1)
		in, _, err := w.cloud.CreateInstance(ctx, w.project, cloud.InstanceSpec{Name: "a"})
		require.NoError(t, err)
		a := &scenarios.Selector{Name: "a"}
		started := must(w.Run(ctx, w.project, scenarios.Spec{Name: "s", Steps: []scenarios.Step{
			{At: 10 * time.Second, Action: "stop", Instances: a},
			{At: 20 * time.Second, Action: "start", Instances: a},
			{At: 10 * time.Minute, Action: "stop", Instances: a},
		}}))(t)
		w.advance(t, moves...)
		s := must(w.Get(w.project.ID, started.ID))(t)
		assert.Equal(t, scenarios.Done, s.State)
		for i, at := range []time.Duration{10 * time.Second, 20 * time.Second, 10 * time.Minute} {
			assert.Equal(t, epoch.Add(at), s.Steps[i].DoneAt)
			assert.Empty(t, s.Steps[i].Error)
		}
		events, _, err := w.cloud.Events(ctx, w.project, cloud.Oldest)
		require.NoError(t, err)
		for _, e := range events {
			if e.ID == in.ID {
				told = append(told, fmt.Sprint(e.Time.Sub(epoch), " ", e.To))
			}
		}
		return told
	}
	want := []string{
		"0s pending", "300ms running", "10s stopping", "10.2s stopped", "20s pending", "20.3s running",
		"10m0s stopping", "10m0.2s stopped",
	}
	assert.Equal(t, want, play(time.Hour))
	assert.Equal(t, want, play(time.Second, 9*time.Second, 0, 5*time.Second, time.Minute, time.Hour))
}

// One advance tells the same story as many: what a fault holds, lets go and
// fails is a matter of the seed and the cloud's time only.
func TestAFaultForAWhileUnderAVirtualClock(t *testing.T) {
	play := func(moves ...time.Duration) (told []string) {
		ctx := t.Context()
		w := newVirtualWorld(t, cloud.Profiles[2], 7)
		for _, name := range []string{"a", "b", "c", "d"} {
			_, _, err := w.cloud.CreateInstance(ctx, w.project, cloud.InstanceSpec{Name: name})
			require.NoError(t, err)
		}
		w.advance(t, time.Minute)
		started := must(w.Run(ctx, w.project, scenarios.Spec{Name: "s", Seed: 11, Steps: []scenarios.Step{
			{At: 5 * time.Second, For: 30 * time.Second, Fault: &faults.Spec{Effect: faults.Effect{Stuck: true}}},
			{At: 10 * time.Second, Action: "stop", Instances: &scenarios.Selector{Name: "a"}},
			{
				At: 36 * time.Second, For: 30 * time.Second,
				Fault: &faults.Spec{Effect: faults.Effect{Fail: "no disk"}, When: faults.When{Probability: 0.5}},
			},
			{At: 37 * time.Second, Action: "reboot", Instances: &scenarios.Selector{Name: "b"}},
			{At: 37 * time.Second, Action: "reboot", Instances: &scenarios.Selector{Name: "c"}},
			{At: 40 * time.Second, Action: "terminate", Instances: &scenarios.Selector{Name: "d"}},
		}}))(t)
		w.advance(t, moves...)
		s := must(w.Get(w.project.ID, started.ID))(t)
		require.Equal(t, scenarios.Done, s.State, s)
		assert.Equal(t, epoch.Add(95*time.Second), s.Steps[0].LiftedAt)
		events, _, err := w.cloud.Events(ctx, w.project, cloud.Oldest)
		require.NoError(t, err)
		for _, e := range events {
			told = append(
				told, fmt.Sprint(e.Time.Sub(epoch), " ", e.Type, " ", e.ID, " ", e.From, " ", e.To, " ", e.Reason),
			)
		}
		return told
	}
	once := play(2 * time.Minute)
	require.Contains(t, strings.Join(once, "\n"), "error no disk")
	assert.Equal(t, once, play(2*time.Minute), "the same seed")
	many := make([]time.Duration, 120)
	for i := range many {
		many[i] = time.Second
	}
	assert.Equal(t, once, play(many...))
	assert.Equal(t, once, play(7*time.Second, 0, 28*time.Second, 300*time.Millisecond, 84700*time.Millisecond))
}

func TestASnapshotStopsScenarios(t *testing.T) {
	w := newWorld(t)
	_, err := w.cloud.SaveSnapshot(t.Context(), "then")
	require.NoError(t, err)
	started := must(w.Run(t.Context(), w.project, scenarios.Spec{Name: "s", Steps: []scenarios.Step{
		{Fault: &faults.Spec{Effect: faults.Effect{Stuck: true}}, For: time.Hour},
		{At: time.Hour, Action: "stop", Instances: &scenarios.Selector{Pick: 1}},
	}}))(t)
	require.Eventually(t, func() bool { return len(w.rules.List(w.project.ID)) == 1 }, patience, time.Millisecond)
	_, err = w.cloud.RestoreSnapshot(t.Context(), "then")
	require.NoError(t, err)
	s := must(w.Get(w.project.ID, started.ID))(t)
	assert.Equal(t, scenarios.Stopped, s.State)
	assert.Equal(t, epoch, s.Steps[0].LiftedAt)
	assert.Empty(t, w.rules.List(w.project.ID))
}
