package cloud

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/internal/must"
	"github.com/ccmlab/ccmlab/fakecloud/store"
	"github.com/ccmlab/ccmlab/fakecloud/store/db"
)

func operation(t *testing.T, c *Cloud, p Project, id string) Operation {
	t.Helper()
	return must.Do(c.GetOperation(t.Context(), p, id))(t)
}

func requireEnd(t *testing.T, c *Cloud, p Project, id string, want api.OperationState, why string) {
	t.Helper()
	op := operation(t, c, p, id)
	assert.Equal(t, want, op.State)
	assert.Equal(t, why, op.Error)
	assert.Equal(t, want == api.OperationRunning, op.EndedAt == nil)
}

func TestOperationsOfAnInstance(t *testing.T) {
	c, p := newCloud(t, nil)
	ctx := WithRequest(t.Context(), Request{Token: "operator"})
	in, outcome, err := c.CreateInstance(ctx, p, api.InstanceCreate{Name: "a"})
	require.NoError(t, err)
	act := func(do func(context.Context, Project, string) (Instance, Outcome, error)) (operation string) {
		return must.Second(do(t.Context(), p, in.ID))(t).Operation
	}
	create := operation(t, c, p, outcome.Operation)
	assert.Equal(t, Operation{
		ID: create.ID, Serial: in.Serial + 1, Project: p.ID, Type: "createInstance",
		Resource: api.ResourceInstance, ResourceID: in.ID, State: api.OperationRunning, Token: "operator", Records: api.Records{},
		CreatedAt: epoch,
	}, create)
	assert.Empty(t, act(c.StartInstance), "it is pending: nothing changes")
	advance(t, c, 300*time.Millisecond)
	done := operation(t, c, p, create.ID)
	assert.Equal(t, api.OperationDone, done.State)
	assert.Equal(t, epoch.Add(300*time.Millisecond), *done.EndedAt)

	stop := act(c.StopInstance)
	assert.Equal(t, "stopInstance", operation(t, c, p, stop).Type)
	assert.Empty(t, act(c.StopInstance))
	advance(t, c, 200*time.Millisecond)
	requireEnd(t, c, p, stop, api.OperationDone, "")
	start := act(c.StartInstance)
	terminate := act(c.TerminateInstance)
	requireEnd(t, c, p, start, api.OperationSuperseded, "the resource is terminating")
	requireEnd(t, c, p, terminate, api.OperationRunning, "")
	advance(t, c, 200*time.Millisecond)
	requireEnd(t, c, p, terminate, api.OperationDone, "")
	advance(t, c, time.Hour)
	requireRefused(t, NotFound)(c.GetInstance(t.Context(), p, in.ID))
	requireEnd(t, c, p, terminate, api.OperationDone, "")
}

