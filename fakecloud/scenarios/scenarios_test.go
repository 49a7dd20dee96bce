package scenarios_test

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jonboulle/clockwork"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"

	"github.com/ccmlab/ccmlab/fakecloud/cloud"
	"github.com/ccmlab/ccmlab/fakecloud/faults"
	"github.com/ccmlab/ccmlab/fakecloud/scenarios"
	"github.com/ccmlab/ccmlab/fakecloud/store"
)

const patience = 10 * time.Second

var epoch = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

type fakePlane struct{}

func (fakePlane) Apply(cloud.Forwarding) error            { return nil }
func (fakePlane) CanForward(cloud.LoadBalancerKind) error { return nil }
func (fakePlane) Remove(string)                           {}
func (fakePlane) Stats(string) cloud.LoadBalancerStats    { return cloud.LoadBalancerStats{} }
func (fakePlane) Health(string) []cloud.TargetHealth      { return nil }
func (fakePlane) Condition(string) (string, bool)         { return "", true }
func (fakePlane) Notify(func(string))                     {}

// world is a cloud that lives, in which time passes when it is told to.
type world struct {
	*scenarios.Runner
	cloud   *cloud.Cloud
	rules   *faults.Rules
	clock   *clockwork.FakeClock
	project cloud.Project
}

func newWorld(t *testing.T) *world {
	ctx, cancel := context.WithCancel(context.Background())
	st := must(store.Open(ctx, store.Memory))(t)
	w := &world{clock: clockwork.NewFakeClockAt(epoch)}
	w.cloud = must(cloud.New(cloud.Config{
		Store: st, DataPlane: fakePlane{}, Profile: cloud.Profiles[0], Clock: w.clock, SnapshotDir: t.TempDir(),
	}))(t)
	w.project = must(w.cloud.EnsureProject(ctx, "default", nil))(t)
	quiet := slog.New(slog.DiscardHandler)
	operations := map[string]faults.Operation{"listThings": {Reads: true, Lists: true, Answers: func(string) bool {
		return true
	}}}
	w.rules = must(faults.Open(ctx, w.cloud, operations, quiet))(t)
	w.Runner = scenarios.New(w.cloud, w.rules, quiet)
	done := make(chan error, 1)
	go func() { done <- w.cloud.Run(ctx) }()
	t.Cleanup(func() {
		w.Close()
		w.rules.Close()
		cancel()
		assert.NoError(t, <-done)
		assert.NoError(t, st.Close())
	})
	<-w.cloud.Ready()
	return w
}

func (w *world) instance(t *testing.T, name string) string {
	t.Helper()
	in, _, err := w.cloud.CreateInstance(
		t.Context(), w.project, cloud.InstanceSpec{Name: name, Tags: map[string]string{"name": name}},
	)
	require.NoError(t, err)
	w.awaitState(t, in.ID, "running")
	return in.ID
}

func (w *world) awaitState(t *testing.T, id, want string) {
	t.Helper()
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		in, err := w.cloud.GetInstance(context.Background(), w.project, id)
		assert.NoError(c, err)
		assert.Equal(c, want, string(in.State))
	}, patience, time.Millisecond)
}

func (w *world) run(t *testing.T, s scenarios.Spec) string {
	t.Helper()
	return must(w.Run(t.Context(), w.project, s))(t).ID
}

// await waits until that many steps are done and faults lifted.
func (w *world) await(t *testing.T, id string, done, lifted int) scenarios.Status {
	t.Helper()
	var s scenarios.Status
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		var err error
		s, err = w.Get(w.project.ID, id)
		assert.NoError(c, err)
		d, l := 0, 0
		for _, step := range s.Steps {
			if !step.DoneAt.IsZero() {
				d++
			}
			if !step.LiftedAt.IsZero() {
				l++
			}
		}
		assert.Equal(c, []int{done, lifted}, []int{d, l})
	}, patience, time.Millisecond)
	return s
}

