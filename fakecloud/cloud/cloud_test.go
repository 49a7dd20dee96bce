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

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/internal/must"
	"github.com/ccmlab/ccmlab/fakecloud/store"
)

func newCloud(t *testing.T, change func(*Config)) (*Cloud, Project) {
	t.Helper()
	s := must.Do(store.Open(t.Context(), store.Memory))(t)
	t.Cleanup(func() { assert.NoError(t, s.Close()) })
	cfg := Config{
		Store: s, DataPlane: newFakePlane(), Profile: Profiles[1], Clock: clockwork.NewFakeClockAt(epoch),
		Retention: time.Minute,
	}
	if change != nil {
		change(&cfg)
	}
	c := must.Do(New(cfg))(t)
	return c, must.Do(c.EnsureProject(t.Context(), "default", nil))(t)
}

// newCloudWithPlane gives the data plane as well.
func newCloudWithPlane(t *testing.T) (*Cloud, Project, *fakePlane) {
	t.Helper()
	plane := newFakePlane()
	c, p := newCloud(t, func(cfg *Config) { cfg.DataPlane = plane })
	return c, p, plane
}

var oneListener = []Listener{{Protocol: api.ProtocolTCP, Port: 80, TargetPort: 80}}

// listenOn replaces a balancer's listeners by one on that port.
func listenOn(port int) api.LoadBalancerUpdate {
	return api.LoadBalancerUpdate{Listeners: &[]Listener{{Protocol: api.ProtocolTCP, Port: port, TargetPort: 80}}}
}

func newInstance(t *testing.T, c *Cloud, p Project, spec api.InstanceCreate) Instance {
	t.Helper()
	return must.First(c.CreateInstance(t.Context(), p, spec))(t)
}

func createBalancer(t *testing.T, c *Cloud, p Project, spec api.LoadBalancerCreate) LoadBalancer {
	t.Helper()
	return must.First(c.CreateLoadBalancer(t.Context(), p, spec))(t)
}

func updateBalancer(t *testing.T, c *Cloud, p Project, id string, update api.LoadBalancerUpdate) LoadBalancer {
	t.Helper()
	return must.First(c.UpdateLoadBalancer(t.Context(), p, id, update))(t)
}

func getInstance(t *testing.T, c *Cloud, p Project, id string) Instance {
	t.Helper()
	return must.Do(c.GetInstance(t.Context(), p, id))(t)
}

func TestRealisticDelaysAreDrawnAroundTheirMean(t *testing.T) {
	c, _ := newCloud(t, func(cfg *Config) { cfg.Profile = Profiles[2] })
	seen := map[time.Duration]bool{}
	for range 200 {
		d := c.drawDelay(DelayPending)
		assert.InDelta(t, 15, d.Seconds(), 3)
		seen[d] = true
	}
	assert.Greater(t, len(seen), 100)
}

func TestSeedRepeatsIDsAndNames(t *testing.T) {
	var made []Instance
	for range 2 {
		c, p := newCloud(t, func(cfg *Config) { cfg.Seed = 7 })
		made = append(made, newInstance(t, c, p, api.InstanceCreate{}))
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
			assert.Equal(t, want[secret], who.Token)
			assert.Equal(t, p, who.Project)
		}
	}
	for range 2 {
		require.NoError(t, c.SetTokens(ctx, p, []GivenToken{{"a", one, Editor}, {"b", two, Editor}}))
		valid(map[string]string{one: "a", two: "b"})
	}
	for _, bad := range [][]GivenToken{
		{{"a", three, Editor}, {"a", one, Editor}}, {{"a", three, Editor}, {"b", three, Editor}},
		{{"a", three, Editor}, {"b", "short", Editor}},
	} {
		requireCode(t, InvalidRequest, c.SetTokens(ctx, p, bad))
		valid(map[string]string{one: "a", two: "b"})
	}
	require.NoError(t, c.SetTokens(ctx, p, []GivenToken{{"a", two, Editor}, {"b", one, Editor}}), "swapped")
	valid(map[string]string{one: "b", two: "a"})
	require.NoError(t, c.SetTokens(ctx, p, []GivenToken{{"c", two, Editor}}), "renamed, and one left out")
	valid(map[string]string{two: "c"})

	q := must.Do(c.EnsureProject(ctx, "other", nil))(t)
	require.NoError(t, c.SetTokens(ctx, q, []GivenToken{{"d", three, Editor}}))
	who := must.Do(c.Authenticate(ctx, two))(t, "another project's tokens stay")
	assert.Equal(t, p, who.Project)
}

