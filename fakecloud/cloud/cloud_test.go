package cloud

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/jonboulle/clockwork"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/fakecloud/store"
)

func newCloud(t *testing.T, change func(*Config)) (*Cloud, Project) {
	t.Helper()
	s, err := store.Open(t.Context(), store.Memory)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, s.Close()) })
	cfg := Config{Store: s, DataPlane: newFakePlane(), Profile: Profiles[1], Clock: clockwork.NewFakeClockAt(epoch), Retention: time.Minute}
	if change != nil {
		change(&cfg)
	}
	c, err := New(cfg)
	require.NoError(t, err)
	p, err := c.EnsureProject(t.Context(), "default", nil)
	require.NoError(t, err)
	return c, p
}

func TestRealisticDelaysAreDrawnAroundTheirMean(t *testing.T) {
	c, _ := newCloud(t, func(cfg *Config) { cfg.Profile = Profiles[2] })
	seen := map[time.Duration]bool{}
	for range 200 {
		d := c.delay(DelayPending)
		assert.InDelta(t, 15, d.Seconds(), 3)
		seen[d] = true
	}
	assert.Greater(t, len(seen), 100)
}

func TestSeedRepeatsIDsAndNames(t *testing.T) {
	var made []Instance
	for range 2 {
		c, p := newCloud(t, func(cfg *Config) { cfg.Seed = 7 })
		in, err := c.CreateInstance(t.Context(), p, InstanceSpec{})
		require.NoError(t, err)
		made = append(made, in)
	}
	assert.Equal(t, made[0].ID, made[1].ID)
	assert.Equal(t, made[0].Name, made[1].Name)
	assert.Regexp(t, `^instance-[a-z]{6}$`, made[0].Name)
	assert.Regexp(t, `^i-[0-9a-z]{26}$`, made[0].ID)
}

func TestConfigurationsThatCannotWork(t *testing.T) {
	c, _ := newCloud(t, nil)
	for want, change := range map[string]func(*Config){
		"host bits":  func(cfg *Config) { cfg.InstanceCIDR = netip.MustParsePrefix("127.30.16.1/20") },
		"at most":    func(cfg *Config) { cfg.InstanceCIDR = netip.MustParsePrefix("127.30.16.0/31") },
		"IPv4":       func(cfg *Config) { cfg.InstanceCIDR = netip.MustParsePrefix("fd00::/64") },
		"overlap":    func(cfg *Config) { cfg.InstanceCIDR = netip.MustParsePrefix("127.30.64.0/24") },
		"zone":       func(cfg *Config) { cfg.Zones = []string{"a", "a"} },
		"negative":   func(cfg *Config) { cfg.Retention = -time.Second },
		"data plane": func(cfg *Config) { cfg.DataPlane = nil },
	} {
		cfg := c.cfg
		change(&cfg)
		_, err := New(cfg)
		require.ErrorContains(t, err, want)
	}
}

func TestAddressesSkipTheNetworkAndTheBroadcast(t *testing.T) {
	pool := netip.MustParsePrefix("127.9.0.0/30")
	a, err := lowestFree(pool, nil)
	require.NoError(t, err)
	assert.Equal(t, "127.9.0.1", a.String())
	a, err = lowestFree(pool, []string{"127.9.0.1"})
	require.NoError(t, err)
	assert.Equal(t, "127.9.0.2", a.String())
	_, err = lowestFree(pool, []string{"127.9.0.1", "127.9.0.2"})
	requireCode(t, AddressPoolExhausted, err)
}

func TestOnlyTheTokensSetAreValid(t *testing.T) {
	c, p := newCloud(t, nil)
	ctx := t.Context()
	const one, two, three = "sixteen characters", "sixteen more characters", "and another sixteen"
	valid := func(want map[string]string) {
		t.Helper()
		for _, secret := range []string{one, two, three} {
			who, err := c.Authenticate(ctx, secret)
			if want[secret] == "" {
				requireCode(t, Unauthenticated, err)
				continue
			}
			require.NoError(t, err)
			assert.Equal(t, Principal{want[secret], p}, who)
		}
	}
	for range 2 {
		require.NoError(t, c.SetTokens(ctx, p, []Token{{"a", one}, {"b", two}}))
		valid(map[string]string{one: "a", two: "b"})
	}
	for _, bad := range [][]Token{
		{{"a", three}, {"a", one}}, {{"a", three}, {"b", three}}, {{"a", three}, {"b", "short"}},
	} {
		requireCode(t, InvalidRequest, c.SetTokens(ctx, p, bad))
		valid(map[string]string{one: "a", two: "b"})
	}
	require.NoError(t, c.SetTokens(ctx, p, []Token{{"a", two}, {"b", one}}), "swapped")
	valid(map[string]string{one: "b", two: "a"})
	require.NoError(t, c.SetTokens(ctx, p, []Token{{"c", two}}), "renamed, and one left out")
	valid(map[string]string{two: "c"})

	q, err := c.EnsureProject(ctx, "other", nil)
	require.NoError(t, err)
	require.NoError(t, c.SetTokens(ctx, q, []Token{{"d", three}}))
	who, err := c.Authenticate(ctx, two)
	require.NoError(t, err, "another project's tokens stay")
	assert.Equal(t, p, who.Project)
}

