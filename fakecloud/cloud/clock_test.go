package cloud

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/internal/must"
	"github.com/ccmlab/ccmlab/fakecloud/store"
)

// newVirtual is a cloud on a virtual clock over the store.
func newVirtual(t require.TestingT, ctx context.Context, s *store.Store, plane DataPlane, profile Profile) (*Cloud, Project) { //nolint:revive // As testing has it.
	v := must.Do(StartVirtualTime(ctx, s, epoch))(t)
	c := must.Do(New(Config{
		Store: s, DataPlane: plane, Profile: profile, Virtual: v, Seed: 3, Retention: time.Minute,
		InstanceCIDR: netip.MustParsePrefix("127.50.0.0/28"),
	}))(t)
	return c, must.Do(c.EnsureProject(ctx, "default", nil))(t)
}

func openStore(t *testing.T, path string) *store.Store {
	t.Helper()
	s := must.Do(store.Open(t.Context(), path))(t)
	t.Cleanup(func() { assert.NoError(t, s.Close()) })
	return s
}

func by(d time.Duration) func(time.Time) time.Time {
	return func(now time.Time) time.Time { return now.Add(d) }
}

// story is what events tell, without their numbers.
func story(t require.TestingT, ctx context.Context, c *Cloud, p Project) []string { //nolint:revive // As testing has it.
	var told []string
	after := Oldest
	for {
		events, next, err := c.Events(ctx, p, after)
		require.NoError(t, err)
		if len(events) == 0 {
			return told
		}
		for _, e := range events {
			told = append(told, fmt.Sprintf(
				"%s %s %s %s %s->%s %s", e.Time.Format("05.000"), e.Type, e.ID, e.Name, e.From, e.To, e.Reason,
			))
		}
		after = next
	}
}

func TestAVirtualClockMovesFromDueTimeToDueTime(t *testing.T) {
	c, p := newVirtual(t, t.Context(), openStore(t, store.Memory), newFakePlane(), Profiles[1])
	in := newInstance(t, c, p, api.InstanceCreate{Name: "a"})
	now, virtual := c.Now()
	assert.True(t, virtual)
	assert.Equal(t, epoch, now)
	moved := must.Do(c.Advance(t.Context(), by(299*time.Millisecond)))(t)
	assert.Equal(t, Advanced{From: epoch, Now: epoch.Add(299 * time.Millisecond), Complete: true}, moved)
	got := getInstance(t, c, p, in.ID)
	assert.Equal(t, api.InstancePending, got.State)
	moved = must.Do(c.Advance(t.Context(), by(time.Hour)))(t)
	assert.Equal(t, 1, moved.Transitions)
	got = getInstance(t, c, p, in.ID)
	assert.Equal(t, api.InstanceRunning, got.State)
	assert.Equal(t, epoch.Add(300*time.Millisecond), got.UpdatedAt, "its own time, not that of the call's end")

	requireOK(t)(c.TerminateInstance(t.Context(), p, in.ID))
	moved = must.Do(c.Advance(t.Context(), by(time.Hour)))(t)
	assert.Equal(t, 2, moved.Transitions, "terminated, and gone after the retention")
	requireRefused(t, NotFound)(c.GetInstance(t.Context(), p, in.ID))
}

func TestWhatTakesNoTimeHappensWithTheNextMove(t *testing.T) {
	c, p := newVirtual(t, t.Context(), openStore(t, store.Memory), newFakePlane(), Profiles[0])
	c.cfg.Retention = 0
	in := newInstance(t, c, p, api.InstanceCreate{})
	moved := must.Do(c.Advance(t.Context(), by(0)))(t)
	assert.Equal(t, Advanced{From: epoch, Now: epoch, Transitions: 1, Complete: true}, moved)
	requireOK(t)(c.TerminateInstance(t.Context(), p, in.ID))
	moved = must.Do(c.Advance(t.Context(), by(0)))(t)
	assert.Equal(t, 2, moved.Transitions)
}

func TestMovesThatAreRefused(t *testing.T) {
	c, p := newVirtual(t, t.Context(), openStore(t, store.Memory), newFakePlane(), Profiles[1])
	for _, d := range []time.Duration{-time.Millisecond, MaxAdvance + time.Millisecond} {
		requireRefused(t, InvalidRequest)(c.Advance(t.Context(), by(d)))
	}
	newInstance(t, c, p, api.InstanceCreate{})
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	assert.Equal(t, Advanced{From: epoch, Now: epoch}, must.Do(c.Advance(gone, by(time.Hour)))(t), "who asked is gone")
	real, _ := newCloud(t, nil)
	requireRefused(t, VirtualClock)(real.Advance(t.Context(), by(0)))
}