func TestDefaultTagsAreTags(t *testing.T) {
	c, _ := newCloud(t, nil)
	for _, tags := range []map[string]string{{"": "x"}, {"a=b": "x"}, {"a": strings.Repeat("x", maxTagValue+1)}} {
		requireRefused(t, InvalidRequest)(c.EnsureProject(t.Context(), "default", tags))
	}
}

func TestNamesAreChecked(t *testing.T) {
	c, p := newCloud(t, nil)
	listeners := oneListener
	lb := createBalancer(t, c, p, api.LoadBalancerCreate{Name: "A b_c (2).", Listeners: listeners})
	requireRefused(t, NameTaken)(c.CreateLoadBalancer(
		t.Context(), p, api.LoadBalancerCreate{Name: "a B_c (2).", Listeners: listeners},
	))
	for _, name := range []string{"a..b", "-a", "a-", ".a", "a_b", "a b", "a\n", strings.Repeat("a", 254)} {
		requireRefused(t, InvalidRequest)(c.CreateInstance(t.Context(), p, api.InstanceCreate{Name: name}))
	}
	for _, name := range []string{"a/b", "-a", " a", "a ", "a?", "50%", "a,b", "ä", "a\n", strings.Repeat("a", 254)} {
		_, _, err := c.CreateLoadBalancer(t.Context(), p, api.LoadBalancerCreate{Name: name, Listeners: listeners})
		requireCode(t, InvalidRequest, err)
		requireRefused(t, InvalidRequest)(c.UpdateLoadBalancer(t.Context(), p, lb.ID, api.LoadBalancerUpdate{Name: &name}))
	}
	requireRefused(t, InvalidRequest)(c.CreateLoadBalancer(t.Context(), p, api.LoadBalancerCreate{Listeners: listeners}))
}

// Kubelets register their host's name in lower case: names that differ in case only would be one Node.
func TestInstancesAreNamedInAnyCase(t *testing.T) {
	c, p := newCloud(t, nil)
	in := newInstance(t, c, p, api.InstanceCreate{Name: "Node-1.Lab"})
	other := newInstance(t, c, p, api.InstanceCreate{Name: "node-2"})
	requireRefused(t, NameTaken)(c.CreateInstance(t.Context(), p, api.InstanceCreate{Name: "node-1.lab"}))
	requireRefused(t, NameTaken)(c.UpdateInstance(t.Context(), p, other.ID, api.ResourceUpdate{Name: new("NODE-1.LAB")}))
	found := must.First(c.ListInstances(t.Context(), p, Filter{Name: "node-1.lab", Limit: NoLimit}))(t)
	require.Len(t, found, 1)
	assert.Equal(t, "Node-1.Lab", found[0].Name)
	renamed, err := c.UpdateInstance(t.Context(), p, in.ID, api.ResourceUpdate{Name: new("node-1.lab")})
	require.NoError(t, err, "its own name in another case")
	assert.Equal(t, "node-1.lab", renamed.Name)
}

// newBalancer has one running target.
func newBalancer(t *testing.T, c *Cloud, p Project) (LoadBalancer, Instance) {
	t.Helper()
	in := newInstance(t, c, p, api.InstanceCreate{})
	advance(t, c, c.cfg.Profile.Delays[DelayPending])
	lb := createBalancer(t, c, p, api.LoadBalancerCreate{Name: "lb", Listeners: oneListener, Targets: toTargets(in.ID)})
	return lb, in
}

// advance lets time pass and makes what is due by then.
func advance(t *testing.T, c *Cloud, d time.Duration) {
	t.Helper()
	c.clock.(*clockwork.FakeClock).Advance(d)
	requireOK(t)(c.runDueTransitions(t.Context()))
}

