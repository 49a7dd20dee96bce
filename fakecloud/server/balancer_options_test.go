package server_test

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/fakecloud"
	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
)

func TestOptionsThatBalancersCannotHave(t *testing.T) {
	r := newRig(t)
	a := r.reserve(t, "one")
	at := "/v1/load-balancers"
	made, _ := r.call(
		t, "POST", at, `{"name":"old","listeners":[{"protocol":"tcp","port":1,"targetPort":1}],"addressId":"`+a.ID+`"}`,
	)
	require.Equal(t, 201, made.StatusCode, made.Body)
	for _, tc := range []struct{ listener, rest, field string }{
		{``, `,"scheme":"private"`, "scheme"},
		{``, `,"algorithm":"random"`, "algorithm"},
		{``, `,"idleTimeoutSeconds":86401`, "idleTimeoutSeconds"},
		{``, `,"idleTimeoutSeconds":1.5`, "idleTimeoutSeconds"},
		{``, `,"drainSeconds":-1`, "drainSeconds"},
		{`,"connectionLimit":-1`, ``, "listeners.0.connectionLimit"},
		{`,"connectionLimit":1000001`, ``, "listeners.0.connectionLimit"},
		{``, `,"healthCheck":{"protocol":"http","port":1,"expectedCodes":"199"}`, "healthCheck.expectedCodes"},
		{``, `,"healthCheck":{"protocol":"http","port":1,"expectedCodes":"301-300"}`, "healthCheck.expectedCodes"},
		{``, `,"healthCheck":{"protocol":"tcp","port":1,"expectedCodes":"200"}`, "healthCheck.expectedCodes"},
	} {
		fresh := `{"name":"new","listeners":[{"protocol":"tcp","port":1,"targetPort":1` + tc.listener + `}]` + tc.rest +
			`}`
		change := `{"listeners":[{"protocol":"tcp","port":1,"targetPort":1` + tc.listener + `}]` + tc.rest + `}`
		for _, call := range [][3]string{{"POST", at, fresh}, {"PATCH", made.Header.Get("Location"), change}} {
			resp, p := r.call(t, call[0], call[1], call[2])
			assert.Equal(t, 400, resp.StatusCode, call)
			assert.Equal(t, api.InvalidRequest, p.Code)
			assert.Contains(t, fields(p), tc.field, "%v: %s", call, p.Detail)
		}
	}
	_, p := r.call(
		t, "PATCH", made.Header.Get("Location"),
		`{"scheme":"internal","drainSeconds":5,"listeners":[{"protocol":"udp","port":1,"targetPort":1}]}`,
	)
	assert.Equal(t, api.InvalidRequest, p.Code)
	assert.Len(t, fields(p), 2, "all that is wrong is told at once: %s", p.Detail)
	assert.Contains(t, fields(p), "scheme")
	assert.Contains(t, fields(p), "drainSeconds")
}

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

func TestOptionsAreInForce(t *testing.T) {
	r, ctx := newRig(t), t.Context()
	target := serveTCP(t, func(c net.Conn) {
		_, _ = io.WriteString(c, "x")
		_, _ = io.Copy(c, c)
	})
	in := r.runInstance(t, api.InstanceCreate{Address: new("127.0.0.1")})
	listeners := []api.Listener{
		{Protocol: "tcp", Port: freePort(t, "127.0.0.1"), TargetPort: target, ConnectionLimit: 1},
	}
	lb := r.createBalancer(t, api.LoadBalancerCreate{
		Name: "web", Listeners: listeners, Targets: &[]api.Target{{InstanceID: in.ID}}, DrainSeconds: new(1),
	})
	r.awaitBalancer(t, lb.ID, api.LoadBalancerActive)
	open := func() net.Conn {
		c := must(net.DialTimeout("tcp4", fmt.Sprintf("%s:%d", lb.Address, listeners[0].Port), patience))(t)
		t.Cleanup(func() { _ = c.Close() })
		require.NoError(t, c.SetDeadline(time.Now().Add(patience)))
		return c
	}
	first := open()
	requireOK(t)(io.ReadFull(first, make([]byte, 1)))
	second, err := net.DialTimeout("tcp4", fmt.Sprintf("%s:%d", lb.Address, listeners[0].Port), patience)
	if err == nil { // The reset may come while it still connects.
		require.NoError(t, second.SetDeadline(time.Now().Add(patience)))
		_, err = second.Read(make([]byte, 1))
		_ = second.Close()
	}
	require.Error(t, err)
	stats := must(r.LoadBalancerStats(ctx, lb.ID))(t)
	assert.EqualValues(t, 1, stats.Listeners[0].RefusedConnections)

	requireOK(t)(r.StopInstance(ctx, in.ID))
	_, err = first.Read(make([]byte, 1))
	require.Error(t, err, "a connection to an instance that does not run drains")
	require.False(t, isTimeout(err), err)
}