func (w *world) awaitEnd(t *testing.T, id string, want scenarios.State) scenarios.Status {
	t.Helper()
	var s scenarios.Status
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		var err error
		s, err = w.Get(w.project.ID, id)
		assert.NoError(c, err)
		assert.Equal(c, want, s.State)
	}, patience, time.Millisecond)
	assert.False(t, s.EndedAt.IsZero())
	return s
}

// pass lets time go by, once the cloud and the scenario wait for it.
func (w *world) pass(t *testing.T, d time.Duration) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	require.NoError(t, w.clock.BlockUntilContext(ctx, 2))
	w.clock.Advance(d)
}

func drop() *faults.Spec { return &faults.Spec{Effect: faults.Effect{Drop: true}} }

func TestStepsComeInTheirTime(t *testing.T) {
	w := newWorld(t)
	a := w.instance(t, "a")
	id := w.run(t, scenarios.Spec{Name: "all", Seed: 7, Steps: []scenarios.Step{
		{At: 30 * time.Second, Action: "start", Instances: &scenarios.Selector{Name: "a"}},
		{At: 0, Fault: drop(), For: 30 * time.Second},
		{At: 10 * time.Second, Action: "crash", Instances: &scenarios.Selector{Tag: "name=a"}},
		{At: 40 * time.Second, Fault: drop()},
	}})
	s := w.await(t, id, 1, 0)
	assert.Equal(t, []string{"start instances name=a", "fault for 30s", "crash instances tag=name=a", "fault"},
		[]string{s.Steps[0].Does, s.Steps[1].Does, s.Steps[2].Does, s.Steps[3].Does})
	require.Len(t, w.rules.List(w.project.ID), 1)
	assert.Equal(t, id, w.rules.List(w.project.ID)[0].Scenario)
	hit := must(w.rules.Apply(faults.Call{Project: w.project.ID, Operation: "listThings"}))(t)
	require.NotNil(t, hit)
	w.pass(t, 10*time.Second)
	s = w.await(t, id, 2, 0)
	assert.Equal(t, "crash a ("+a+")", s.Steps[2].Result)
	assert.Equal(t, epoch.Add(10*time.Second), s.Steps[2].DoneAt)
	w.awaitState(t, a, "error")
	w.pass(t, 20*time.Second)
	s = w.await(t, id, 3, 1)
	assert.Contains(t, s.Steps[1].Result, "lifted after 1 hits")
	assert.Empty(t, w.rules.List(w.project.ID))
	w.awaitState(t, a, "running")
	w.pass(t, 10*time.Second)
	s = w.awaitEnd(t, id, scenarios.Done)
	assert.Equal(t, epoch.Add(40*time.Second), s.EndedAt)
	require.Len(t, w.rules.List(w.project.ID), 1, "a fault without an end outlives its scenario")
	s = must(w.Stop(t.Context(), w.project.ID, id))(t)
	assert.Equal(t, scenarios.Done, s.State)
	assert.Empty(t, w.rules.List(w.project.ID))
	assert.Equal(t, []scenarios.Status{s}, w.List(w.project.ID))
	assert.Empty(t, w.List("p-other"))
	require.NoError(t, w.Delete(t.Context(), w.project.ID, id))
	_, err := w.Get(w.project.ID, id)
	require.Error(t, err)
}

func TestStopLiftsFaults(t *testing.T) {
	w := newWorld(t)
	id := w.run(t, scenarios.Spec{Name: "long", Steps: []scenarios.Step{
		{Fault: drop()}, {Fault: drop(), For: time.Hour}, {At: time.Hour, Fault: drop()},
	}})
	w.await(t, id, 2, 0)
	require.Len(t, w.rules.List(w.project.ID), 2)
	s := must(w.Stop(t.Context(), w.project.ID, id))(t)
	assert.Equal(t, scenarios.Stopped, s.State)
	assert.Positive(t, s.Seed, "drawn, and shown")
	assert.True(t, s.Steps[2].DoneAt.IsZero())
	assert.Empty(t, w.rules.List(w.project.ID))
}