func balancerState(t *testing.T, c *Cloud, p Project, id string) api.LoadBalancerState {
	t.Helper()
	return must.Do(c.GetLoadBalancer(t.Context(), p, id))(t).State
}

// What the worker found due may have been changed before it comes to it.
func TestWhatIsNotDueIsLeftAlone(t *testing.T) {
	c, p := newCloud(t, nil)
	lb, _ := newBalancer(t, c, p)
	require.NoError(t, c.advanceBalancers(t.Context(), []string{lb.ID}, false))
	assert.Equal(t, api.LoadBalancerProvisioning, balancerState(t, c, p, lb.ID))
	requireOK(t)(c.DeleteLoadBalancer(t.Context(), p, lb.ID))
	require.NoError(t, c.advanceBalancers(t.Context(), []string{lb.ID}, false))
	assert.Equal(t, api.LoadBalancerDeleting, balancerState(t, c, p, lb.ID))
}

func TestTargetsThatCouldNotBeRefreshedAreTriedAgain(t *testing.T) {
	c, p, plane := newCloudWithPlane(t)
	lb, in := newBalancer(t, c, p)
	advance(t, c, 400*time.Millisecond)
	require.Len(t, plane.applied[lb.ID].Backends, 1)

	plane.broken = errors.New("out of order")
	requireOK(t)(c.StartInstance(t.Context(), p, in.ID))
	assert.Empty(t, c.staleBalancers, "what changes nothing concerns no balancer")
	requireOK(t)(c.StopInstance(t.Context(), p, in.ID))
	_, err := c.runDueTransitions(t.Context())
	require.ErrorContains(t, err, "out of order")
	require.Len(t, plane.applied[lb.ID].Backends, 1)
	plane.broken = nil
	requireOK(t)(c.runDueTransitions(t.Context()))
	assert.Empty(t, plane.applied[lb.ID].Backends)
	assert.Empty(t, c.staleBalancers)
}

func TestShutdownIsSeenBetweenTransitions(t *testing.T) {
	c, p := newCloud(t, nil)
	in := newInstance(t, c, p, api.InstanceCreate{})
	c.clock.(*clockwork.FakeClock).Advance(time.Second)
	ended, end := context.WithCancel(t.Context())
	end()
	state := func() api.InstanceState { return getInstance(t, c, p, in.ID).State }
	requireOK(t)(c.runDueTransitions(ended))
	assert.Equal(t, api.InstancePending, state())
	advance(t, c, 0)
	assert.Equal(t, api.InstanceRunning, state())
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
	state := func(id string) api.InstanceState { return getInstance(t, c, p, id).State }
	sleeps(time.Hour)
	sleeps(time.Hour) // The project's making has woken it once.
	in := newInstance(t, c, p, api.InstanceCreate{})
	sleeps(300 * time.Millisecond)
	clock.Advance(299 * time.Millisecond)
	assert.Equal(t, api.InstancePending, state(in.ID))
	assert.Empty(t, clock.sleeps, "sleeps on")
	clock.Advance(time.Millisecond)
	sleeps(time.Hour)
	assert.Equal(t, api.InstanceRunning, state(in.ID))
}