func TestDefaultTagsAreTags(t *testing.T) {
	c, _ := newCloud(t, nil)
	for _, tags := range []map[string]string{{"": "x"}, {"a=b": "x"}, {"a": strings.Repeat("x", maxTagValue+1)}} {
		_, err := c.EnsureProject(t.Context(), "default", tags)
		requireCode(t, InvalidRequest, err)
	}
}

func TestNamesAreChecked(t *testing.T) {
	c, p := newCloud(t, nil)
	listeners := []Listener{{Protocol: TCP, Port: 80, TargetPort: 80}}
	lb, err := c.CreateLoadBalancer(t.Context(), p, LoadBalancerSpec{Name: "a.b-c.d", Listeners: listeners})
	require.NoError(t, err)
	for _, name := range []string{"a..b", "-a", "a-", ".a", "A", "a_b", "a\n", strings.Repeat("a", 254)} {
		_, err := c.CreateInstance(t.Context(), p, InstanceSpec{Name: name})
		requireCode(t, InvalidRequest, err)
		_, err = c.CreateLoadBalancer(t.Context(), p, LoadBalancerSpec{Name: name, Listeners: listeners})
		requireCode(t, InvalidRequest, err)
		_, err = c.UpdateLoadBalancer(t.Context(), p, lb.ID, LoadBalancerUpdate{Name: &name})
		requireCode(t, InvalidRequest, err)
	}
	_, err = c.CreateLoadBalancer(t.Context(), p, LoadBalancerSpec{Listeners: listeners})
	requireCode(t, InvalidRequest, err)
}

// newBalancer has one running target.
func newBalancer(t *testing.T, c *Cloud, p Project) (LoadBalancer, Instance) {
	t.Helper()
	in, err := c.CreateInstance(t.Context(), p, InstanceSpec{})
	require.NoError(t, err)
	advance(t, c, c.cfg.Profile.Delays[DelayPending])
	lb, err := c.CreateLoadBalancer(t.Context(), p, LoadBalancerSpec{Name: "lb", Listeners: []Listener{{Protocol: TCP, Port: 80, TargetPort: 80}}, Targets: []string{in.ID}})
	require.NoError(t, err)
	return lb, in
}

// advance lets time pass and makes what is due by then.
func advance(t *testing.T, c *Cloud, d time.Duration) {
	t.Helper()
	c.clock.(*clockwork.FakeClock).Advance(d)
	_, err := c.step(t.Context())
	require.NoError(t, err)
}

func balancerState(t *testing.T, c *Cloud, p Project, id string) LoadBalancerState {
	t.Helper()
	lb, err := c.GetLoadBalancer(t.Context(), p, id)
	require.NoError(t, err)
	return lb.State
}

func TestUpdatesDoNotPutABalancerOff(t *testing.T) {
	c, p := newCloud(t, nil)
	lb, _ := newBalancer(t, c, p)
	change := func(n int) {
		_, err := c.UpdateLoadBalancer(t.Context(), p, lb.ID, LoadBalancerUpdate{Tags: &map[string]string{"n": fmt.Sprint(n)}})
		require.NoError(t, err)
	}
	for n := range 3 {
		advance(t, c, 100*time.Millisecond)
		assert.Equal(t, LoadBalancerProvisioning, balancerState(t, c, p, lb.ID))
		change(n)
	}
	advance(t, c, 100*time.Millisecond)
	assert.Equal(t, LoadBalancerActive, balancerState(t, c, p, lb.ID))
	for n := range 2 {
		change(10 + n)
		advance(t, c, 25*time.Millisecond)
	}
	assert.Equal(t, LoadBalancerActive, balancerState(t, c, p, lb.ID))
}