func TestOperationsOfABalancer(t *testing.T) {
	c, p, plane := newCloudWithPlane(t)
	lb, created, err := c.CreateLoadBalancer(t.Context(), p, api.LoadBalancerCreate{Name: "lb", Listeners: oneListener})
	require.NoError(t, err)
	create := created.Operation
	update := func(port int) (operation string) {
		return must.Second(c.UpdateLoadBalancer(t.Context(), p, lb.ID, listenOn(port)))(t).Operation
	}
	early, later := update(81), update(82)
	assert.Empty(t, update(82), "that is how it is already")
	requireEnd(t, c, p, create, api.OperationRunning, "")
	requireEnd(t, c, p, early, api.OperationSuperseded, "a later updateLoadBalancer took its place")
	advance(t, c, 400*time.Millisecond)
	requireEnd(t, c, p, create, api.OperationDone, "")
	requireEnd(t, c, p, later, api.OperationDone, "")

	plane.blocked[90] = true
	blocked := update(90)
	advance(t, c, 50*time.Millisecond)
	requireEnd(t, c, p, blocked, api.OperationFailed, "port 90 is blocked")
	advance(t, c, retryAfter)
	requireEnd(t, c, p, blocked, api.OperationFailed, "port 90 is blocked")
	last := update(91)
	gone := must.Second(c.DeleteLoadBalancer(t.Context(), p, lb.ID))(t).Operation
	requireEnd(t, c, p, last, api.OperationSuperseded, "the resource is deleting")
	assert.Empty(t, must.Second(c.DeleteLoadBalancer(t.Context(), p, lb.ID))(t).Operation)
	advance(t, c, 100*time.Millisecond)
	requireEnd(t, c, p, gone, api.OperationDone, "")

	all, more, err := c.ListOperations(t.Context(), p, OperationFilter{Resource: lb.ID, Limit: 10})
	require.NoError(t, err)
	assert.False(t, more)
	var ids []string
	for _, op := range all {
		ids = append(ids, op.ID)
	}
	assert.Equal(t, []string{create, early, later, blocked, last, gone}, ids)
	first, more, err := c.ListOperations(
		t.Context(), p,
		OperationFilter{Types: []string{"updateLoadBalancer"}, States: []string{"failed", "superseded"}, Limit: 2},
	)
	require.NoError(t, err)
	require.True(t, more)
	rest, more, err := c.ListOperations(t.Context(), p, OperationFilter{
		Types: []string{"updateLoadBalancer"}, States: []string{"failed", "superseded"}, After: first[1].ID, Limit: 2,
	})
	require.NoError(t, err)
	assert.False(t, more)
	assert.Equal(t, []string{early, blocked, last}, []string{first[0].ID, first[1].ID, rest[0].ID})
}

// Each state of each machine either leaves an operation running or ends it, and
// every change that leads from one state to another has a rule.
func TestEveryChangeThatTakesTimeHasAnOperation(t *testing.T) {
	has := map[string]bool{}
	for _, r := range OperationRules {
		has[string(r.Resource)+" "+string(r.On)] = true
		for _, state := range r.While {
			end, _ := operationResult(r.Type, state, "")
			assert.Equal(t, api.OperationRunning, end, "%s in %s", r.Type, state)
		}
		end, _ := operationResult(r.Type, r.Done, "")
		assert.Equal(t, api.OperationDone, end)
		end, why := operationResult(r.Type, r.Failed, "because")
		assert.Equal(t, api.OperationFailed, end)
		assert.Equal(t, "because", why)
	}
	people := []Action{Create, Start, Stop, Terminate, Update, Delete}
	for _, on := range people {
		for _, r := range InstanceRules {
			if r.On == on && !r.Same {
				assert.True(t, has["instance "+string(on)], "instance %s", on)
			}
		}
		for _, r := range LoadBalancerRules {
			if r.On == on && !r.Same {
				assert.True(t, has["load-balancer "+string(on)], "load balancer %s", on)
			}
		}
	}
}

func TestWaitingForOperations(t *testing.T) {
	c, p := newCloud(t, nil)
	create := must.Second(c.CreateInstance(t.Context(), p, api.InstanceCreate{}))(t).Operation
	over := make(chan struct{})
	close(over)
	op := must.Do(c.AwaitOperation(t.Context(), p, create, over))(t)
	assert.Equal(t, api.OperationRunning, op.State, "the time is up")
	assert.Empty(t, c.waiters.byID)

	var wg sync.WaitGroup
	got := make([]Operation, 8)
	for i := range got {
		wg.Go(func() {
			var err error
			got[i], err = c.AwaitOperation(t.Context(), p, create, nil)
			assert.NoError(t, err)
		})
	}
	require.Eventually(t, func() bool { return c.Waiting(create) == len(got) }, 10*time.Second, time.Millisecond)
	advance(t, c, time.Second)
	wg.Wait()
	for _, op := range got {
		assert.Equal(t, api.OperationDone, op.State)
	}
	assert.Empty(t, c.waiters.byID)
	requireRefused(t, NotFound)(c.AwaitOperation(t.Context(), p, "op-none", nil))
	other := must.Do(c.EnsureProject(t.Context(), "other", nil))(t)
	requireRefused(t, NotFound)(c.GetOperation(t.Context(), other, create))
}

