package cloud

import (
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/internal/must"
)

func prefixes(texts ...string) (all []netip.Prefix) {
	for _, p := range texts {
		all = append(all, netip.MustParsePrefix(p))
	}
	return all
}

func TestTargetRanges(t *testing.T) {
	for name, test := range map[string]struct {
		ranges          []netip.Prefix
		allowed, denied []string
	}{
		"by default": {
			allowed: []string{"127.30.16.9", "127.30.31.1"},
			denied:  []string{"127.0.0.1", "127.0.0.53", "127.30.0.1", "127.30.64.1", "169.254.169.254", "192.168.1.1", "10.0.0.1"},
		},
		"everything": {
			ranges:  prefixes("0.0.0.0/0"),
			allowed: []string{"192.168.1.1", "127.1.0.1", "10.0.0.1"},
			denied:  []string{"127.0.0.1", "169.254.169.254"},
		},
		"by name": {
			ranges:  prefixes("127.0.0.1/32", "169.254.0.0/16", "192.168.1.4/32"),
			allowed: []string{"127.0.0.1", "169.254.169.254", "192.168.1.4"},
			denied:  []string{"127.0.0.2", "192.168.1.5"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			c, p := newCloud(t, func(cfg *Config) { cfg.TargetRanges = test.ranges })
			for _, a := range test.allowed {
				newInstance(t, c, p, api.InstanceCreate{Address: a})
			}
			for _, a := range test.denied {
				_, _, err := c.CreateInstance(t.Context(), p, api.InstanceCreate{Address: a})
				requireRefusedAt(t, InvalidRequest, "address")(err)
				assert.ErrorContains(t, err, "127.30.16.0/20")
				assert.ErrorContains(t, err, "--target-range "+a+"/32")
			}
		})
	}
	for _, r := range prefixes("fd00::/64", "10.0.0.1/24") {
		assert.ErrorContains(t, checkTargetRanges([]netip.Prefix{r}), "target range")
	}
}

// A network is made by any editor, and so says nothing of what a balancer may send to.
func TestNetworksAreNoTargetRanges(t *testing.T) {
	c, p := newCloud(t, nil)
	for name, cidr := range map[string]string{"lan": "192.168.1.0/24", "metadata": "169.254.169.248/29", "host": "127.0.0.0/24"} {
		n := must.First(c.Networks.Create(t.Context(), p, api.NetworkCreate{Name: name, Cidr: cidr}))(t)
		in := newInstance(t, c, p, api.InstanceCreate{NetworkID: n.ID})
		assert.True(t, n.prefix().Contains(in.Address), "it is there, but sent nothing")
		_, _, err := c.CreateLoadBalancer(t.Context(), p, api.LoadBalancerCreate{
			Name: "web", Listeners: oneListener, Targets: toTargets(in.ID),
		})
		requireRefusedAt(t, InvalidRequest, "targets.0.instanceId")(err)
		assert.ErrorContains(t, err, "--target-range "+in.Address.String()+"/32")
	}
}

func TestStoredTargetsOutsideOfTheRangesAreSentNothing(t *testing.T) {
	plane := newFakePlane()
	c, p := newCloud(t, func(cfg *Config) { cfg.DataPlane, cfg.TargetRanges = plane, prefixes("127.0.0.1/32") })
	host, node := newInstance(t, c, p, api.InstanceCreate{Address: "127.0.0.1"}), newInstance(t, c, p, api.InstanceCreate{})
	lb := createBalancer(t, c, p, api.LoadBalancerCreate{
		Name: "web", Listeners: oneListener, Targets: toTargets(host.ID, node.ID),
	})
	advance(t, c, time.Minute)
	require.Len(t, plane.applied[lb.ID].Backends, 2)

	c.cfg.TargetRanges = nil // As after a start without them.
	requireOK(t)(c.RebootInstance(t.Context(), p, node.ID))
	advance(t, c, time.Minute)
	backends := plane.applied[lb.ID].Backends
	require.Len(t, backends, 1)
	assert.Equal(t, node.ID, backends[0].Target)
}
