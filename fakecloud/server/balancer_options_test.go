package server_test

import (
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/fakecloud"
	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
)

func TestABalancerMayHaveNoListeners(t *testing.T) {
	r, ctx := newRig(t), t.Context()
	lb := r.createBalancer(t, api.LoadBalancerCreate{Name: "web", Listeners: []api.Listener{}})
	made := r.awaitBalancer(t, lb.ID, api.LoadBalancerActive)
	assert.Empty(t, made.Listeners)
	assert.NotNil(t, made.Listeners, "they are an empty list, and not left out")
	assert.Equal(t, lb.Address, made.Address)
	assert.Nil(t, made.StateReason, "nothing is wrong with it")
	port := freePort(t, "127.0.0.1")
	requireOK(t)(r.UpdateLoadBalancer(ctx, lb.ID, api.LoadBalancerUpdate{
		Listeners: &api.Listeners{{Protocol: api.ProtocolTCP, Port: port, TargetPort: 1}},
	}))
	r.awaitCondition(t, lb.ID, "it has no targets")
	at := net.JoinHostPort(lb.Address, strconv.Itoa(port))
	// It accepts and resets, which may be seen in either call.
	if c, err := net.Dial("tcp4", at); err == nil {
		require.NoError(t, c.Close())
	} else {
		require.ErrorIs(t, err, syscall.ECONNRESET)
	}
	requireOK(t)(r.UpdateLoadBalancer(ctx, lb.ID, api.LoadBalancerUpdate{Listeners: &api.Listeners{}}))
	last := r.awaitCondition(t, lb.ID, "")
	assert.Equal(t, lb.Address, last.Address, "it keeps its address")
	_, err := net.Dial("tcp4", at)
	require.ErrorIs(t, err, syscall.ECONNREFUSED)
	assert.Empty(t, must(r.LoadBalancerStats(ctx, lb.ID))(t).Listeners)
}

func TestAProtectedBalancerIsNotDeleted(t *testing.T) {
	r, ctx := newRig(t), t.Context()
	lb := r.createBalancer(t, api.LoadBalancerCreate{Name: "web", Listeners: oneListener, DeletionProtection: new(true)})
	assert.True(t, lb.DeletionProtection)
	resp, p := r.call(t, "DELETE", "/v1/load-balancers/"+lb.ID, "")
	assert.Equal(t, http.StatusConflict, resp.StatusCode)
	assert.Equal(t, api.Protected, p.Code)
	assert.Contains(t, p.Detail, "fakecloud load-balancers update web --deletion-protection=false")
	changed := must(r.UpdateLoadBalancer(ctx, lb.ID, api.LoadBalancerUpdate{DeletionProtection: new(false)}))(t)
	assert.False(t, changed.DeletionProtection)
	requireOK(t)(r.DeleteLoadBalancer(ctx, lb.ID))
}

func TestBalancerTypes(t *testing.T) {
	r, ctx := newRig(t), t.Context()
	types := must(r.ListLoadBalancerTypes(ctx))(t)
	require.Len(t, types, 3)
	assert.Equal(t, api.LoadBalancerSize{
		Name: api.LoadBalancerSmall, MaxListeners: 5, MaxTargets: 25, MaxConnections: 10_000,
	}, types[0])
	listeners := make([]api.Listener, 6)
	for i := range listeners {
		listeners[i] = api.Listener{Protocol: api.ProtocolTCP, Port: freePort(t, "127.0.0.1"), TargetPort: 1}
	}
	body := api.LoadBalancerCreate{Name: "web", Type: new(api.LoadBalancerSmall), Listeners: listeners}
	requireCode(t, api.QuotaExceeded)(r.CreateLoadBalancer(ctx, body))
	body.Type = nil
	lb := r.createBalancer(t, body)
	assert.Equal(t, api.LoadBalancerUnlimited, lb.Type)
	_, p := r.call(t, "PATCH", "/v1/load-balancers/"+lb.ID, `{"type":"small"}`)
	assert.Equal(t, api.QuotaExceeded, p.Code)
	assert.Equal(t, "are more than the 5 of type small", fields(p)["listeners"])
	large := must(r.UpdateLoadBalancer(ctx, lb.ID, api.LoadBalancerUpdate{Type: new(api.LoadBalancerLarge)}))(t)
	assert.Equal(t, api.LoadBalancerLarge, large.Type)
}

// serveTCP answers each connection to a port of 127.0.0.1, and then ends it.
func serveTCP(t *testing.T, serve func(net.Conn)) (port int) {
	t.Helper()
	l := must(net.Listen("tcp4", "127.0.0.1:0"))(t)
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer func() { _ = c.Close() }()
				serve(c)
			}()
		}
	}()
	return l.Addr().(*net.TCPAddr).Port
}

// awaitCondition waits until an active balancer's reason begins so; "" is none.
func (r *rig) awaitCondition(t *testing.T, id, want string) api.LoadBalancer {
	t.Helper()
	var lb *api.LoadBalancer
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		var err error
		lb, err = r.GetLoadBalancer(t.Context(), id)
		if assert.NoError(c, err) && assert.Equal(c, api.LoadBalancerActive, lb.State) {
			begins, _, _ := strings.Cut(valueOrZero(lb.StateReason, ""), ":")
			assert.Equal(c, want, begins)
		}
	}, patience, 2*time.Millisecond)
	return *lb
}

