package cloud

import (
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/internal/must"
	"github.com/ccmlab/ccmlab/fakecloud/store"
)

// with6 gives a cloud a pool of IPv6 addresses.
func with6(pool string) func(*Config) {
	return func(cfg *Config) { cfg.LoadBalancerCIDR6 = netip.MustParsePrefix(pool) }
}

var bothFamilies = []api.IPFamily{api.IPv4, api.IPv6}

func createBoth(t *testing.T, c *Cloud, p Project, name string) (LoadBalancer, error) {
	t.Helper()
	lb, _, err := c.CreateLoadBalancer(t.Context(), p, api.LoadBalancerCreate{
		Name: name, IPFamilies: bothFamilies, Listeners: oneListener,
	})
	return lb, err
}

func TestIPv6PoolsThatCannotWork(t *testing.T) {
	for pool, says := range map[string]string{
		"127.0.0.0/8": "IPv6 unicast", "::ffff:10.0.0.0/120": "IPv6 unicast", "ff02::/16": "IPv6 unicast",
		"::/128":    "IPv6 unicast",
		"fe80::/64": "link-local", "fd00::1/64": "did you mean fd00::/64?",
	} {
		require.ErrorContains(t, checkPool6(netip.MustParsePrefix(pool)), says, pool)
	}
	for _, pool := range []string{"::1/128", "fd00::/127", "fd00::/64", "fd00::/8", "2001:db8::ff00/120"} {
		require.NoError(t, checkPool6(netip.MustParsePrefix(pool)), pool)
	}
}

// Whatever is taken and given up, and whatever there is outside of the pool, the
// lowest free address is the one that a search from the start would find.
func TestTheLowestFreeIPv6AddressIsGiven(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		pool := netip.MustParsePrefix(
			rapid.SampledFrom([]string{
				"fd00::/64", "fd00::/121", "fd00::ff8/125", "fd00::4/126", "fd00::10/127", "::1/128", "fc00::/7",
				"fd00::7:0:0/96", "2001:db8::ff00/120",
			}).Draw(t, "pool"),
		)
		set := newUsedAddresses(trackedPrefix(pool))
		taken := map[netip.Addr]bool{}
		lowest := func() netip.Addr {
			a := pool.Addr()
			for pool.Bits() < 127 && a == pool.Addr() || taken[a] {
				a = a.Next()
			}
			return a
		}
		for range rapid.IntRange(1, 200).Draw(t, "changes") {
			if rapid.IntRange(0, 2).Draw(t, "release") == 0 {
				a := withAddressNumber(pool.Addr(), addressNumber(pool.Addr())+uint32(rapid.IntRange(0, 20).
					Draw(t, "host")))
				set.markFree(new(store.Tx), a)
				delete(taken, a)
				// Another pool's.
				set.markFree(new(store.Tx), withAddressNumber(netip.MustParseAddr("fd01::"), addressNumber(a)))
				continue
			}
			want := lowest()
			got, err := set.takeLowestFree(new(store.Tx), pool)
			if !pool.Contains(want) {
				requireCode(t, AddressPoolExhausted, err)
				continue
			}
			require.NoError(t, err)
			require.Equal(t, want, got)
			taken[got] = true
		}
	})
}

