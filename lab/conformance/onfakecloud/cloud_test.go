package onfakecloud

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/lab/conformance"
)

// What fakecloud can do follows from the driver's roles, but for what only its data show.
func TestFeatures(t *testing.T) {
	always := []conformance.Feature{
		"node-names", "zones", "instance-types", "listeners", "node-ports", "targets", "udp", "source-ranges",
		"affinity", "affinity-timeout", "health-check", "rename-balancer", "change-addresses",
		"unlike-instances", "rename-instance", "reboot-instance", "several-addresses", "dual-stack", "capital-names",
		"reset-balancer", "tag-balancer", "blackhole-routes", "fault-409", "fault-412",
		"strangers", "change-balancer", "reserved-addresses", "routes", "divert-routes", "stranger-routes",
		"route-quota", "namesake-balancers", "namesake-routes",
		"twin-balancers", "balancer-quota", "namesake-instances",
		"calls", "zone-outage", "fault-401", "fault-403", "fault-404", "fault-429", "fault-500", "fault-503",
		"fault-timeout", "fault-reset", "fault-refused", "fault-garbage", "fault-empty-list", "fault-not-found",
		"fault-partial-list", "fault-missing-field", "fault-stale", "fault-slow", "fault-lost", "fault-stuck",
		"fault-build-fails", "fault-429-retry-after", "fault-503-retry-after", "fault-missing-instance-addresses",
		"fault-missing-instance-zone", "fault-missing-instance-type", "fault-missing-instance-tags",
		"fault-missing-balancer-address", "fault-missing-balancer-listeners", "fault-missing-route-instance",
		"fault-missing-route-destination",
	}
	assert.ElementsMatch(t, always, conformance.FeaturesOf(&Cloud{}))
	all := append([]conformance.Feature{"credential-expiry", "other-project", "machines", "traffic"}, always...)
	assert.ElementsMatch(t, all, conformance.FeaturesOf(&CloudWithToken{Cloud: &Cloud{Machines: true, Traffic: true}}))
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
				lb.Listeners = append(lb.Listeners, api.Listener{HealthCheck: h})
			}
			checked, port := healthCheckOf(lb)
			assert.Equal(t, test.checked, checked)
			assert.Equal(t, test.port, port)
		})
	}
}
