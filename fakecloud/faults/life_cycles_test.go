package faults_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/cloud"
	"github.com/ccmlab/ccmlab/fakecloud/internal/must"
	"github.com/ccmlab/ccmlab/fakecloud/store"
)

const patience = 10 * time.Second

// living runs the world's cloud until the test ends.
func living(t *testing.T) *world {
	w := newWorld(t)
	t.Cleanup(w.run(t))
	return w
}

// run runs the world's cloud until it is stopped.
func (w *world) run(t *testing.T) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- w.cloud.Run(ctx) }()
	<-w.cloud.Ready()
	return func() {
		cancel()
		assert.NoError(t, <-done)
	}
}

func (w *world) proj() cloud.Project { return cloud.Project{ID: w.project, Name: "p0"} }

func (w *world) instance(t *testing.T, name, zone string) string {
	t.Helper()
	in := must.First(w.cloud.CreateInstance(
		t.Context(), w.proj(), api.InstanceCreate{Name: name, Zone: zone, Tags: map[string]string{"name": name}},
	))(t)
	return in.ID
}

func (w *world) runs(t *testing.T, name, zone string) string {
	t.Helper()
	id := w.instance(t, name, zone)
	w.pass(t, time.Second)
	w.state(t, id, "running", "")
	return id
}

func (w *world) balancer(t *testing.T, name string) string {
	t.Helper()
	lb := must.First(w.cloud.CreateLoadBalancer(t.Context(), w.proj(), api.LoadBalancerCreate{
		Name: name, Listeners: []cloud.Listener{{Protocol: api.ProtocolTCP, Port: 80, TargetPort: 80}},
	}))(t)
	return lb.ID
}

// pass lets time go by, once the cloud waits for it.
func (w *world) pass(t *testing.T, d time.Duration) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	require.NoError(t, w.clock.BlockUntilContext(ctx, 1))
	w.clock.Advance(d)
}

func (w *world) stateOf(t assert.TestingT, id string) string {
	ctx := context.Background()
	if in, err := w.cloud.GetInstance(ctx, w.proj(), id); err == nil {
		return string(in.State) + " " + in.StateReason
	}
	lb, err := w.cloud.GetLoadBalancer(ctx, w.proj(), id)
	if err != nil {
		return "gone "
	}
	return string(lb.State) + " " + lb.StateReason
}

// state waits for a resource's, at the time that it is.
func (w *world) state(t *testing.T, id, state, reason string) {
	t.Helper()
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		assert.Equal(c, state+" "+reason, w.stateOf(c, id))
	}, patience, time.Millisecond)
}

func (w *world) counts(t *testing.T, id string, matched, hits int) {
	t.Helper()
	f := must.Do(w.Get(w.project, id))(t)
	assert.Equal(t, []int{matched, hits}, []int{f.Matched, f.Hits})
}

func (w *world) lift(t *testing.T, f api.Fault) {
	t.Helper()
	require.NoError(t, w.Delete(t.Context(), w.project, f.ID))
}

func requireCode(t *testing.T, want cloud.Code, err error) {
	t.Helper()
	var refused *cloud.Error
	require.ErrorAs(t, err, &refused)
	require.Equal(t, want, refused.Code)
}

func TestStuckUntilLifted(t *testing.T) {
	w := living(t)
	f := w.make(t, api.FaultCreate{Effect: api.FaultEffect{Stuck: true}})
	in, lb := w.instance(t, "a", ""), w.balancer(t, "b")
	w.pass(t, time.Minute)
	require.Eventually(t, func() bool { return w.List(w.project)[0].Hits == 2 }, patience, time.Millisecond)
	w.state(t, in, "pending", "")
	w.state(t, lb, "provisioning", "")
	w.reopen(t)
	w.pass(t, time.Hour)
	w.state(t, in, "pending", "")
	w.state(t, lb, "provisioning", "")
	w.counts(t, f.ID, 2, 2)
	w.lift(t, f)
	w.state(t, in, "running", "")
	w.state(t, lb, "active", "")

	f = w.make(t, api.FaultCreate{
		Effect: api.FaultEffect{Stuck: true}, Match: api.FaultMatch{Kinds: []cloud.Resource{api.ResourceLoadBalancer}},
		ForSeconds: 60,
	})
	must.First(w.cloud.StopInstance(t.Context(), w.proj(), in))(t)
	must.First(w.cloud.DeleteLoadBalancer(t.Context(), w.proj(), lb))(t)
	w.pass(t, 30*time.Second)
	w.state(t, in, "stopped", "")
	w.state(t, lb, "deleting", "")
	w.pass(t, 31*time.Second)
	w.state(t, lb, "gone", "")
	w.counts(t, f.ID, 1, 1)
}

