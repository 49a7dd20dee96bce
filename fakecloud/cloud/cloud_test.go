package cloud

import (
	"context"
	"net/netip"
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
	cfg := Config{Store: s, DataPlane: newFakePlane(), Profile: Profiles[1], Clock: clockwork.NewFakeClockAt(epoch)}
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

func TestTwoTokensMustDiffer(t *testing.T) {
	c, p := newCloud(t, nil)
	const secret = "sixteen characters"
	require.NoError(t, c.EnsureToken(t.Context(), "a", p, secret))
	require.NoError(t, c.EnsureToken(t.Context(), "a", p, secret), "again is fine")
	requireCode(t, InvalidRequest, c.EnsureToken(t.Context(), "b", p, secret))
	requireCode(t, InvalidRequest, c.EnsureToken(t.Context(), "b", p, "short"))
	who, err := c.Authenticate(t.Context(), secret)
	require.NoError(t, err)
	assert.Equal(t, Principal{"a", p}, who)
}

// Run alone drives everything: nothing but the clock moves.
func TestRunSleepsUntilSomethingIsDue(t *testing.T) {
	clock := clockwork.NewFakeClockAt(epoch)
	c, p := newCloud(t, func(cfg *Config) { cfg.Clock = clock })
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		assert.NoError(t, <-done)
	})
	<-c.Ready()
	in, err := c.CreateInstance(t.Context(), p, InstanceSpec{})
	require.NoError(t, err)
	state := func() InstanceState {
		now, err := c.GetInstance(t.Context(), p, in.ID)
		require.NoError(t, err)
		return now.State
	}
	require.Equal(t, InstancePending, state())
	require.Eventually(t, func() bool {
		clock.Advance(10 * time.Millisecond)
		return state() == InstanceRunning
	}, 10*time.Second, time.Millisecond)
	assert.GreaterOrEqual(t, clock.Since(in.CreatedAt), 300*time.Millisecond)
}
