package cloud

import (
	"context"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jonboulle/clockwork"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/internal/must"
	"github.com/ccmlab/ccmlab/fakecloud/store"
	"github.com/ccmlab/ccmlab/fakecloud/store/db"
)

// activeBalancer is one whose only target runs.
func activeBalancer(t *testing.T, c *Cloud, p Project) (LoadBalancer, Instance) {
	t.Helper()
	in := newInstance(t, c, p, api.InstanceCreate{})
	lb := createBalancer(t, c, p, api.LoadBalancerCreate{Name: "web", Listeners: oneListener, Targets: toTargets(in.ID)})
	advance(t, c, 500*time.Millisecond)
	return balancerNow(t, c, p, lb), in
}

func balancerNow(t *testing.T, c *Cloud, p Project, lb LoadBalancer) LoadBalancer {
	t.Helper()
	return must.Do(c.GetLoadBalancer(t.Context(), p, lb.ID))(t)
}

func TestAnActiveBalancersReasonIsItsCondition(t *testing.T) {
	c, p, plane := newCloudWithPlane(t)
	lb, in := activeBalancer(t, c, p)
	assert.Equal(t, api.LoadBalancerActive, lb.State)
	assert.Empty(t, lb.StateReason)

	plane.toggleSick(lb.ID)
	advance(t, c, 0)
	sick := balancerNow(t, c, p, lb)
	assert.Equal(t, "all are sick", sick.StateReason)
	assert.Equal(t, api.LoadBalancerActive, sick.State)
	assert.Equal(t, lb.Version+1, sick.Version)
	events := must.First(c.Events(t.Context(), p, Oldest))(t)
	last := events[len(events)-1]
	assert.Equal(
		t, []any{api.EventUpdated, lb.ID, "active", "active", "all are sick"},
		[]any{last.Type, last.ID, last.From, last.To, last.Reason},
	)
	version := lb.Version
	_, _, err := c.DeleteLoadBalancer(WithRequest(t.Context(), Request{IfMatch: &version}), p, lb.ID)
	requireCode(t, PreconditionFailed, err)

	plane.toggleSick(lb.ID)
	advance(t, c, conditionPause)
	assert.Empty(t, balancerNow(t, c, p, lb).StateReason)
	requireOK(t)(c.StopInstance(t.Context(), p, in.ID))
	advance(t, c, conditionPause)
	assert.Equal(t, "none of 1 targets runs", balancerNow(t, c, p, lb).StateReason)
	requireOK(t)(c.TerminateInstance(t.Context(), p, in.ID))
	advance(t, c, time.Second)
	advance(t, c, conditionPause)
	assert.Equal(t, "none of 0 targets runs", balancerNow(t, c, p, lb).StateReason)

	// An update is for another state, which has no condition.
	updated := updateBalancer(t, c, p, lb.ID, listenOn(81))
	assert.Empty(t, updated.StateReason)
	plane.toggleSick(lb.ID)
	require.NoError(t, c.reportConditions(t.Context()))
	assert.Equal(t, updated, balancerNow(t, c, p, lb))
	advance(t, c, time.Second)
	assert.Equal(t, "all are sick", balancerNow(t, c, p, lb).StateReason, "told as it became active")
}

func TestFlappingTargetsAreToldOnceASecond(t *testing.T) {
	c, p, plane := newCloudWithPlane(t)
	lb, _ := activeBalancer(t, c, p)
	start := c.now()
	for range 301 { // 3 s
		plane.toggleSick(lb.ID)
		advance(t, c, 0)
		advance(t, c, 10*time.Millisecond)
	}
	wrote := balancerNow(t, c, p, lb).Version - lb.Version
	assert.GreaterOrEqual(t, wrote, int64(2), "it is told all the same")
	assert.LessOrEqual(t, wrote, 1+int64(c.now().Sub(start)/conditionPause))
	next := must.Do(c.runDueTransitions(t.Context()))(t)
	assert.LessOrEqual(t, next.Sub(c.now()), conditionPause, "the last one is not forgotten")
	advance(t, c, conditionPause)
	reason, _ := plane.Condition(lb.ID)
	assert.Equal(t, reason, balancerNow(t, c, p, lb).StateReason)
	next = must.Do(c.runDueTransitions(t.Context()))(t)
	assert.Zero(t, next, "nothing is left to be told")
}

func TestAConditionThatIsNoOtherIsNotWritten(t *testing.T) {
	c, p, plane := newCloudWithPlane(t)
	lb, _ := activeBalancer(t, c, p)
	plane.toggleSick(lb.ID)
	plane.toggleSick(lb.ID)
	plane.changed("lb-of-which-nobody-knows")
	advance(t, c, conditionPause)
	assert.Equal(t, lb, balancerNow(t, c, p, lb))
}