// What the worker found due may have been changed before it comes to it.
func TestWhatIsNotDueIsLeftAlone(t *testing.T) {
	c, p := newCloud(t, nil)
	lb, _ := newBalancer(t, c, p)
	require.NoError(t, c.elapseLoadBalancer(t.Context(), lb.ID))
	require.NoError(t, c.build(t.Context(), lb.ID, false))
	assert.Equal(t, LoadBalancerProvisioning, balancerState(t, c, p, lb.ID))
	_, err := c.DeleteLoadBalancer(t.Context(), p, lb.ID)
	require.NoError(t, err)
	require.NoError(t, c.elapseLoadBalancer(t.Context(), lb.ID))
	assert.Equal(t, LoadBalancerDeleting, balancerState(t, c, p, lb.ID))
}

func TestTargetsThatCouldNotBeRefreshedAreTriedAgain(t *testing.T) {
	plane := newFakePlane()
	c, p := newCloud(t, func(cfg *Config) { cfg.DataPlane = plane })
	lb, in := newBalancer(t, c, p)
	advance(t, c, 400*time.Millisecond)
	require.Len(t, plane.applied[lb.ID].Backends, 1)

	plane.broken = errors.New("out of order")
	_, err := c.StartInstance(t.Context(), p, in.ID)
	require.NoError(t, err)
	assert.Empty(t, c.dirty, "what changes nothing concerns no balancer")
	_, err = c.StopInstance(t.Context(), p, in.ID)
	require.NoError(t, err)
	_, err = c.step(t.Context())
	require.ErrorContains(t, err, "out of order")
	require.Len(t, plane.applied[lb.ID].Backends, 1)
	plane.broken = nil
	_, err = c.step(t.Context())
	require.NoError(t, err)
	assert.Empty(t, plane.applied[lb.ID].Backends)
	assert.Empty(t, c.dirty)
}

func TestShutdownIsSeenBetweenTransitions(t *testing.T) {
	c, p := newCloud(t, nil)
	in, err := c.CreateInstance(t.Context(), p, InstanceSpec{})
	require.NoError(t, err)
	c.clock.(*clockwork.FakeClock).Advance(time.Second)
	ended, end := context.WithCancel(t.Context())
	end()
	state := func() InstanceState {
		now, err := c.GetInstance(t.Context(), p, in.ID)
		require.NoError(t, err)
		return now.State
	}
	_, err = c.step(ended)
	require.NoError(t, err)
	assert.Equal(t, InstancePending, state())
	advance(t, c, 0)
	assert.Equal(t, InstanceRunning, state())
}

// sleepClock tells how long each sleep is to be, once it has begun.
type sleepClock struct {
	*clockwork.FakeClock
	sleeps chan time.Duration
}

func (c sleepClock) NewTimer(d time.Duration) clockwork.Timer {
	timer := c.FakeClock.NewTimer(d)
	c.sleeps <- d
	return timer
}

// Run alone drives everything, and sleeps until something is due: it does not
// look now and then.
func TestRunSleepsUntilSomethingIsDue(t *testing.T) {
	clock := sleepClock{clockwork.NewFakeClockAt(epoch), make(chan time.Duration, 100)}
	c, p := newCloud(t, func(cfg *Config) { cfg.Clock = clock })
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		assert.NoError(t, <-done)
	})
	sleeps := func(want time.Duration) {
		t.Helper()
		for {
			select {
			case d := <-clock.sleeps:
				if d == want {
					return
				}
				require.GreaterOrEqual(t, d, time.Hour, "nothing else is due")
			case <-time.After(10 * time.Second):
				t.Fatalf("does not sleep %s", want)
			}
		}
	}
	state := func(id string) InstanceState {
		now, err := c.GetInstance(t.Context(), p, id)
		require.NoError(t, err)
		return now.State
	}
	sleeps(time.Hour)
	sleeps(time.Hour) // The project's making has woken it once.
	in, err := c.CreateInstance(t.Context(), p, InstanceSpec{})
	require.NoError(t, err)
	sleeps(300 * time.Millisecond)
	clock.Advance(299 * time.Millisecond)
	assert.Equal(t, InstancePending, state(in.ID))
	assert.Empty(t, clock.sleeps, "sleeps on")
	clock.Advance(time.Millisecond)
	sleeps(time.Hour)
	assert.Equal(t, InstanceRunning, state(in.ID))
}