func TestTheOldestOperationsAreDropped(t *testing.T) {
	c, p := newCloud(t, nil)
	running := must.Second(c.CreateInstance(t.Context(), p, api.InstanceCreate{}))(t).Operation
	other := must.Do(c.EnsureProject(t.Context(), "other", nil))(t)
	end := errors.New("enough")
	const pruneEvery = keepOperations / 100
	err := c.change(t.Context(), func(ctx context.Context, tx *changeTx) error {
		for n := range keepOperations + 2*pruneEvery {
			id, project := fmt.Sprintf("i-%d", n), p.ID
			if n == 0 {
				project = other.ID
			}
			if _, err := c.beginOperation(ctx, tx, project, api.ResourceInstance, id, Stop); err != nil {
				return err
			}
			if err := endDecidedOperations(ctx, tx, id, string(api.InstanceStopped), ""); err != nil {
				return err
			}
		}
		rows := must.Do(tx.ListOperations(ctx, dbAllOperations(p)))(t)
		assert.LessOrEqual(t, len(rows), keepOperations+pruneEvery)
		assert.GreaterOrEqual(t, len(rows), keepOperations)
		assert.Equal(t, running, rows[0].ID, "it still runs")
		assert.NotEqual(t, "i-1", rows[1].ResourceID)
		rows = must.Do(tx.ListOperations(ctx, dbAllOperations(other)))(t)
		assert.Len(t, rows, 1, "another project's is kept")
		return end
	})
	require.ErrorIs(t, err, end)
}

// Whatever is asked, and wherever the process is restarted, at most one creation
// and one later change run for a resource, and in the end all have ended.
func TestEveryOperationEnds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := must.Do(store.Open(t.Context(), store.Memory))(t)
		defer func() { require.NoError(t, s.Close()) }()
		plane := newFakePlane()
		plane.blocked[99] = true
		profile := rapid.SampledFrom(Profiles).Draw(t, "profile")
		c, p := newVirtual(t, t.Context(), s, plane, profile)
		all := func(states ...string) []Operation {
			return must.First(c.ListOperations(t.Context(), p, OperationFilter{States: states, Limit: 1000}))(t)
		}
		t.Repeat(map[string]func(*rapid.T){
			"do": func(t *rapid.T) {
				do(t.Context(), c, p, rapid.IntRange(0, 6).Draw(t, "what"), rapid.SampledFrom([]string{"a", "b"}).
					Draw(t, "name"))
			},
			"wait": func(t *rapid.T) {
				must.Do(c.Advance(t.Context(), by(time.Duration(rapid.IntRange(0, 10_000).
					Draw(t, "ms"))*time.Millisecond)))(t)
			},
			"restart": func(t *rapid.T) {
				c, p = newVirtual(t, t.Context(), s, plane, profile)
				require.NoError(t, c.restoreBalancers(t.Context()))
			},
			"": func(t *rapid.T) {
				running := map[string]int{}
				for _, op := range all(string(api.OperationRunning)) {
					require.Nil(t, op.EndedAt)
					running[op.ResourceID]++
					require.LessOrEqual(t, running[op.ResourceID], 2)
				}
			},
		})
		requireOK(t)(c.Advance(t.Context(), by(time.Minute)))
		require.Empty(t, all(string(api.OperationRunning)))
		for _, op := range all() {
			require.False(t, op.EndedAt.Before(op.CreatedAt))
			require.Equal(t, op.State == api.OperationDone, op.Error == "", op)
		}
	})
}

func dbAllOperations(p Project) db.ListOperationsParams {
	return db.ListOperationsParams{ProjectID: p.ID, Types: "[]", States: "[]", Serials: "[]", Max: 2 * keepOperations}
}
