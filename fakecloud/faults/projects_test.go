package faults_test

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/jonboulle/clockwork"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/cloud"
	"github.com/ccmlab/ccmlab/fakecloud/faults"
	"github.com/ccmlab/ccmlab/fakecloud/internal/must"
)

func TestADeletedProjectsFaultsAreLifted(t *testing.T) {
	w := living(t)
	ctx := t.Context()
	lost := w.runs(t, "lost", "nebula-1a")
	for _, s := range []api.FaultCreate{
		{Effect: api.FaultEffect{ZoneOutage: "nebula-1a"}, Match: api.FaultMatch{Project: w.project}},
		{Effect: api.FaultEffect{Stuck: true}, Match: api.FaultMatch{Project: w.project}},
		{Effect: api.FaultEffect{Hang: true}, Match: api.FaultMatch{Project: w.project}},
	} {
		must.Do(w.Create(ctx, w.other, s))(t)
	}
	about := w.make(t, api.FaultCreate{Effect: api.FaultEffect{Stuck: true}, Match: api.FaultMatch{Project: w.other}})
	own := w.make(t, api.FaultCreate{Effect: api.FaultEffect{Status: 503}, Match: callsOf("makeThing")})
	stuck := w.instance(t, "stuck", "nebula-1b")
	w.pass(t, time.Minute)
	w.state(t, lost, "error", "zone nebula-1a has an outage")
	require.Eventually(t, func() bool { return w.List(w.other)[1].Hits == 1 }, patience, time.Millisecond)
	call := faults.Call{Project: w.project, Operation: "getThing"}
	hit := applyTo(t, w.Rules, call)
	require.NotNil(t, hit)

	inOther := cloud.Project{ID: w.other, Name: "p1"}
	in := must.First(w.cloud.CreateInstance(ctx, inOther, api.InstanceCreate{}))(t)
	requireCode(t, cloud.InUse, w.cloud.DeleteProject(ctx, w.proj(), w.other))
	require.Len(t, w.List(w.other), 3, "they stay if the project does")
	require.NotNil(t, applyTo(t, w.Rules, call))
	w.lift(t, about)
	about = w.make(t, api.FaultCreate{Effect: api.FaultEffect{Hang: true}, Match: api.FaultMatch{Project: w.other}})
	must.First(w.cloud.TerminateInstance(ctx, inOther, in.ID))(t)
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		w.clock.Advance(time.Second)
		assert.NoError(c, w.cloud.DeleteProject(ctx, w.proj(), w.other))
	}, patience, time.Millisecond)

	<-hit.Lifted
	assert.Nil(t, applyTo(t, w.Rules, call))
	assert.Empty(t, w.List(w.other))
	assert.Equal(t, []api.Fault{own}, w.List(w.project))
	_, err := w.Get(w.project, about.ID)
	requireCode(t, cloud.NotFound, err)
	w.pass(t, time.Minute)
	w.state(t, stuck, "running", "")
	w.state(t, lost, "running", "")
	stored := must.Do(w.cloud.StoredFaults(ctx))(t)
	require.Len(t, stored, 1)
	assert.Equal(t, own.ID, stored[0].ID)
}

// What was lost or held when a rule vanished from the store goes on at the next
// start; what a rule still holds does not.
func TestOrphansAreReleasedAtStart(t *testing.T) {
	path := filepath.Join(t.TempDir(), "cloud.db")
	clock := clockwork.NewFakeClockAt(epoch)
	w := openWorld(t, path, clock)
	stop := w.run(t)
	lost := w.runs(t, "lost", "nebula-1a")
	w.make(t, api.FaultCreate{Effect: api.FaultEffect{ZoneOutage: "nebula-1a"}})
	w.make(t, api.FaultCreate{Effect: api.FaultEffect{Stuck: true}})
	stuck, balancer := w.instance(t, "stuck", "nebula-1b"), w.balancer(t, "stuck")
	w.pass(t, time.Minute)
	require.Eventually(t, func() bool { return w.List(w.project)[1].Hits == 2 }, patience, time.Millisecond)
	stop()
	w.end()

	alter(t, path, "DELETE FROM fault_instances; DELETE FROM faults")
	w = openWorld(t, path, clock)
	stop = w.run(t)
	w.pass(t, time.Minute)
	w.state(t, lost, "running", "")
	w.state(t, stuck, "running", "")
	w.state(t, balancer, "active", "")
	stop()
	w.end()
}