func isTimeout(err error) bool {
	e, ok := err.(net.Error) //nolint:errorlint // It comes straight from the connection.
	return ok && e.Timeout()
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

func TestABalancerWithoutHealthyTargetSaysSo(t *testing.T) {
	r, ctx := newRig(t), t.Context()
	in := r.runInstance(t, api.InstanceCreate{})
	target := must(net.Listen("tcp4", in.Addresses[0].IP+":0"))(t)
	var status atomic.Int64
	status.Store(http.StatusOK)
	web := &http.Server{
		Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(int(status.Load()))
		}),
		ReadHeaderTimeout: patience,
	}
	go func() { _ = web.Serve(target) }()
	t.Cleanup(func() { _ = web.Close() })
	at := target.Addr().(*net.TCPAddr).Port
	lb := r.createBalancer(t, api.LoadBalancerCreate{
		Name: "web", Listeners: []api.Listener{{Protocol: "tcp", Port: freePort(t, "127.0.0.1"), TargetPort: at}},
		Targets: &[]api.Target{{InstanceID: in.ID}},
		HealthCheck: &api.HealthCheck{
			Protocol: api.HealthCheckHTTP, Port: at, IntervalSeconds: 1, TimeoutSeconds: 1, HealthyThreshold: 1,
			UnhealthyThreshold: 1,
		},
	})
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		health, err := r.LoadBalancerHealth(ctx, lb.ID)
		if assert.NoError(c, err) && assert.Len(c, health.Targets, 1) {
			assert.Equal(c, api.TargetHealthy, health.Targets[0].Health)
		}
	}, patience, 2*time.Millisecond)
	assert.Nil(t, r.awaitBalancer(t, lb.ID, api.LoadBalancerActive).StateReason)
	status.Store(http.StatusServiceUnavailable)
	sick := r.awaitCondition(t, lb.ID, "no target is healthy")
	status.Store(http.StatusOK)
	assert.Greater(t, r.awaitCondition(t, lb.ID, "").Version, sick.Version)
	requireOK(t)(r.StopInstance(ctx, in.ID))
	r.awaitCondition(t, lb.ID, "no target runs")
	requireOK(t)(r.UpdateLoadBalancer(ctx, lb.ID, api.LoadBalancerUpdate{Targets: &[]api.Target{}}))
	last := r.awaitCondition(t, lb.ID, "it has no targets")

	var told []string
	require.NoError(t, r.Watch(ctx, client.FromOldest, false, func(ev api.Event) error {
		if ev.ID == lb.ID && valueOrZero(ev.From, "") == "active" && valueOrZero(ev.To, "") == "active" {
			assert.Equal(t, api.EventUpdated, ev.Type)
			begins, _, _ := strings.Cut(valueOrZero(ev.Reason, ""), ":")
			assert.Equal(t, ev.Reason, ev.LoadBalancer.StateReason)
			told = append(told, begins)
		}
		return nil
	}))
	assert.Subset(t, told, []string{"no target is healthy", "", "no target runs"})
	assert.Equal(t, last, r.awaitBalancer(t, lb.ID, api.LoadBalancerActive), "then all is quiet")
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

func TestFamiliesThatCannotBeHad(t *testing.T) {
	const create = `{"name":"web","listeners":[{"protocol":"tcp","port":8080,"targetPort":1}],"ipFamilies":`
	r := newRig(t)
	for given, says := range map[string]string{
		`["ipv4","ipv6"]}`: "cannot hold ipv6: the cloud has no --load-balancer-cidr6",
		`["ipv6"]}`:        "must hold ipv4",
		`[]}`:              "minimum number of items is 1",
		`["ipv4","ipv4"]}`: "duplicate",
	} {
		_, p := r.call(t, "POST", "/v1/load-balancers", create+given)
		assert.Equal(t, api.InvalidRequest, p.Code, given)
		assert.Contains(t, fields(p)["ipFamilies"], says, given)
	}
	_, p := r.call(t, "POST", "/v1/load-balancers", create+`["ipv5"]}`)
	assert.Equal(t, "must be ipv4 or ipv6", fields(p)["ipFamilies.0"])
	_, p = r.call(t, "POST", "/v1/load-balancers", create+`["ipv4"],"sourceRanges":["fd00::1/8"]}`)
	assert.Equal(t, "has host bits set: did you mean fd00::/8?", fields(p)["sourceRanges.0"])
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

func TestBothFamiliesLeadToTheTargets(t *testing.T) {
	free, err := net.Listen("tcp6", "[::1]:0")
	if err != nil {
		t.Skipf("this machine has no IPv6 on loopback: %v", err)
	}
	port := free.Addr().(*net.TCPAddr).Port
	require.NoError(t, free.Close())
	r, ctx := newRig6(t), t.Context()
	target := serveTCP(t, func(c net.Conn) { _, _ = io.WriteString(c, "hello") })
	in := r.runInstance(t, api.InstanceCreate{Address: new("127.0.0.1")})
	lb := r.createBalancer(t, api.LoadBalancerCreate{
		Name: "web", IPFamilies: &api.IPFamilies{api.IPv4, api.IPv6}, Targets: &api.Targets{{InstanceID: in.ID}},
		Listeners: []api.Listener{{Protocol: api.ProtocolTCP, Port: port, TargetPort: target}},
	})
	r.awaitBalancer(t, lb.ID, api.LoadBalancerActive)
	for _, address := range []string{lb.Address, *lb.IPv6Address} {
		c := must(net.DialTimeout("tcp", net.JoinHostPort(address, strconv.Itoa(port)), patience))(t)
		heard := must(io.ReadAll(c))(t)
		assert.Equal(t, "hello", string(heard))
		require.NoError(t, c.Close())
	}
	stats := must(r.LoadBalancerStats(ctx, lb.ID))(t)
	require.Len(t, stats.Listeners, 1)
	assert.EqualValues(t, 2, stats.Listeners[0].Connections, "both count as one listener's")
}