// What is in force is what was built last: an update that is not built yet does
// not reach the data plane because a target has stopped.
func TestAnUpdateUnderWayDoesNotLeak(t *testing.T) {
	c, p, plane := newCloudWithPlane(t)
	lb, in := newBalancer(t, c, p)
	advance(t, c, 400*time.Millisecond)
	before := plane.applied[lb.ID]
	require.Len(t, before.Backends, 1)

	affinity := api.Seconds(60)
	updateBalancer(t, c, p, lb.ID, api.LoadBalancerUpdate{
		Listeners: &[]Listener{
			{Protocol: api.ProtocolTCP, Port: 80, TargetPort: 81, ProxyProtocol: api.ProxyProtocolV1},
			{Protocol: api.ProtocolUDP, Port: 80, TargetPort: 80},
		},
		SourceRanges: &[]string{"10.0.0.0/8", "10.0.0.0/8"}, ClientAffinitySeconds: &affinity,
		HealthCheck: &HealthCheck{Protocol: api.HealthCheckTCP, Port: 99},
	})
	requireOK(t)(c.StopInstance(t.Context(), p, in.ID))
	before.Backends = []Backend{}
	assert.Equal(t, before, plane.applied[lb.ID])

	advance(t, c, 50*time.Millisecond)
	after := plane.applied[lb.ID]
	assert.Equal(t, []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}, after.SourceRanges)
	assert.Equal(t, time.Minute, after.Affinity)
	assert.Equal(t, &HealthCheck{
		Protocol: api.HealthCheckTCP, Port: 99, IntervalSeconds: 5, TimeoutSeconds: 2, HealthyThreshold: 2,
		UnhealthyThreshold: 2,
	}, after.HealthCheck)
	assert.Len(t, after.Listeners, 2)

	same := updateBalancer(t, c, p, lb.ID,
		api.LoadBalancerUpdate{SourceRanges: &[]string{"10.0.0.0/8"}, HealthCheck: after.HealthCheck})
	assert.Equal(t, api.LoadBalancerActive, same.State, "a change of nothing")
	updateBalancer(t, c, p, lb.ID,
		api.LoadBalancerUpdate{SourceRanges: &[]string{}, HealthCheck: &HealthCheck{Protocol: api.HealthCheckNone}})
	advance(t, c, 50*time.Millisecond)
	assert.Nil(t, plane.applied[lb.ID].HealthCheck)
	assert.Empty(t, plane.applied[lb.ID].SourceRanges)
}

