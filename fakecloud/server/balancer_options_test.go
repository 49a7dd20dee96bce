package server_test

import (
	"cmp"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/fakecloud"
	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
	"github.com/ccmlab/ccmlab/fakecloud/internal/must"
)

func TestABalancerMayHaveNoListeners(t *testing.T) {
	r := newRig(t)
	lb := r.createBalancer(t, api.LoadBalancerCreate{Name: "web", Listeners: []api.Listener{}})
	made := r.awaitBalancer(t, lb.ID, api.LoadBalancerActive)
	assert.Equal(t, []api.Listener{}, made.Listeners, "they are an empty list, and not left out")
	assert.Equal(t, lb.Address, made.Address)
	assert.Empty(t, made.StateReason, "nothing is wrong with it")
	assert.Empty(t, must.Do(r.LoadBalancerStats(t.Context(), lb.ID))(t).Listeners)
}

func TestBalancerTypesLimitListeners(t *testing.T) {
	r := newRig(t)
	listeners := make([]api.Listener, 6)
	for i := range listeners {
		listeners[i] = api.Listener{Protocol: api.ProtocolTCP, Port: 1024 + i, TargetPort: 1}
	}
	at := "/v1/load-balancers/" + r.createBalancer(t, api.LoadBalancerCreate{Name: "web", Listeners: listeners}).ID
	r.refused(t, "PATCH", at, `{"type":"small"}`, api.QuotaExceeded, "listeners", "choose a larger type")
}

func TestHealthIsToldByListener(t *testing.T) {
	r, p := countingRig(t)
	in := r.runInstance(t, api.InstanceCreate{})
	check := &api.HealthCheck{Protocol: api.HealthCheckTCP, Port: 82}
	lb := r.createBalancer(t, api.LoadBalancerCreate{
		Name: "web", Targets: api.Targets{{InstanceID: in.ID}}, HealthCheck: check,
		Listeners: api.Listeners{
			{Protocol: api.ProtocolTCP, Port: 80, TargetPort: 80, HealthCheck: *check},
			{Protocol: api.ProtocolTCP, Port: 81, TargetPort: 80},
		},
	})
	assert.EqualValues(t, 2, lb.Listeners[0].HealthCheck.TimeoutSeconds, "with defaults")
	assert.Zero(t, lb.Listeners[1].HealthCheck)
	p.set(lb.ID, api.LoadBalancerStats{}, api.TargetHealth{
		InstanceID: in.ID, Health: api.TargetUnhealthy, Listeners: []api.ListenerHealth{
			{Protocol: api.ProtocolTCP, Port: 80, Health: api.TargetUnhealthy, Reason: "refused"},
			{Protocol: api.ProtocolTCP, Port: 81, Health: api.TargetHealthy},
		},
	})
	health := must.Do(r.LoadBalancerHealth(t.Context(), lb.ID))(t)
	require.Len(t, health.Targets, 1)
	assert.Equal(t, []api.ListenerHealth{
		{Protocol: api.ProtocolTCP, Port: 80, Health: api.TargetUnhealthy, Reason: "refused"},
		{Protocol: api.ProtocolTCP, Port: 81, Health: api.TargetHealthy},
	}, health.Targets[0].Listeners)
	r.refused(t, "PATCH", "/v1/load-balancers/"+lb.ID, `{"listeners":[{"protocol":"tcp","port":1,"targetPort":1,`+
		`"healthCheck":{"protocol":"tcp","port":1,"expectedCodes":"200"}}]}`,
		api.InvalidRequest, "listeners.0.healthCheck.expectedCodes", "")
}

func TestBothFamiliesOverTheAPI(t *testing.T) {
	r := newRigWith(t, func(cfg *fakecloud.Config) {
		cfg.Cloud.LoadBalancerCIDR6, cfg.DataPlane = netip.MustParsePrefix("::1/128"), newCountingPlane()
	})
	ctx, both := t.Context(), api.IPFamilies{api.IPv4, api.IPv6}
	ranges := api.SourceRanges{"fd00::/8", "10.0.0.0/8"}
	body := api.LoadBalancerCreate{Name: "web", Listeners: oneListener, IPFamilies: both, SourceRanges: ranges}
	lb := r.createBalancer(t, body)
	assert.Equal(t, both, lb.IPFamilies)
	assert.Equal(t, "::1", lb.IPv6Address)
	assert.Equal(t, ranges, lb.SourceRanges)
	plain := r.createBalancer(t, api.LoadBalancerCreate{Name: "plain", Listeners: oneListener})
	assert.Equal(t, api.IPFamilies{api.IPv4}, plain.IPFamilies)
	assert.Empty(t, plain.IPv6Address)
	same := api.LoadBalancerUpdate{IPFamilies: &both, IPv6Address: new("0:0::1")}
	requireOK(t, "the present one is no change, however it is written")(r.UpdateLoadBalancer(ctx, lb.ID, same))
	update := api.LoadBalancerUpdate{IPv6Address: new("::2")}
	requireCode(t, api.InvalidRequest)(r.UpdateLoadBalancer(ctx, lb.ID, update))
	var told []string
	require.NoError(t, r.Watch(ctx, client.FromOldest, false, func(e api.Event) error {
		if e.ID == lb.ID {
			require.NotNil(t, e.LoadBalancer)
			told = append(told, cmp.Or(e.LoadBalancer.IPv6Address, "none"))
		}
		return nil
	}))
	assert.NotEmpty(t, told)
	assert.NotContains(t, told, "none", "its events show it")
}
