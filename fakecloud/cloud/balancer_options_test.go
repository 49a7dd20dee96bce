package cloud

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/internal/must"
)

func TestExpectedCodes(t *testing.T) {
	for codes, want := range map[string][]int{
		"":                {200},
		"204":             {204},
		"200-202,301,599": {200, 201, 202, 301, 599},
	} {
		h := HealthCheck{Protocol: api.HealthCheckHTTP, ExpectedCodes: codes}
		var well []int
		for status := 100; status < 700; status++ {
			if ExpectsStatus(h, status) {
				well = append(well, status)
			}
		}
		assert.Equal(t, want, well, codes)
	}
	for _, codes := range []string{
		",", "200,", "20", "2000", "199", "600", "301-300", "200-", "-200", "200 ", "+20", "a",
	} {
		_, err := parseCodes(codes)
		require.Error(t, err, codes)
		assert.False(t, ExpectsStatus(HealthCheck{ExpectedCodes: codes}, 200))
	}
}

func TestAllThatIsWrongWithABalancerIsToldAtOnce(t *testing.T) {
	c, p := newCloud(t, nil)
	spec := api.LoadBalancerCreate{
		Name: "web", Scheme: "x", Algorithm: "x", DrainSeconds: -1, SourceRanges: []string{"x", "y"}, AddressID: "a",
		Address:     "b",
		Listeners:   []Listener{{Protocol: api.ProtocolTCP, Port: 1, TargetPort: 1, ConnectionLimit: -1, ProxyProtocol: "x"}, {}},
		HealthCheck: &HealthCheck{Protocol: api.HealthCheckTCP, ExpectedCodes: "200"}, Targets: toTargets("i-1", "i-2"),
	}
	fields := func(err error) (paths []string) {
		var refused *Error
		require.ErrorAs(t, err, &refused)
		for _, f := range refused.Fields {
			paths = append(paths, f.Path)
		}
		return paths
	}
	_, _, err := c.CreateLoadBalancer(t.Context(), p, spec)
	assert.ElementsMatch(t, []string{
		"address", "listeners.0.proxyProtocol", "listeners.0.connectionLimit", "listeners.1", "sourceRanges.0",
		"sourceRanges.1",
		"scheme", "algorithm", "drainSeconds", "healthCheck.expectedCodes", "healthCheck.port",
	}, fields(err))
	lb, in := newBalancer(t, c, p)
	_, _, err = c.CreateLoadBalancer(t.Context(), p, api.LoadBalancerCreate{
		Name: lb.Name, Listeners: lb.Listeners, AddressID: "a-none",
		Targets: append(toTargets("i-1", in.ID, in.ID, "i-2"), api.Target{IP: in.Address.String(), Weight: 257}),
	})
	assert.ElementsMatch(t, []string{
		"name", "addressId", "targets.0.instanceId", "targets.2.instanceId", "targets.3.instanceId", "targets.4.weight",
	}, fields(err))
}

func TestOptionsReachTheDataPlane(t *testing.T) {
	c, p, plane := newCloudWithPlane(t)
	lb, _ := newBalancer(t, c, p)
	assert.Equal(t, api.LoadBalancerUnlimited, lb.Type)
	assert.Equal(t, api.KindProxy, lb.Kind)
	assert.Equal(t, api.SchemePublic, lb.Scheme)
	assert.Equal(t, api.AlgorithmRoundRobin, lb.Algorithm)
	listeners := []Listener{{Protocol: api.ProtocolTCP, Port: 80, TargetPort: 81, ConnectionLimit: 7}}
	for _, u := range []api.LoadBalancerUpdate{
		{Scheme: orNil(api.SchemeInternal)}, {Algorithm: orNil(api.AlgorithmSourceHash)}, {IdleTimeoutSeconds: orNil[api.Seconds](60)},
		{DrainSeconds: orNil[api.Seconds](3600)}, {Listeners: &listeners}, {DeletionProtection: orNil(true)},
		{Type: orNil(api.LoadBalancerLarge)}, {Tags: &api.Tags{"a": "b"}},
		{HealthCheck: &HealthCheck{Protocol: api.HealthCheckHTTP, Port: 1, ExpectedCodes: "204"}},
	} {
		before := must.Do(c.GetLoadBalancer(t.Context(), p, lb.ID))(t)
		changed := updateBalancer(t, c, p, lb.ID, u)
		assert.Equal(t, before.Version+1, changed.Version)
		same := updateBalancer(t, c, p, lb.ID, u)
		assert.Equal(t, changed.Version, same.Version, "a change of nothing")
	}
	advance(t, c, time.Minute)
	f := plane.applied[lb.ID]
	assert.Equal(t, api.AlgorithmSourceHash, f.Algorithm)
	assert.Equal(t, time.Minute, f.IdleTimeout)
	assert.Equal(t, time.Hour, f.Drain)
	assert.Equal(t, listeners, f.Listeners)
	assert.Equal(t, 40_000, f.ConnectionLimit)
	assert.Equal(t, "204", f.HealthCheck.ExpectedCodes)
	stored := must.Do(c.GetLoadBalancer(t.Context(), p, lb.ID))(t)
	assert.Equal(t, api.Tags{"a": "b"}, stored.Tags)
	want := lb.LoadBalancer
	want.Type, want.Scheme, want.Algorithm = api.LoadBalancerLarge, api.SchemeInternal, api.AlgorithmSourceHash
	want.IdleTimeoutSeconds, want.DrainSeconds, want.DeletionProtection = 60, 3600, true
	want.Tags, want.Listeners, want.HealthCheck = stored.Tags, listeners, f.HealthCheck
	want.Version, want.UpdatedAt, want.State = stored.Version, stored.UpdatedAt, api.LoadBalancerActive
	assert.Equal(t, want, stored.LoadBalancer)
}