func TestWhatABalancerCannotBeAskedFor(t *testing.T) {
	c, p := newCloud(t, nil)
	lb, _ := newBalancer(t, c, p)
	tcp := Listener{Protocol: api.ProtocolTCP, Port: 1, TargetPort: 1}
	check := func(change func(*HealthCheck)) func(*api.LoadBalancerCreate) {
		return func(s *api.LoadBalancerCreate) {
			s.HealthCheck = &HealthCheck{Protocol: api.HealthCheckHTTP, Port: 80}
			change(s.HealthCheck)
		}
	}
	for field, change := range map[string]func(*api.LoadBalancerCreate){
		"listeners.0":               func(s *api.LoadBalancerCreate) { s.Listeners[0].Protocol = "sctp" },
		"listeners.0.proxyProtocol": func(s *api.LoadBalancerCreate) { s.Listeners[0].ProxyProtocol = "v3" },
		"listeners.1.proxyProtocol": func(s *api.LoadBalancerCreate) {
			s.Listeners = []Listener{tcp, {Protocol: api.ProtocolUDP, Port: 1, TargetPort: 1, ProxyProtocol: api.ProxyProtocolV1}}
		},
		"sourceRanges.1":              func(s *api.LoadBalancerCreate) { s.SourceRanges = []string{"0.0.0.0/0", "10.0.0.1/8"} },
		"sourceRanges.0":              func(s *api.LoadBalancerCreate) { s.SourceRanges = []string{"fd00::/129"} },
		"sourceRanges":                func(s *api.LoadBalancerCreate) { s.SourceRanges = make([]string, 101) },
		"clientAffinitySeconds":       func(s *api.LoadBalancerCreate) { s.ClientAffinitySeconds = 90_000 },
		"scheme":                      func(s *api.LoadBalancerCreate) { s.Scheme = "private" },
		"algorithm":                   func(s *api.LoadBalancerCreate) { s.Algorithm = "random" },
		"idleTimeoutSeconds":          func(s *api.LoadBalancerCreate) { s.IdleTimeoutSeconds = -1 },
		"drainSeconds":                func(s *api.LoadBalancerCreate) { s.DrainSeconds = 90_000 },
		"listeners.0.connectionLimit": func(s *api.LoadBalancerCreate) { s.Listeners[0].ConnectionLimit = -1 },
		"healthCheck.expectedCodes":   check(func(h *HealthCheck) { h.ExpectedCodes = "200,299-201" }),
		"healthCheck.protocol":        check(func(h *HealthCheck) { h.Protocol = api.HealthCheckNone }),
		"healthCheck.port":            check(func(h *HealthCheck) { h.Port = 0 }),
		"healthCheck.path":            check(func(h *HealthCheck) { h.Path = "/%zz" }),
		"healthCheck.intervalSeconds": check(func(h *HealthCheck) { h.IntervalSeconds = 301 }),
		"healthCheck.timeoutSeconds": check(func(h *HealthCheck) {
			h.IntervalSeconds, h.TimeoutSeconds = 1, 2
		}),
		"listeners.0.healthCheck.port": func(s *api.LoadBalancerCreate) {
			s.Listeners[0].HealthCheck = HealthCheck{Protocol: api.HealthCheckTCP}
		},
		"listeners.0.healthCheck.protocol": func(s *api.LoadBalancerCreate) {
			s.Listeners[0].HealthCheck = HealthCheck{Protocol: api.HealthCheckNone, Port: 1}
		},
		"healthCheck.healthyThreshold":   check(func(h *HealthCheck) { h.HealthyThreshold = 11 }),
		"healthCheck.unhealthyThreshold": check(func(h *HealthCheck) { h.UnhealthyThreshold = -1 }),
	} {
		spec := api.LoadBalancerCreate{Name: "new", Listeners: []Listener{tcp}}
		change(&spec)
		requireRefusedAt(t, InvalidRequest, field)(c.CreateLoadBalancer(t.Context(), p, spec))
		requireRefusedAt(t, InvalidRequest, field)(c.UpdateLoadBalancer(t.Context(), p, lb.ID, api.LoadBalancerUpdate{
			Listeners: &spec.Listeners, SourceRanges: &spec.SourceRanges, ClientAffinitySeconds: &spec.ClientAffinitySeconds,
			HealthCheck: spec.HealthCheck,
			Scheme:      orNil(spec.Scheme), Algorithm: orNil(spec.Algorithm), IdleTimeoutSeconds: &spec.IdleTimeoutSeconds,
			DrainSeconds: &spec.DrainSeconds,
		}))
	}
	made := createBalancer(t, c, p, api.LoadBalancerCreate{
		Name: "quick", Listeners: []Listener{tcp},
		HealthCheck: &HealthCheck{Protocol: api.HealthCheckHTTP, Port: 80, IntervalSeconds: 1},
	})
	assert.EqualValues(t, 1, made.HealthCheck.TimeoutSeconds, "the default is not above the interval")
	assert.Equal(t, "/", made.HealthCheck.Path)
}

func toTargets(ids ...string) []api.Target {
	targets := make([]api.Target, len(ids))
	for i, id := range ids {
		targets[i].InstanceID = id
	}
	return targets
}

func orNil[T comparable](v T) *T {
	var zero T
	if v == zero {
		return nil
	}
	return &v
}

func requireRefusedAt(t *testing.T, code Code, field string) func(results ...any) {
	t.Helper()
	return func(results ...any) {
		t.Helper()
		err, _ := results[len(results)-1].(error)
		requireCode(t, code, err)
		var refused *Error
		require.ErrorAs(t, err, &refused)
		require.Len(t, refused.Fields, 1)
		assert.Equal(t, field, refused.Fields[0].Path)
	}
}

