package onfakecloud

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/lab/conformance"
	"github.com/ccmlab/ccmlab/lab/conformance/driver/protocol"
	"github.com/ccmlab/ccmlab/lab/conformance/faultproxy"
)

// What fakecloud can do depends on the lab around it.
func TestFeatures(t *testing.T) {
	always := []conformance.Feature{
		"node-names", "zones", "instance-types", "listeners", "node-ports", "targets", "udp", "source-ranges",
		"affinity", "affinity-timeout", "health-check", "rename-balancer", "change-addresses",
		"unlike-instances", "rename-instance", "reboot-instance",
		"reset-balancer", "tag-balancer",
		"strangers", "change-balancer", "reserved-addresses", "routes", "divert-routes", "stranger-routes",
		"route-quota", "namesake-balancers", "namesake-routes",
		"twin-balancers", "balancer-quota", "namesake-instances",
		"calls", "zone-outage", "blackhole-routes", "several-addresses", "dual-stack", "capital-names",
	}
	for _, kind := range conformance.AllFaultKinds() {
		always = append(always, conformance.FaultFeature(kind))
	}
	featuresOf := func(c *Cloud) []conformance.Feature {
		connected, err := conformance.InProcess(t.Context(), c, protocol.Hello{})
		require.NoError(t, err)
		assert.Empty(t, connected.UnknownFeatures())
		return connected.Features()
	}
	assert.ElementsMatch(t, always, featuresOf(&Cloud{Gate: &faultproxy.Gate{}}))
	all := append(
		[]conformance.Feature{"credential-expiry", "other-project", "ca-renewal", "machines", "traffic"}, always...,
	)
	assert.ElementsMatch(t, all, featuresOf(&Cloud{
		Machines: true, Traffic: true, Gate: &faultproxy.Gate{}, TokenFile: "token", CAFile: "ca.crt",
	}))
}

func TestCallsByWhatTheyAreAbout(t *testing.T) {
	var counted []api.AuditSum
	for operation, n := range map[string]int64{
		"listInstances": 2, "getInstance": 3, "listInstanceTypes": 1, "streamEvents": 1, "getProject": 1,
		"listLoadBalancers": 4, "createLoadBalancer": 2, "reserveAddress": 1, "createRoute": 5, "listRoutes": 1,
	} {
		counted = append(counted, api.AuditSum{Operation: operation, Calls: n})
	}
	assert.Equal(t, conformance.Calls{
		Count: conformance.Count{Reads: 13, Writes: 8},
		Of: map[conformance.Thing]conformance.Count{
			conformance.Instances: {Reads: 5}, conformance.Balancers: {Reads: 4, Writes: 3},
			conformance.Routes: {Reads: 1, Writes: 5},
		},
	}, sumOf(counted), "of types, events and the project there are three, and they are about none of these things")
}

func TestHealthCheckOf(t *testing.T) {
	http := func(port int) *api.HealthCheck { return &api.HealthCheck{Protocol: api.HealthCheckHTTP, Port: port} }
	tcp, none := &api.HealthCheck{Protocol: api.HealthCheckTCP, Port: 80}, &api.HealthCheck{Protocol: api.HealthCheckNone}
	for name, test := range map[string]struct {
		own       *api.HealthCheck
		listeners []*api.HealthCheck
		checked   bool
		port      int32
	}{
		"none":                       {listeners: []*api.HealthCheck{nil}},
		"the balancer's":             {own: http(81), listeners: []*api.HealthCheck{nil, nil}, checked: true, port: 81},
		"no listeners":               {own: http(81), checked: true, port: 81},
		"each listener's":            {listeners: []*api.HealthCheck{http(82), http(82)}, checked: true, port: 82},
		"different ports":            {own: http(81), listeners: []*api.HealthCheck{nil, http(82)}, checked: true},
		"by TCP":                     {listeners: []*api.HealthCheck{tcp}, checked: true},
		"one listener without":       {listeners: []*api.HealthCheck{http(82), nil}},
		"switched off of a listener": {own: http(81), listeners: []*api.HealthCheck{nil, none}},
	} {
		t.Run(name, func(t *testing.T) {
			lb := &api.LoadBalancer{HealthCheck: test.own}
			for _, h := range test.listeners {
				lb.Listeners = append(lb.Listeners, api.Listener{HealthCheck: api.ValueOf(h)})
			}
			checked, port := healthCheckOf(lb)
			assert.Equal(t, test.checked, checked)
			assert.Equal(t, test.port, port)
		})
	}
}