func TestBalancerTypesLimitListenersAndTargets(t *testing.T) {
	c, p := newCloud(t, nil)
	listeners := make([]Listener, 6)
	for i := range listeners {
		listeners[i] = Listener{Protocol: api.ProtocolTCP, Port: 1 + i, TargetPort: 1}
	}
	requireRefusedAt(t, QuotaExceeded, "listeners")(c.CreateLoadBalancer(
		t.Context(), p, api.LoadBalancerCreate{Name: "web", Type: api.LoadBalancerSmall, Listeners: listeners},
	))
	requireRefusedAt(t, InvalidRequest, "type")(c.CreateLoadBalancer(
		t.Context(), p, api.LoadBalancerCreate{Name: "web", Type: "huge"},
	))
	lb := createBalancer(t, c, p, api.LoadBalancerCreate{Name: "web", Type: api.LoadBalancerMedium, Listeners: listeners})
	requireRefusedAt(t, QuotaExceeded, "listeners")(
		c.UpdateLoadBalancer(t.Context(), p, lb.ID, api.LoadBalancerUpdate{Type: orNil(api.LoadBalancerSmall)}),
	)
	five := listeners[:5]
	small := updateBalancer(t, c, p, lb.ID, api.LoadBalancerUpdate{Type: orNil(api.LoadBalancerSmall), Listeners: &five})
	assert.Equal(t, api.LoadBalancerSmall, small.Type)
	targets := make([]api.Target, 26)
	for i := range targets {
		targets[i].InstanceID = newInstance(t, c, p, api.InstanceCreate{}).ID
	}
	requireRefusedAt(t, QuotaExceeded, "targets")(
		c.UpdateLoadBalancer(t.Context(), p, lb.ID, api.LoadBalancerUpdate{Targets: &targets}),
	)
	updateBalancer(t, c, p, lb.ID, api.LoadBalancerUpdate{
		Type: orNil(api.LoadBalancerUnlimited), Targets: &targets, Listeners: &listeners,
	})
}

func TestListenersHaveHealthChecks(t *testing.T) {
	c, p, plane := newCloudWithPlane(t)
	listeners := []Listener{
		{Protocol: api.ProtocolTCP, Port: 80, TargetPort: 81, HealthCheck: HealthCheck{Protocol: api.HealthCheckHTTP, Port: 82}},
		{Protocol: api.ProtocolTCP, Port: 81, TargetPort: 81, HealthCheck: HealthCheck{Protocol: api.HealthCheckNone}},
	}
	lb := createBalancer(t, c, p, api.LoadBalancerCreate{Name: "web", Listeners: listeners})
	assert.Equal(t, HealthCheck{
		Protocol: api.HealthCheckHTTP, Port: 82, Path: "/", IntervalSeconds: defaultInterval, TimeoutSeconds: defaultTimeout,
		HealthyThreshold: defaultThreshold, UnhealthyThreshold: defaultThreshold,
	}, lb.Listeners[0].HealthCheck)
	assert.Empty(t, listeners[0].HealthCheck.Path, "the caller's are left alone")
	same := updateBalancer(t, c, p, lb.ID, api.LoadBalancerUpdate{Listeners: &listeners})
	assert.Equal(t, lb, same, "what is left out has its default again")
	advance(t, c, time.Minute)
	assert.Equal(t, lb.Listeners, plane.applied[lb.ID].Listeners)
	listeners[0].HealthCheck.Port = 83
	other := updateBalancer(t, c, p, lb.ID, api.LoadBalancerUpdate{Listeners: &listeners})
	assert.Equal(t, 83, other.Listeners[0].HealthCheck.Port)
}

func TestDeletionProtection(t *testing.T) {
	c, p := newCloud(t, nil)
	lb := createBalancer(t, c, p, api.LoadBalancerCreate{Name: "web", DeletionProtection: new(true)})
	requireRefused(t, Protected)(c.DeleteLoadBalancer(t.Context(), p, lb.ID))
	assert.Equal(t, lb, must.Do(c.GetLoadBalancer(t.Context(), p, lb.ID))(t))
	updateBalancer(t, c, p, lb.ID, api.LoadBalancerUpdate{DeletionProtection: new(false)})
	requireOK(t)(c.DeleteLoadBalancer(t.Context(), p, lb.ID))
	assert.Equal(t, api.LoadBalancerDeleting, balancerState(t, c, p, lb.ID))
}