func TestHealthChecksNeedTheRealClock(t *testing.T) {
	file := filepath.Join(t.TempDir(), "cloud.db")
	s := must.Do(store.Open(t.Context(), file))(t)
	c, p := newCloud(t, func(cfg *Config) { cfg.Store = s })
	check := &HealthCheck{Protocol: api.HealthCheckTCP, Port: 80}
	spec := api.LoadBalancerCreate{Name: "checked", Listeners: oneListener, HealthCheck: check}
	lb := createBalancer(t, c, p, spec)
	_, err := StartVirtualTime(t.Context(), s, epoch)
	require.ErrorContains(t, err, `"checked" (`+lb.ID+`) has a health check`)
	own := []Listener{{Protocol: api.ProtocolTCP, Port: 80, TargetPort: 80, HealthCheck: *check}}
	updateBalancer(t, c, p, lb.ID, api.LoadBalancerUpdate{Listeners: &own, HealthCheck: &HealthCheck{Protocol: api.HealthCheckNone}})
	_, err = StartVirtualTime(t.Context(), s, epoch)
	require.ErrorContains(t, err, `"checked" (`+lb.ID+`) has a health check`)
	own[0].HealthCheck = HealthCheck{Protocol: api.HealthCheckNone}
	updateBalancer(t, c, p, lb.ID, api.LoadBalancerUpdate{Listeners: &own})
	c, p = newVirtual(t, t.Context(), s, newFakePlane(), Profiles[1])
	requireRefused(t, VirtualClock)(c.UpdateLoadBalancer(t.Context(), p, lb.ID, api.LoadBalancerUpdate{HealthCheck: check}))
	updateBalancer(t, c, p, lb.ID, api.LoadBalancerUpdate{HealthCheck: &HealthCheck{Protocol: api.HealthCheckNone}})
	spec.Name = "other"
	requireRefused(t, VirtualClock)(c.CreateLoadBalancer(t.Context(), p, spec))
	spec.HealthCheck, spec.Listeners = nil, []Listener{{Protocol: api.ProtocolTCP, Port: 80, TargetPort: 80, HealthCheck: *check}}
	requireRefusedAt(t, VirtualClock, "listeners.0.healthCheck")(c.CreateLoadBalancer(t.Context(), p, spec))
	require.NoError(t, s.Close())
}

// Whatever the order of clocks and restarts, time never runs backwards.
func TestTimeIsKeptWithTheData(t *testing.T) {
	s := openStore(t, store.Memory)
	ctx := t.Context()
	require.NoError(t, StartRealTime(ctx, s, epoch))
	start := func() (*Cloud, time.Time) {
		c, _ := newVirtual(t, ctx, s, newFakePlane(), Profiles[1])
		now, _ := c.Now()
		return c, now
	}
	c, now := start()
	assert.Equal(t, epoch, now)
	requireOK(t)(c.Advance(ctx, by(time.Hour)))
	c, now = start()
	assert.Equal(t, epoch.Add(time.Hour), now, "it goes on from there")
	require.ErrorContains(t, StartRealTime(ctx, s, epoch.Add(time.Hour-time.Millisecond)), "2026-01-02T04:04:05Z")
	require.NoError(t, StartRealTime(ctx, s, epoch.Add(2*time.Hour)))
	v := must.Do(StartVirtualTime(ctx, s, epoch.Add(3*time.Hour)))(t)
	assert.Equal(t, epoch.Add(3*time.Hour), v.clock.Now(), "the real clock was in between")
	v = must.Do(StartVirtualTime(ctx, s, epoch.Add(9*time.Hour)))(t)
	assert.Equal(t, epoch.Add(3*time.Hour), v.clock.Now())
	assert.NotNil(t, c)
}