func TestBalancersWithBothFamilies(t *testing.T) {
	plane := newFakePlane()
	c, p := newCloud(t, func(cfg *Config) { with6("fd00::/126")(cfg); cfg.DataPlane = plane })
	lb := must.Do(createBoth(t, c, p, "web"))(t)
	assert.Equal(t, "fd00::1", lb.IPv6Address)
	assert.Equal(t, bothFamilies, lb.IPFamilies)
	advance(t, c, time.Minute)
	assert.Equal(t, []string{lb.Address, lb.IPv6Address}, textsOf(plane.applied[lb.ID].Addresses))
	four, _ := newBalancer(t, c, p)
	assert.Empty(t, four.IPv6Address)
	assert.Equal(t, []api.IPFamily{api.IPv4}, four.IPFamilies)

	six, other := lb.IPv6Address, "fd00::2"
	reversed, only4 := []api.IPFamily{api.IPv6, api.IPv4}, []api.IPFamily{api.IPv4}
	same := updateBalancer(t, c, p, lb.ID, api.LoadBalancerUpdate{IPv6Address: &six, IPFamilies: &reversed})
	assert.Equal(t, api.LoadBalancerActive, same.State, "a change of nothing")
	for field, u := range map[string]api.LoadBalancerUpdate{
		"ipv6Address": {IPv6Address: &other}, "ipFamilies": {IPFamilies: &only4},
	} {
		requireRefusedAt(t, InvalidRequest, field)(c.UpdateLoadBalancer(t.Context(), p, lb.ID, u))
	}
	update := api.LoadBalancerUpdate{IPFamilies: &reversed}
	requireRefusedAt(t, InvalidRequest, "ipFamilies")(c.UpdateLoadBalancer(t.Context(), p, four.ID, update))

	for _, name := range []string{"two", "three"} {
		requireOK(t)(createBoth(t, c, p, name))
	}
	requireRefused(t, AddressPoolExhausted)(createBoth(t, c, p, "four"))
	requireOK(t)(c.DeleteLoadBalancer(t.Context(), p, lb.ID))
	requireRefused(t, AddressPoolExhausted)(createBoth(t, c, p, "four"))
	advance(t, c, time.Minute)
	again := must.Do(createBoth(t, c, p, "four"))(t)
	assert.Equal(t, lb.IPv6Address, again.IPv6Address, "its first one has given it up")
	assert.Equal(t, lb.Address, again.Address, "what failed has kept neither")
}

// What was given stays given, whichever pool the cloud is started with later.
func TestIPv6AddressesOutliveThePool(t *testing.T) {
	c, p := newCloud(t, with6("fd00::/120"))
	first := must.Do(createBoth(t, c, p, "first"))(t)
	restart := func(change func(*Config)) {
		cfg := c.cfg
		change(&cfg)
		c = must.Do(New(cfg))(t)
	}
	restart(with6("fd00::/64"))
	assert.Equal(t, "fd00::2", must.Do(createBoth(t, c, p, "second"))(t).IPv6Address)
	restart(with6("fd01::/64"))
	assert.Equal(t, "fd01::1", must.Do(createBoth(t, c, p, "third"))(t).IPv6Address)
	restart(func(cfg *Config) { cfg.LoadBalancerCIDR6 = netip.Prefix{} })
	_, err := createBoth(t, c, p, "fourth")
	requireCode(t, InvalidRequest, err)
	require.ErrorContains(t, err, "--load-balancer-cidr6")
	assert.Equal(t, first.IPv6Address, must.Do(c.GetLoadBalancer(t.Context(), p, first.ID))(t).IPv6Address)

	// Not even a mistake of ours gives one twice: the store has the last word.
	err = c.store.Write(t.Context(), func(tx *store.Tx) error {
		twice := first
		twice.ID, twice.Serial, twice.Name = "lb-x", 0, "x"
		twice.Address = "127.30.64.99"
		return insertResource(t.Context(), &changeTx{Tx: tx}, twice)
	})
	require.ErrorContains(t, err, "UNIQUE constraint failed: resources.address6")
}

func TestFamiliesThatNoBalancerHas(t *testing.T) {
	c, p := newCloud(t, with6("fd00::/64"))
	for _, wrong := range []struct {
		families []api.IPFamily
		field    string
	}{
		{[]api.IPFamily{api.IPv6}, "ipFamilies"}, {[]api.IPFamily{api.IPv4, "ipv5"}, "ipFamilies.1"},
		{[]api.IPFamily{api.IPv4, api.IPv4}, "ipFamilies.1"},
	} {
		requireRefusedAt(t, InvalidRequest, wrong.field)(c.CreateLoadBalancer(t.Context(), p, api.LoadBalancerCreate{
			Name: "web", IPFamilies: wrong.families,
			Listeners: oneListener,
		}))
	}
}

func TestSourceRangesOfBothFamilies(t *testing.T) {
	ranges := must.Do(checkRanges([]string{"10.0.0.0/8", "fd00::/8", "::1/128", "0.0.0.0/0", "::/0", "fd00::/8"}))(t)
	assert.Len(t, ranges, 5)
	for _, wrong := range []string{"fd00::1/8", "::ffff:10.0.0.0/104", "fe80::%eth0/64", "10.0.0.1/8", "fd00::", "x"} {
		_, err := checkRanges([]string{"fd00::/8", wrong})
		requireRefusedAt(t, InvalidRequest, "sourceRanges.1")(err)
	}
}