// Of two that hold a resource, the one that is left goes on to.
func TestStuckTwice(t *testing.T) {
	w := living(t)
	first := w.make(t, api.FaultCreate{Effect: api.FaultEffect{Stuck: true}})
	in := w.instance(t, "a", "")
	second := w.make(t, api.FaultCreate{Effect: api.FaultEffect{Stuck: true}, Match: api.FaultMatch{Tag: "name=a"}})
	w.pass(t, time.Minute)
	require.Eventually(t, func() bool { return w.List(w.project)[0].Hits == 1 }, patience, time.Millisecond)
	w.lift(t, first)
	require.Eventually(t, func() bool { return w.List(w.project)[0].Hits == 1 }, patience, time.Millisecond)
	w.state(t, in, "pending", "")
	w.lift(t, second)
	w.state(t, in, "running", "")
}

func TestWhatCannotBeBuilt(t *testing.T) {
	w := living(t)
	const reason = "the host has no disk left"
	f := w.make(t, api.FaultCreate{Effect: api.FaultEffect{Fail: reason}, Times: 2})
	in := w.instance(t, "a", "")
	w.pass(t, 300*time.Millisecond)
	w.state(t, in, "error", reason)
	lb := w.balancer(t, "b")
	w.pass(t, 400*time.Millisecond)
	w.state(t, lb, "error", reason)
	w.counts(t, f.ID, 2, 2)
	w.pass(t, 2*time.Second)
	w.state(t, lb, "active", "")
	started := must.First(w.cloud.StartInstance(t.Context(), w.proj(), in))(t)
	assert.Equal(t, "pending ", string(started.State)+" "+started.StateReason)
	w.pass(t, time.Second)
	w.state(t, in, "running", "")

	name := "c"
	w.make(t, api.FaultCreate{Effect: api.FaultEffect{Fail: reason}, Match: api.FaultMatch{Resource: lb}})
	must.First(w.cloud.UpdateLoadBalancer(t.Context(), w.proj(), lb, api.LoadBalancerUpdate{Name: &name}))(t)
	w.pass(t, time.Second)
	w.state(t, lb, "error", reason)
}

func TestCrashes(t *testing.T) {
	w := living(t)
	a, b := w.runs(t, "a", ""), w.runs(t, "b", "")
	f := w.make(t, api.FaultCreate{
		Effect: api.FaultEffect{Crash: true}, Match: api.FaultMatch{Tag: "name=a"}, Times: 2,
	})
	assert.Equal(t, "error crashed", w.stateOf(t, a), "with the reply")
	assert.Equal(t, "running ", w.stateOf(t, b))
	w.counts(t, f.ID, 1, 1)
	w.reopen(t)
	must.First(w.cloud.StartInstance(t.Context(), w.proj(), a))(t)
	w.pass(t, time.Second)
	w.state(t, a, "error", "crashed")
	must.First(w.cloud.StartInstance(t.Context(), w.proj(), a))(t)
	w.pass(t, time.Second)
	w.state(t, a, "running", "")
	w.counts(t, f.ID, 2, 2)

	w.make(t, api.FaultCreate{Effect: api.FaultEffect{Crash: true}, AfterSeconds: 60})
	assert.Equal(t, "running ", w.stateOf(t, b), "its window has not begun")
	w.pass(t, time.Minute)
	w.state(t, a, "error", "crashed")
	w.state(t, b, "error", "crashed")
	assert.Equal(t, api.InstanceStopping, must.First(w.cloud.StopInstance(t.Context(), w.proj(), b))(t).State)
	w.pass(t, time.Second)
	w.state(t, b, "stopped", "")
	_, _, err := w.cloud.RebootInstance(t.Context(), w.proj(), b)
	requireCode(t, cloud.WrongState, err)
}