// A crash in the middle of a move leaves the clock where what happened last
// happened.
func TestACrashWhileTheClockMoves(t *testing.T) {
	s := openStore(t, store.Memory)
	plane := newFakePlane()
	c, p := newVirtual(t, t.Context(), s, plane, Profiles[1])
	newInstance(t, c, p, api.InstanceCreate{})
	lb := createBalancer(t, c, p, api.LoadBalancerCreate{Name: "lb", Listeners: oneListener})
	c.cfg.DataPlane = panics{plane}
	func() {
		defer func() { assert.Equal(t, errCrash, recover()) }()
		_, _ = c.Advance(t.Context(), by(time.Hour))
	}()
	c, p = newVirtual(t, t.Context(), s, plane, Profiles[1])
	now, _ := c.Now()
	assert.Equal(t, epoch.Add(300*time.Millisecond), now, "the instance runs, the balancer is not built")
	assert.Equal(t, 1, must.Do(c.Advance(t.Context(), by(time.Second)))(t).Transitions)
	built := must.Do(c.GetLoadBalancer(t.Context(), p, lb.ID))(t)
	assert.Equal(t, api.LoadBalancerActive, built.State)
	assert.Equal(t, epoch.Add(400*time.Millisecond), built.UpdatedAt)
	other, _, err := c.CreateInstance(t.Context(), p, api.InstanceCreate{})
	require.NoError(t, err, "the same seed gives other IDs after a restart")
	assert.NotEmpty(t, other.ID)
}

var errCrash = errors.New("crash")

type panics struct{ DataPlane }

func (panics) Apply(Forwarding) error { panic(errCrash) }

// The same calls at the same times give the same events, in one move or many.
func TestManySmallMovesAreOneLarge(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		profile := rapid.SampledFrom(Profiles).Draw(t, "profile")
		type deed struct {
			wait time.Duration
			what int
			name string
			cuts []int
		}
		deeds := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) deed {
			return deed{
				wait: time.Duration(rapid.IntRange(0, 30_000).Draw(t, "wait")) * time.Millisecond,
				what: rapid.IntRange(0, 6).Draw(t, "what"),
				name: rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "name"),
				cuts: rapid.SliceOfN(rapid.IntRange(0, 1000), 0, 4).Draw(t, "cuts"),
			}
		}), 1, 12).Draw(t, "deeds")
		play := func(cut bool) []string {
			s := must.Do(store.Open(t.Context(), store.Memory))(t)
			defer func() { require.NoError(t, s.Close()) }()
			plane := newFakePlane()
			plane.blocked[99] = true
			c, p := newVirtual(t, t.Context(), s, plane, profile)
			for _, d := range deeds {
				do(t.Context(), c, p, d.what, d.name)
				left := d.wait
				for _, share := range d.cuts {
					if cut {
						part := (left * time.Duration(share) / 1000).Truncate(time.Millisecond)
						requireOK(t)(c.Advance(t.Context(), by(part)))
						left -= part
					}
				}
				require.True(t, must.Do(c.Advance(t.Context(), by(left)))(t).Complete)
			}
			return story(t, t.Context(), c, p)
		}
		whole := play(false)
		require.Equal(t, whole, play(false), "the same again")
		require.Equal(t, whole, play(true), "in small moves")
	})
}

// do is one call; a refusal is as good as any answer.
func do(ctx context.Context, c *Cloud, p Project, what int, name string) {
	var id, lb string
	if page, _, err := c.ListInstances(ctx, p, Filter{Name: name, Limit: 10}); err == nil && len(page) > 0 {
		id = page[len(page)-1].ID
	}
	if page, _, err := c.ListLoadBalancers(ctx, p, Filter{Name: name, Limit: 10}); err == nil && len(page) > 0 {
		lb = page[0].ID
	}
	switch what {
	case 0:
		_, _, _ = c.CreateInstance(ctx, p, api.InstanceCreate{Name: name})
	case 1:
		_, _, _ = c.StopInstance(ctx, p, id)
	case 2:
		_, _, _ = c.StartInstance(ctx, p, id)
	case 3:
		_, _, _ = c.TerminateInstance(ctx, p, id)
	case 4:
		_, _, _ = c.CreateLoadBalancer(ctx, p, api.LoadBalancerCreate{Name: name, Listeners: oneListener})
	case 5:
		_, _, _ = c.UpdateLoadBalancer(ctx, p, lb, listenOn(99)) // It is blocked: the balancer is tried again and again.
	case 6:
		_, _, _ = c.DeleteLoadBalancer(ctx, p, lb)
	}
}