func TestTargetsThatDoNotRunAreUnhealthy(t *testing.T) {
	c, p, plane := newCloudWithPlane(t)
	lb, in := newBalancer(t, c, p)
	other := newInstance(t, c, p, api.InstanceCreate{})
	updateBalancer(t, c, p, lb.ID, api.LoadBalancerUpdate{Targets: new(toTargets(other.ID, in.ID))})
	health := func() []api.TargetHealth { return must.Do(c.LoadBalancerHealth(t.Context(), p, lb.ID))(t) }
	none := []api.HealthChange{}
	pending := api.TargetHealth{
		InstanceID: other.ID, Health: api.TargetUnhealthy, Reason: "instance is pending", History: none,
	}
	assert.Equal(t, []api.TargetHealth{pending, {
		InstanceID: in.ID, Health: api.TargetUnknown, Reason: "the balancer does not forward to it yet", History: none,
	}}, health())
	healthy := api.TargetHealth{
		InstanceID: in.ID, Health: api.TargetHealthy, Since: &epoch,
		History: []api.HealthChange{
			{Health: api.TargetHealthy, At: epoch}, {Health: api.TargetUnknown, Reason: "not checked yet", At: epoch},
		},
	}
	plane.health = []api.TargetHealth{healthy, {InstanceID: other.ID, Health: api.TargetHealthy, History: healthy.History}}
	assert.Equal(t, []api.TargetHealth{pending, healthy}, health(), "how it was while it ran is not known")
	c.clock.(*clockwork.FakeClock).Advance(time.Millisecond)
	tagged := must.Do(c.UpdateInstance(t.Context(), p, other.ID, api.ResourceUpdate{Tags: &api.Tags{"a": "b"}}))(t)
	assert.NotEqual(t, other.UpdatedAt, tagged.UpdatedAt)
	assert.Equal(t, []api.TargetHealth{pending, healthy}, health(), "tags have nothing to do with it")
	requireRefused(t, NotFound)(c.LoadBalancerHealth(t.Context(), Project{ID: "p-other"}, lb.ID))
}

func TestAddressesMayBeChosen(t *testing.T) {
	c, p := newCloud(t, func(cfg *Config) { cfg.TargetRanges = prefixes("172.18.0.0/24", "127.30.64.0/24") })
	create := func(p Project, address string) (Instance, error) {
		in, _, err := c.CreateInstance(t.Context(), p, api.InstanceCreate{Address: address})
		return in, err
	}
	for _, address := range []string{
		"nonsense", "fd00::1", "::ffff:10.0.0.1", "0.0.0.0", "0.1.2.3", "224.0.0.1", "255.255.255.255", "10.0.0.1/8",
	} {
		requireRefusedAt(t, InvalidRequest, "address")(create(p, address))
	}
	there := must.Do(create(p, "172.18.0.3"))(t)
	assert.Equal(t, "172.18.0.3", there.Address.String())
	first := must.Do(create(p, "127.30.16.1"))(t)
	requireOK(t)(create(p, "127.30.64.1"))
	assert.Equal(t, "127.30.16.2", must.Do(create(p, ""))(t).Address.String(), "what was chosen is not given again")
	lb, _ := newBalancer(t, c, p)
	assert.Equal(t, "127.30.64.2", lb.Address, "nor to a balancer")

	_, err := create(p, "172.18.0.3")
	requireCode(t, AddressInUse, err)
	assert.ErrorContains(t, err, there.ID)
	_, err = create(p, lb.Address)
	requireCode(t, AddressInUse, err)
	assert.ErrorContains(t, err, lb.ID)
	q := must.Do(c.EnsureProject(t.Context(), "other", nil))(t)
	_, err = create(q, "172.18.0.3")
	requireCode(t, AddressInUse, err)
	assert.NotContains(t, err.Error(), there.ID, "of another project")

	requireOK(t)(c.TerminateInstance(t.Context(), p, first.ID))
	requireRefused(t, AddressInUse)(create(p, "127.30.16.1"))
	advance(t, c, 200*time.Millisecond)
	must.Do(create(p, "127.30.16.1"))(t, "given up when terminated")
}