func TestAStepThatFailsEndsTheScenario(t *testing.T) {
	w := newWorld(t)
	w.instance(t, "a")
	for _, step := range []scenarios.Step{
		{Action: "stop", Instances: &scenarios.Selector{Name: "nobody"}},
		{Action: "stop", Instances: &scenarios.Selector{Pick: 2}},
		{Action: "delete", LoadBalancers: &scenarios.Selector{Tag: "x=y"}},
	} {
		id := w.run(t, scenarios.Spec{
			Name: "doomed", Steps: []scenarios.Step{{Fault: drop(), For: time.Hour}, step, {Fault: drop()}},
		})
		s := w.awaitEnd(t, id, scenarios.Failed)
		assert.Contains(t, s.Steps[1].Error, "match")
		assert.True(t, s.Steps[2].DoneAt.IsZero())
		assert.Empty(t, w.rules.List(w.project.ID))
	}
}

func TestTheSameSeedPicksTheSame(t *testing.T) {
	picked := map[int64]string{}
	for range 2 {
		w := newWorld(t)
		for _, name := range []string{"a", "b", "c", "d", "e", "f"} {
			w.instance(t, name)
		}
		for seed := int64(1); seed <= 8; seed++ {
			two := &scenarios.Selector{Pick: 2}
			id := w.run(t, scenarios.Spec{
				Name: "pick", Seed: seed,
				Steps: []scenarios.Step{{Action: "crash", Instances: two}, {Action: "start", Instances: two}},
			})
			s := w.awaitEnd(t, id, scenarios.Done)
			names := func(result string) string {
				words := strings.Fields(result)
				return words[1] + words[3]
			}
			assert.Equal(t, names(s.Steps[0].Result), names(s.Steps[1].Result))
			if picked[seed] != "" {
				assert.Equal(t, picked[seed], names(s.Steps[0].Result))
			}
			picked[seed] = names(s.Steps[0].Result)
			for _, in := range strings.Split(picked[seed], "") {
				items, _, err := w.cloud.ListInstances(t.Context(), w.project, cloud.Filter{Name: in, Limit: 1})
				require.NoError(t, err)
				w.awaitState(t, items[0].ID, "running")
			}
		}
	}
	different := map[string]bool{}
	for _, p := range picked {
		different[p] = true
	}
	assert.Greater(t, len(different), 1)
}

func TestScenariosThatMakeNoSense(t *testing.T) {
	w := newWorld(t)
	a := &scenarios.Selector{Name: "a"}
	for _, tc := range []struct {
		step  scenarios.Step
		field string
	}{
		{scenarios.Step{}, "steps.1"},
		{scenarios.Step{Fault: drop(), Action: "stop"}, "steps.1.action"},
		{scenarios.Step{Fault: drop(), Instances: a}, "steps.1.instances"},
		{scenarios.Step{Fault: &faults.Spec{}}, "steps.1.fault.effect"},
		{scenarios.Step{Action: "stop"}, "steps.1.instances"},
		{scenarios.Step{Action: "stop", LoadBalancers: a}, "steps.1.instances"},
		{scenarios.Step{Action: "stop", Instances: &scenarios.Selector{}}, "steps.1.instances"},
		{scenarios.Step{Action: "stop", Instances: a, LoadBalancers: a}, "steps.1.loadBalancers"},
		{scenarios.Step{Action: "stop", Instances: a, For: time.Second}, "steps.1.for"},
		{scenarios.Step{Action: "fly", Instances: a}, "steps.1.action"},
		{scenarios.Step{Action: "delete", Instances: a}, "steps.1.loadBalancers"},
		{scenarios.Step{Action: "delete", LoadBalancers: &scenarios.Selector{Zone: "a"}}, "steps.1.loadBalancers.zone"},
	} {
		_, err := w.Run(
			t.Context(), w.project, scenarios.Spec{Name: "bad", Steps: []scenarios.Step{{Fault: drop()}, tc.step}},
		)
		var refused *cloud.Error
		require.ErrorAs(t, err, &refused, tc.field)
		assert.Equal(t, cloud.InvalidRequest, refused.Code)
		assert.Equal(t, tc.field, refused.Fields[0].Path)
	}
	assert.Empty(t, w.rules.List(w.project.ID), "refused as a whole")
	assert.Empty(t, w.List(w.project.ID))
}