func TestHealthIsToldByListener(t *testing.T) {
	r, ctx := newRig(t), t.Context()
	in := r.runInstance(t, api.InstanceCreate{Address: new("127.0.0.1")})
	open := serveTCP(t, func(net.Conn) {})
	own := api.HealthCheck{Protocol: api.HealthCheckTCP, Port: freePort(t, "127.0.0.1"), IntervalSeconds: 300}
	listeners := api.Listeners{
		{Protocol: api.ProtocolTCP, Port: freePort(t, "127.0.0.1"), TargetPort: open, HealthCheck: &own},
		{Protocol: api.ProtocolTCP, Port: freePort(t, "127.0.0.1"), TargetPort: open},
	}
	lb := r.createBalancer(t, api.LoadBalancerCreate{
		Name: "web", Listeners: listeners, Targets: &api.Targets{{InstanceID: in.ID}},
		HealthCheck: &api.HealthCheck{Protocol: api.HealthCheckTCP, Port: open, IntervalSeconds: 300},
	})
	require.NotNil(t, lb.Listeners[0].HealthCheck)
	assert.Equal(t, 2, lb.Listeners[0].HealthCheck.TimeoutSeconds, "with defaults")
	assert.Nil(t, lb.Listeners[1].HealthCheck)
	reason := fmt.Sprintf("connection refused by 127.0.0.1:%d", own.Port)
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		health, err := r.LoadBalancerHealth(ctx, lb.ID)
		if assert.NoError(c, err) && assert.Len(c, health.Targets, 1) {
			assert.Equal(c, api.TargetUnhealthy, health.Targets[0].Health)
			assert.Equal(c, &[]api.ListenerHealth{
				{Protocol: api.ProtocolTCP, Port: listeners[0].Port, Health: api.TargetUnhealthy, Reason: &reason},
				{Protocol: api.ProtocolTCP, Port: listeners[1].Port, Health: api.TargetHealthy},
			}, health.Targets[0].Listeners)
		}
	}, patience, 2*time.Millisecond)
	r.awaitCondition(t, lb.ID, fmt.Sprintf("no target is healthy for tcp port %d", listeners[0].Port))
	_, p := r.call(t, "PATCH", "/v1/load-balancers/"+lb.ID, `{"listeners":[{"protocol":"tcp","port":1,"targetPort":1,`+
		`"healthCheck":{"protocol":"tcp","port":1,"expectedCodes":"200"}}]}`)
	assert.Contains(t, fields(p), "listeners.0.healthCheck.expectedCodes")
}

func newRig6(t *testing.T) *rig {
	t.Helper()
	return newRigWith(t, func(cfg *fakecloud.Config) { cfg.Cloud.LoadBalancerCIDR6 = netip.MustParsePrefix("::1/128") })
}

func TestBothFamiliesOverTheAPI(t *testing.T) {
	r, ctx := newRig6(t), t.Context()
	both := api.IPFamilies{api.IPv4, api.IPv6}
	body := api.LoadBalancerCreate{
		Name: "web", Listeners: oneListener, IPFamilies: &both,
		SourceRanges: &api.SourceRanges{"fd00::/8", "10.0.0.0/8"},
	}
	body.Listeners = []api.Listener{{Protocol: api.ProtocolTCP, Port: freePort(t, "127.0.0.1"), TargetPort: 1}}
	lb := r.createBalancer(t, body)
	assert.Equal(t, both, lb.IPFamilies)
	assert.Equal(t, new("::1"), lb.IPv6Address)
	assert.Equal(t, *body.SourceRanges, lb.SourceRanges)
	plain := r.createBalancer(t, api.LoadBalancerCreate{Name: "plain", Listeners: oneListener})
	assert.Equal(t, api.IPFamilies{api.IPv4}, plain.IPFamilies)
	assert.Nil(t, plain.IPv6Address)
	same, err := r.UpdateLoadBalancer(ctx, lb.ID, api.LoadBalancerUpdate{IPFamilies: &both, IPv6Address: new("0:0::1")})
	require.NoError(t, err, "the present one is no change, however it is written")
	assert.LessOrEqual(t, same.Version, lb.Version+1, "it may have been built meanwhile")
	update := api.LoadBalancerUpdate{IPv6Address: new("::2")}
	requireCode(t, api.InvalidRequest)(r.UpdateLoadBalancer(ctx, lb.ID, update))
	var told []string
	require.NoError(t, r.Watch(ctx, client.FromOldest, false, func(e api.Event) error {
		if e.ID == lb.ID {
			require.NotNil(t, e.LoadBalancer)
			told = append(told, valueOrZero(e.LoadBalancer.IPv6Address, "none"))
		}
		return nil
	}))
	assert.NotEmpty(t, told)
	assert.NotContains(t, told, "none", "its events show it")
}