func TestSecondaryAddresses(t *testing.T) {
	c, p := newCloud(t, func(cfg *Config) {
		cfg.TargetRanges, cfg.LoadBalancerCIDR6 = prefixes("172.18.0.0/24"), netip.MustParsePrefix("fd00:30::/64")
	})
	create := func(address string, secondary ...string) (Instance, error) {
		in, _, err := c.CreateInstance(t.Context(), p, api.InstanceCreate{Address: address, SecondaryAddresses: secondary})
		return in, err
	}
	for _, address := range []string{
		"nonsense", "::1", "fe80::1", "fd00::1%eth0", "ff02::1", "::", "::ffff:10.0.0.1", "fd00:0::1", "FD00::1", "fd00:30::9",
		"0.0.0.0", "10.0.0.1", "127.30.16.7", // The last one is the first of the three in the request below.
	} {
		requireRefusedAt(t, InvalidRequest, "secondaryAddresses.1")(create("", "127.30.16.7", address))
	}
	requireRefusedAt(t, InvalidRequest, "secondaryAddresses.0")(create("127.30.16.7", "127.30.16.7"))
	requireRefusedAt(t, InvalidRequest, "secondaryAddresses")(create("", make([]string, maxSecondary+1)...))

	in := must.Do(create("", "127.30.16.1", "fd00:16::1", "172.18.0.3"))(t)
	internal := fmt.Sprint(in.Internal())
	assert.Equal(t, "[127.30.16.2 127.30.16.1 fd00:16::1 172.18.0.3]", internal, "the first is the lowest free one")
	for _, taken := range []string{"127.30.16.2", "127.30.16.1", "fd00:16::1", "172.18.0.3"} {
		_, err := create("", taken)
		requireCode(t, AddressInUse, err)
		assert.ErrorContains(t, err, in.ID)
	}
	requireRefusedAt(t, AddressInUse, "address")(create("127.30.16.1"))
	assert.Equal(t, "127.30.16.3", must.Do(create(""))(t).Address.String(), "what failed took nothing")

	requireOK(t)(c.TerminateInstance(t.Context(), p, in.ID))
	requireRefusedAt(t, AddressInUse, "secondaryAddresses.0")(create("", "fd00:16::1"))
	advance(t, c, 200*time.Millisecond)
	ended := getInstance(t, c, p, in.ID)
	assert.Empty(t, ended.Internal())
	again := must.Do(create("127.30.16.2", "127.30.16.1", "fd00:16::1", "172.18.0.3"))(t, "given up when terminated")
	assert.Equal(t, internal, fmt.Sprint(again.Internal()))
}

func TestRoutesOfProjectsAreTheirOwn(t *testing.T) {
	c, p := newCloud(t, nil)
	q := must.Do(c.EnsureProject(t.Context(), "other", map[string]string{"owner": "q"}))(t)
	in := newInstance(t, c, p, api.InstanceCreate{})
	theirs := must.First(c.CreateInstance(t.Context(), q, api.InstanceCreate{}))(t)
	spec := api.RouteCreate{Name: "a", Destination: "10.0.0.0/24", InstanceID: in.ID}
	r := must.First(c.Routes.Create(t.Context(), p, spec))(t)
	requireRefusedAt(t, UnknownInstance, "instanceId")(c.Routes.Create(t.Context(), q, spec))
	spec.InstanceID = theirs.ID
	other := must.First(c.Routes.Create(t.Context(), q, spec))(t, "the same name and destination as in another project")
	assert.Equal(t, api.Tags{"owner": "q"}, other.Tags)
	requireRefused(t, NotFound)(c.Routes.Get(t.Context(), q, r.ID))
	requireCode(t, NotFound, c.Routes.Delete(t.Context(), q, r.ID))
	for _, destination := range []string{"10.0.0.1/24", "fd00::/64", "10.1.0.0"} {
		spec := api.RouteCreate{Name: "b", Destination: destination, InstanceID: in.ID}
		requireRefusedAt(t, InvalidRequest, "destination")(c.Routes.Create(t.Context(), p, spec))
	}
}

// All default networks have the CIDR of the process, whatever an earlier one had.
func TestDefaultNetworkFollowsTheInstanceCIDR(t *testing.T) {
	var cfg Config
	c, p := newCloud(t, func(used *Config) { cfg = *used })
	backend := must.First(c.Networks.Create(t.Context(), p, api.NetworkCreate{Name: "b", Cidr: "10.1.0.0/24"}))(t)
	cfg.InstanceCIDR = netip.MustParsePrefix("127.40.16.0/20")
	c = must.Do(New(cfg))(t)
	for id, want := range map[string]string{defaultNetworkID(p.ID): "127.40.16.0/20", backend.ID: "10.1.0.0/24"} {
		assert.Equal(t, want, must.Do(c.Networks.Get(t.Context(), p, id))(t).Cidr)
	}
}
