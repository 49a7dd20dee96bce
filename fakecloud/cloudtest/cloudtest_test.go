package cloudtest_test

import (
	"context"
	"net"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
	"github.com/ccmlab/ccmlab/fakecloud/cloudtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestManyCloudsRunBesideEachOther(t *testing.T) {
	seen := map[string]bool{}
	for range 20 {
		c := cloudtest.Start(t)
		assert.False(t, seen[c.URL], c.URL)
		seen[c.URL] = true
		made, err := c.CreateInstance(t.Context(), api.InstanceCreate{Name: "node-1", Zone: "nebula-1a"})
		require.NoError(t, err)
		in := c.AwaitInstance(made.ID, api.InstanceRunning)
		assert.False(t, seen[in.Addresses[0].IP], in.Addresses[0].IP)
		seen[in.Addresses[0].IP] = true
	}
}

func TestNothingIsLeftAtTheEnd(t *testing.T) {
	var url, balancer string
	t.Run("inner", func(t *testing.T) {
		c := cloudtest.Start(t)
		lb, err := c.CreateLoadBalancer(t.Context(), api.LoadBalancerCreate{
			Name: "web", Listeners: []api.Listener{{Protocol: api.ProtocolTCP, Port: 8080, TargetPort: 30080}},
		})
		require.NoError(t, err)
		lb = c.AwaitLoadBalancer(lb.ID, api.LoadBalancerActive)
		url, balancer = c.URL, net.JoinHostPort(lb.Address, "8080")
		// It has no targets: it accepts and resets, which may be seen in either call.
		if conn, err := net.Dial("tcp", balancer); err == nil {
			require.NoError(t, conn.Close())
		} else {
			require.ErrorIs(t, err, syscall.ECONNRESET)
		}
	})
	for _, address := range []string{strings.TrimPrefix(url, "http://"), balancer} {
		_, err := net.Dial("tcp", address)
		require.ErrorIs(t, err, syscall.ECONNREFUSED, address)
	}
}

func TestZonesAndRateLimit(t *testing.T) {
	c := cloudtest.Start(t, cloudtest.Zones("here"), cloudtest.RateLimit(1, 1))
	other := c.ClientAs("other", api.RoleViewer)
	zones, err := other.ListZones(t.Context())
	require.NoError(t, err)
	require.Len(t, zones, 1)
	assert.Equal(t, "here", zones[0].Name)
	_, err = other.ListZones(client.OneAttempt(t.Context()))
	assert.True(t, client.HasCode(err, api.RateLimited), "%v", err)
}

func TestAwaitSeesAChangeOfAnotherCaller(t *testing.T) {
	c := cloudtest.Start(t, cloudtest.VirtualClock(), cloudtest.Profile("fast"))
	made, err := c.CreateInstance(t.Context(), api.InstanceCreate{Name: "node-1", Zone: "nebula-1a"})
	require.NoError(t, err)
	reads := 0
	cloudtest.Await(c, "node-1 to run", func(ctx context.Context) (*api.Instance, error) {
		reads++
		if reads == 1 { // What follows happens between the first read and the watch.
			_, err := c.AdvanceClock(ctx, 1e9)
			require.NoError(t, err)
			return made, nil
		}
		return c.GetInstance(ctx, made.ID)
	}, func(in *api.Instance) bool { return in.State == api.InstanceRunning })
	assert.Equal(t, 2, reads)
}