// A restart is no news of a balancer that was unserved, and is.
func TestAReasonStaysUntilTheConditionIsKnown(t *testing.T) {
	clock, s := clockwork.NewFakeClockAt(epoch), openStore(t, filepath.Join(t.TempDir(), "cloud.db"))
	start := func(plane *fakePlane) (*Cloud, Project) {
		return newCloud(t, func(cfg *Config) { cfg.Store, cfg.Clock, cfg.DataPlane = s, clock, plane })
	}
	plane := newFakePlane()
	c, p := start(plane)
	lb, _ := activeBalancer(t, c, p)
	plane.toggleSick(lb.ID)
	advance(t, c, 0)
	sick := balancerNow(t, c, p, lb)
	assert.Equal(t, "all are sick", sick.StateReason)
	before := must.First(c.Events(t.Context(), p, Oldest))(t)

	plane = newFakePlane()
	plane.makeUnknown(lb.ID)
	c, p = start(plane)
	require.NoError(t, c.restoreBalancers(t.Context()))
	advance(t, c, conditionPause)
	assert.Equal(t, sick, balancerNow(t, c, p, lb), "nothing is known of its targets")
	plane.toggleSick(lb.ID)
	plane.makeKnown(lb.ID)
	advance(t, c, conditionPause)
	assert.Equal(t, sick, balancerNow(t, c, p, lb), "it is as it was")
	assert.Equal(t, before, must.First(c.Events(t.Context(), p, Oldest))(t))

	plane.makeUnknown(lb.ID)
	plane.toggleSick(lb.ID)
	advance(t, c, conditionPause)
	assert.Equal(t, sick, balancerNow(t, c, p, lb))
	plane.makeKnown(lb.ID)
	advance(t, c, conditionPause)
	assert.Empty(t, balancerNow(t, c, p, lb).StateReason)
}

func TestANewBalancersReasonIsEmptyUntilItsConditionIsKnown(t *testing.T) {
	c, p, plane := newCloudWithPlane(t)
	lb, _ := newBalancer(t, c, p)
	plane.makeUnknown(lb.ID)
	plane.toggleSick(lb.ID)
	advance(t, c, time.Second)
	active := balancerNow(t, c, p, lb)
	assert.Equal(t, api.LoadBalancerActive, active.State)
	assert.Empty(t, active.StateReason)
	plane.makeKnown(lb.ID)
	advance(t, c, conditionPause)
	assert.Equal(t, "all are sick", balancerNow(t, c, p, lb).StateReason)
}

func TestAVirtualClockTellsConditionsAtTheirTime(t *testing.T) {
	plane := newFakePlane()
	c, p := newVirtual(t, t.Context(), openStore(t, store.Memory), plane, Profiles[1])
	lb := createBalancer(t, c, p, api.LoadBalancerCreate{Name: "web", Listeners: oneListener})
	requireOK(t)(c.Advance(t.Context(), by(400*time.Millisecond)))
	assert.Equal(t, "none of 0 targets runs", balancerNow(t, c, p, lb).StateReason)
	plane.toggleSick(lb.ID)
	requireOK(t)(c.Advance(t.Context(), by(0)))
	told := balancerNow(t, c, p, lb)
	assert.Equal(t, "all are sick", told.StateReason)
	plane.toggleSick(lb.ID)
	assert.True(t, must.Do(c.Advance(t.Context(), by(time.Hour)))(t).Complete)
	again := balancerNow(t, c, p, lb)
	assert.Equal(t, "none of 0 targets runs", again.StateReason)
	assert.Equal(t, told.UpdatedAt.Add(conditionPause), again.UpdatedAt, "not before, and not at the call's end")
}

// The data plane may take its time to answer, and whoever writes waits for a
// write that is under way.
func TestNoWriteWaitsForACondition(t *testing.T) {
	c, p, plane := newCloudWithPlane(t)
	asked := 0
	plane.onCondition = func() {
		asked++
		wrote := make(chan error, 1)
		go func() { wrote <- c.store.Write(context.Background(), func(*store.Tx) error { return nil }) }()
		select {
		case err := <-wrote:
			assert.NoError(t, err)
		case <-time.After(10 * time.Second):
			assert.Fail(t, "it is asked for within a write")
		}
	}
	lb, _ := activeBalancer(t, c, p)
	require.Equal(t, api.LoadBalancerActive, lb.State)
	built := asked
	assert.Positive(t, built)
	plane.toggleSick(lb.ID)
	advance(t, c, conditionPause)
	assert.Equal(t, "all are sick", balancerNow(t, c, p, lb).StateReason)
	assert.Greater(t, asked, built)
}

func TestAConditionThatCannotBeWrittenIsToldLater(t *testing.T) {
	c, p, plane := newCloudWithPlane(t)
	lb, _ := activeBalancer(t, c, p)
	other, _ := newBalancer(t, c, p)
	advance(t, c, time.Second)
	well := balancerNow(t, c, p, other)
	row := func(document string) {
		require.NoError(t, c.store.Write(t.Context(), func(tx *store.Tx) error {
			return tx.UpdateResource(t.Context(), db.UpdateResourceParams{
				ID: lb.ID, Name: lb.Name, State: string(lb.State), Address: &lb.Address,
				Version: lb.Version, Document: document,
			})
		}))
	}
	row(strings.Replace(toJSON(lb), `"listeners":[`, `"listeners":["no list",`, 1))
	plane.toggleSick(lb.ID)
	plane.toggleSick(other.ID)
	_, err := c.runDueTransitions(t.Context())
	require.ErrorContains(t, err, lb.ID)
	assert.Equal(t, well.Version+1, balancerNow(t, c, p, other).Version, "the other one is told")
	row(toJSON(lb))
	advance(t, c, conditionPause)
	assert.Equal(t, "all are sick", balancerNow(t, c, p, lb).StateReason)
}
