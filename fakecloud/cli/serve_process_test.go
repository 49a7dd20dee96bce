package cli_test

import (
	"fmt"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/fakecloud/api"
)

func TestServeControlPlaneOnly(t *testing.T) {
	p := startServe(t, t.TempDir(), "--load-balancer-mode", "none", "--profile", "instant")
	in, err := p.client.CreateInstance(t.Context(), api.InstanceCreate{})
	require.NoError(t, err)
	lb, err := p.client.CreateLoadBalancer(t.Context(), api.LoadBalancerCreate{
		Name: "web", Listeners: []api.Listener{{Protocol: "tcp", Port: 20080, TargetPort: 80}}, Targets: &[]api.Target{{InstanceID: in.ID}},
		HealthCheck: &api.HealthCheck{Protocol: api.HealthCheckTCP, Port: 80},
	})
	require.NoError(t, err)
	says := fmt.Sprintf("control plane only: nothing listens on %s (fakecloud runs with --load-balancer-mode none)", lb.Address)
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		now, err := p.client.GetLoadBalancer(t.Context(), lb.ID)
		if assert.NoError(c, err) {
			assert.Equal(c, api.LoadBalancerActive, now.State)
			assert.Equal(c, &says, now.StateReason)
		}
		in, err := p.client.GetInstance(t.Context(), in.ID)
		if assert.NoError(c, err) {
			assert.Equal(c, api.InstanceRunning, in.State)
		}
	}, testTimeout, 2*time.Millisecond)
	out, _, code := p.run(t, "load-balancers", "list")
	assert.Zero(t, code)
	assert.Contains(t, out, says)
	reason := "nothing is checked: fakecloud runs with --load-balancer-mode none"
	require.EventuallyWithT(t, func(c *assert.CollectT) { // The balancer gets the instance a little later.
		health, err := p.client.LoadBalancerHealth(t.Context(), lb.ID)
		if assert.NoError(c, err) {
			assert.Equal(c, []api.TargetHealth{{InstanceID: in.ID, Health: api.TargetUnknown, Reason: &reason, History: []api.HealthChange{}}}, health.Targets)
		}
	}, testTimeout, 2*time.Millisecond)
	stats, err := p.client.LoadBalancerStats(t.Context(), lb.ID)
	require.NoError(t, err)
	require.Len(t, stats.Listeners, 1)
	assert.Zero(t, stats.Listeners[0].Connections)
	// Nothing listens there, so the test can.
	l, err := net.Listen("tcp4", net.JoinHostPort(lb.Address, "20080"))
	require.NoError(t, err)
	require.NoError(t, l.Close())
}