func TestZoneOutage(t *testing.T) {
	const zone, reason = "nebula-1a", "zone nebula-1a has an outage"
	w := living(t)
	a, b, elsewhere := w.runs(t, "a", zone), w.runs(t, "b", zone), w.runs(t, "c", "nebula-1b")
	pending := w.instance(t, "d", zone)
	stopped := w.runs(t, "e", zone)
	w.state(t, pending, "running", "")
	must.First(w.cloud.StopInstance(t.Context(), w.proj(), stopped))(t)
	w.pass(t, time.Second)
	w.state(t, stopped, "stopped", "")
	pending = w.instance(t, "f", zone)

	f := w.make(t, api.FaultCreate{Effect: api.FaultEffect{ZoneOutage: zone}})
	for _, id := range []string{a, b, pending} {
		assert.Equal(t, "error "+reason, w.stateOf(t, id))
	}
	w.counts(t, f.ID, 4, 4)
	assert.Equal(t, "running ", w.stateOf(t, elsewhere))
	_, _, err := w.cloud.CreateInstance(t.Context(), w.proj(), api.InstanceCreate{Zone: zone})
	requireCode(t, cloud.ZoneUnavailable, err)
	for _, id := range []string{a, stopped} {
		_, _, err := w.cloud.StartInstance(t.Context(), w.proj(), id)
		requireCode(t, cloud.ZoneUnavailable, err)
	}
	for range 4 {
		in := must.First(w.cloud.CreateInstance(t.Context(), w.proj(), api.InstanceCreate{}))(t)
		assert.NotEqual(t, zone, in.Zone, "the cloud chooses one that works")
	}
	_, _, err = w.cloud.CreateInstance(t.Context(), cloud.Project{ID: w.other}, api.InstanceCreate{Zone: zone})
	require.NoError(t, err, "another project has no part in it")

	must.First(w.cloud.TerminateInstance(t.Context(), w.proj(), b))(t)
	w.reopen(t)
	assert.Equal(t, "error "+reason, w.stateOf(t, a), "an outage outlives the process")
	other := w.make(t, api.FaultCreate{Effect: api.FaultEffect{ZoneOutage: zone}, ForSeconds: 60})
	w.lift(t, f)
	assert.Equal(t, "error "+reason, w.stateOf(t, a), "there is another")
	w.counts(t, other.ID, 0, 0)
	w.pass(t, time.Minute)
	w.state(t, a, "pending", "recovering")
	w.state(t, pending, "pending", "recovering")
	w.state(t, stopped, "stopped", "")
	w.pass(t, time.Second)
	w.state(t, a, "running", "")
	require.NotContains(t, []string{"running ", "pending "}, w.stateOf(t, b))
	must.First(w.cloud.CreateInstance(t.Context(), w.proj(), api.InstanceCreate{Zone: zone}))(t)
}

// A virtual clock that is moved past the begin and the end of windows brings both,
// though nothing else is due then.
func TestWindowsOnAVirtualClock(t *testing.T) {
	st := must.Do(store.Open(t.Context(), store.Memory))(t)
	virtual := must.Do(cloud.StartVirtualTime(t.Context(), st, epoch))(t)
	w := &world{}
	cfg := cloud.Config{Store: st, DataPlane: fakePlane{}, Profile: cloud.Profiles[1], Virtual: virtual}
	w.cloud = must.Do(cloud.New(cfg))(t)
	p := must.Do(w.cloud.EnsureProject(t.Context(), "p0", nil))(t)
	w.project = p.ID
	w.reopen(t)
	t.Cleanup(func() {
		w.Close()
		assert.NoError(t, st.Close())
	})
	advance := func(d time.Duration) {
		t.Helper()
		must.Do(w.cloud.Advance(t.Context(), func(now time.Time) time.Time { return now.Add(d) }))(t)
	}
	in, lb := w.instance(t, "a", "nebula-1a"), w.balancer(t, "b")
	advance(time.Second)
	w.make(t, api.FaultCreate{
		Effect: api.FaultEffect{ZoneOutage: "nebula-1a"}, AfterSeconds: 60, ForSeconds: 60,
	})
	w.make(t, api.FaultCreate{
		Effect: api.FaultEffect{Stuck: true}, Match: api.FaultMatch{Resource: lb}, ForSeconds: 3600,
	})
	must.First(w.cloud.DeleteLoadBalancer(t.Context(), w.proj(), lb))(t)
	advance(90 * time.Second)
	assert.Equal(t, "error zone nebula-1a has an outage", w.stateOf(t, in))
	assert.Equal(t, "deleting ", w.stateOf(t, lb))
	advance(time.Minute)
	assert.Equal(t, "running ", w.stateOf(t, in))
	assert.Equal(t, "deleting ", w.stateOf(t, lb))
	advance(time.Hour)
	assert.Equal(t, "gone ", w.stateOf(t, lb))
}