func TestListenersOfHTTPArePortsOfTCP(t *testing.T) {
	c, p := newCloud(t, nil)
	of := func(protocols ...Protocol) (s api.LoadBalancerCreate) {
		s.Name = "web"
		for _, protocol := range protocols {
			s.Listeners = append(s.Listeners, Listener{Protocol: protocol, Port: 80, TargetPort: 30080})
		}
		return s
	}
	for _, other := range []Protocol{api.ProtocolTCP, api.ProtocolHTTP} {
		requireRefusedAt(t, ListenerConflict, "listeners.1.port")(c.CreateLoadBalancer(t.Context(), p, of(api.ProtocolHTTP, other)))
	}
	lb := createBalancer(t, c, p, of(api.ProtocolHTTP, api.ProtocolUDP))
	assert.Equal(t, of(api.ProtocolHTTP, api.ProtocolUDP).Listeners, lb.Listeners)
}

func TestOptionsThatDoNotGoTogether(t *testing.T) {
	c, p := newCloud(t, nil)
	a := must.First(c.Addresses.Create(t.Context(), p, api.ReservedAddressCreate{}))(t)
	tcp, udp := []Listener{
		{Protocol: api.ProtocolTCP, Port: 80, TargetPort: 80},
	}, []Listener{{Protocol: api.ProtocolUDP, Port: 53, TargetPort: 53}}
	for field, spec := range map[string]api.LoadBalancerCreate{
		"addressId":    {Scheme: api.SchemeInternal, AddressID: a.ID, Listeners: tcp},
		"address":      {Scheme: api.SchemeInternal, Address: a.IP, Listeners: tcp},
		"drainSeconds": {DrainSeconds: 1, Listeners: udp},
	} {
		spec.Name = "web"
		requireRefusedAt(t, InvalidRequest, field)(c.CreateLoadBalancer(t.Context(), p, spec))
	}
	lb := createBalancer(t, c, p, api.LoadBalancerCreate{Name: "web", AddressID: a.ID, DrainSeconds: 1, Listeners: tcp})
	none := updateBalancer(t, c, p, lb.ID, api.LoadBalancerUpdate{Listeners: &[]Listener{}})
	assert.EqualValues(t, 1, none.DrainSeconds, "connections of the listener that it had drain")
	for field, u := range map[string]api.LoadBalancerUpdate{
		"scheme":       {Scheme: orNil(api.SchemeInternal)},
		"drainSeconds": {Listeners: &udp},
	} {
		requireRefusedAt(t, InvalidRequest, field)(c.UpdateLoadBalancer(t.Context(), p, lb.ID, u))
	}
}

func TestOptionsOfHTTPAreRefusedElsewhere(t *testing.T) {
	c, p := newCloud(t, nil)
	for field, wrong := range map[string]Listener{
		"redirectPort":        {Protocol: api.ProtocolTCP, RedirectPort: 443},
		"stickyCookie":        {Protocol: api.ProtocolTCP, StickyCookie: "to"},
		"stickyCookieSeconds": {Protocol: api.ProtocolHTTP, StickyCookieSeconds: 5},
		"idleTimeoutSeconds":  {Protocol: api.ProtocolTCP, IdleTimeoutSeconds: maxIdle + 1},
		"healthCheck.host":    {Protocol: api.ProtocolTCP, HealthCheck: HealthCheck{Protocol: api.HealthCheckTCP, Port: 1, Host: "a"}},
		"healthCheck.response": {
			Protocol: api.ProtocolTCP, HealthCheck: HealthCheck{Protocol: api.HealthCheckTCP, Port: 1, Response: "ok"},
		},
	} {
		wrong.Port, wrong.TargetPort = 80, 80
		requireRefusedAt(t, InvalidRequest, "listeners.0."+field)(c.CreateLoadBalancer(t.Context(), p, api.LoadBalancerCreate{
			Name: "web", Listeners: []Listener{wrong},
		}))
	}
	sticky := Listener{
		Protocol: api.ProtocolHTTP, Port: 80, TargetPort: 80, RedirectPort: 443, StickyCookie: "to", StickyCookieSeconds: 5,
	}
	requireRefusedAt(t, InvalidRequest, "listeners.0.stickyCookie")(c.CreateLoadBalancer(t.Context(), p, api.LoadBalancerCreate{
		Name: "web", Listeners: []Listener{sticky},
	}))
}

func TestListenersThatRedirectAreBeyondTheSize(t *testing.T) {
	c, p := newCloud(t, nil)
	spec := api.LoadBalancerCreate{Name: "web", Type: api.LoadBalancerSmall}
	for port := 80; port < 85; port++ {
		spec.Listeners = append(spec.Listeners, Listener{Protocol: api.ProtocolHTTP, Port: port, TargetPort: 80})
	}
	spec.Listeners = append(spec.Listeners, Listener{Protocol: api.ProtocolHTTP, Port: 85, TargetPort: 80, RedirectPort: 443})
	createBalancer(t, c, p, spec)
}