func TestAProjectRunsSoMany(t *testing.T) {
	w := newWorld(t)
	w.instance(t, "a")
	long := scenarios.Spec{Name: "long", Steps: []scenarios.Step{{At: time.Hour, Fault: drop()}}}
	for range 10 {
		w.run(t, long)
	}
	_, err := w.Run(t.Context(), w.project, long)
	var refused *cloud.Error
	require.ErrorAs(t, err, &refused)
	assert.Equal(t, cloud.TooManyFaults, refused.Code)
	for _, s := range w.List(w.project.ID) {
		_, err := w.Stop(t.Context(), w.project.ID, s.ID)
		require.NoError(t, err)
	}
	for range 60 {
		short := scenarios.Spec{
			Name: "short", Steps: []scenarios.Step{{Action: "start", Instances: &scenarios.Selector{Name: "a"}}},
		}
		w.awaitEnd(t, w.run(t, short), scenarios.Done)
	}
	assert.LessOrEqual(t, len(w.List(w.project.ID)), 51)
}

func TestReadyScenarios(t *testing.T) {
	ready := must(scenarios.Available())(t)
	require.NotEmpty(t, ready)
	for _, s := range ready {
		assert.NotEmpty(t, s.Description, s.Name)
		assert.Equal(t, s, must(scenarios.Find(s.Name))(t))
	}
	_, err := scenarios.Find("zone-outrage")
	require.ErrorContains(t, err, "--available")
	file := filepath.Join(t.TempDir(), "s.yaml")
	require.NoError(
		t,
		os.WriteFile(file, []byte("name: mine\nsteps: [{at: 0s, fault: {effect: {drop: true, dorp: true}}}]\n"), 0o600),
	)
	_, err = scenarios.Find(file)
	require.ErrorContains(t, err, `"dorp"`)
	require.ErrorContains(t, err, file)
	_, err = scenarios.Find(file + ".none")
	require.ErrorIs(t, err, os.ErrNotExist)
}

// Whatever text is parsed is refused, or is a scenario that stays the same when it
// is written and parsed again.
func FuzzParse(f *testing.F) {
	ready, err := scenarios.Available()
	require.NoError(f, err)
	for _, s := range ready {
		text, err := yaml.Marshal(s)
		require.NoError(f, err)
		f.Add(text)
	}
	for _, text := range []string{
		"", "name: x", "name: x\nsteps: [{}]", "name: x\nwhat: y\nsteps: [{at: 0s}]", "steps: {a: &a [*a]}", "- 1",
		"name: [", "name: x\nname: y\nsteps: [{at: 1}]",
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		s, err := scenarios.Parse(text)
		if err != nil {
			require.Contains(t, err.Error(), "is no scenario")
			return
		}
		again := must(yaml.Marshal(s))(t)
		same := must(scenarios.Parse(again))(t, "%s", again)
		once := must(yaml.Marshal(same))(t)
		require.Equal(t, string(again), string(once))
	})
}

// must returns what a call answers, and wants the call to succeed.
func must[A any](answer A, err error) func(t testing.TB, about ...any) A {
	return func(t testing.TB, about ...any) A {
		t.Helper()
		require.NoError(t, err, about...)
		return answer
	}
}
