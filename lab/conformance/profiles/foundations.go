package profiles

// Foundations: a test that waits for a balancer on its way builds on the test that a Service gets one. The
// suite begins with what others build on, and does not run what builds on a test that has failed.

import (
	"fmt"
	"path"
	"slices"

	"github.com/ccmlab/ccmlab/lab/conformance"
)

// The IDs of tests that others build on. Each takes little time with a CCM that does what it tests, and
// tests what every CCM has to do, or what its profile is about.
const (
	initialized    = "node-taint-lifted"
	saysWhyAtAll   = "node-says-why"
	lateIsFound    = "node-late-instance"
	stoppedTainted = "lifecycle-stopped-is-kept-and-tainted"
	untainted      = "lifecycle-started-again"
	endedDeleted   = "lifecycle-terminated-is-deleted"
	balancerMade   = "lb-created"
	balancerGone   = "lb-deleted"
	portFollows    = "lb-port-changed"
	targetsFollow  = "lb-targets-follow-nodes"
	trafficFlows   = "lb-traffic-reaches-pods"
	routeMade      = "route-to-node"
	routeGone      = "route-for-each-node"
	standbyActs    = "ha-leader-killed"
)

// foundations lists the tests that others build on, and patterns, as in path.Match, for the IDs of those
// others.
var foundations = []struct {
	on    string
	tests []string
}{
	{on: initialized, tests: []string{
		"node-waits-without-instance", "node-namesake-instance", "node-provider-id", "node-zone-and-region", "node-instance-type",
		"node-each-its-own",
		"node-addresses", "node-addresses-changed", "node-name-*", "node-late-instance", "node-keeps-*",
		"node-after-restart", "node-provided-ip", "node-provided-ip-among-several", "node-provided-ip-dual-stack",
		"node-provided-ip-mismatch", "node-says-why-once", "node-retry-after",
		"lifecycle-*", "route-*", "ha-*", "budget-*", "resilience-*",
		"lb-targets-*", "lb-waiting-node-is-skipped", "lb-exclusion-label-*", "lb-autoscaler-taint",
		"lb-two-nodes-of-one-instance", "lb-cordoned-and-control-plane-nodes", "lb-last-target-goes", "lb-traffic-*",
		"lb-refused-service-follows-nodes",
	}},
	{on: saysWhyAtAll, tests: []string{"node-says-why-once", "node-without-taint-says-why"}},
	{on: lateIsFound, tests: []string{"node-name-is-exact", "node-namesake-instance"}},

	{on: stoppedTainted, tests: []string{
		"lifecycle-started-again", "lifecycle-not-ready-is-kept", "lifecycle-foreign-provider-id", "lifecycle-machine",
		"lifecycle-doubt-*", "lifecycle-stopped-while-ready-is-kept", "route-stopped-is-kept",
		"lifecycle-renamed-is-kept", "lifecycle-rebooted-is-kept",
		"resilience-expired-credentials", "resilience-token-swapped", "resilience-zone-outage",
		"resilience-empty-instance-list", "resilience-throttled-refresh", "resilience-missing-page",
		"resilience-missing-field", "resilience-stale-reads", "resilience-slow-api",
	}},
	{on: untainted, tests: []string{ // By which the CCM's rounds are counted.
		"lifecycle-machine", "lifecycle-doubt-*", "lifecycle-booting-is-kept", "lifecycle-survives-*", "budget-*",
		"lifecycle-mass-deletion*",
		"resilience-expired-credentials", "resilience-token-swapped", "resilience-empty-instance-list",
		"resilience-throttled-refresh", "resilience-missing-page", "resilience-missing-field", "resilience-stale-reads",
	}},
	{on: endedDeleted, tests: []string{
		"ha-migration-lease-held",
		"lifecycle-reappears", "lifecycle-deleted-while-ccm-down", "lifecycle-machine", "lifecycle-terminated-while-ready",
		"lifecycle-ended-before-initialized*",
		"lb-targets-follow-nodes", "route-of-new-instance", "resilience-stale-reads",
	}},

	{on: balancerMade, tests: []string{
		"lb-*", "budget-*", "resilience-zone-outage", "resilience-tripped-breaker", "resilience-stranger-of-same-name",
		"ha-one-acts", "ha-leader-stopped", "ha-leader-killed-creating-balancer", "ha-leader-frozen",
		"ha-api-server-away", "resilience-lost-create", "resilience-slow-balancer-api", "resilience-stale-balancers",
		"resilience-missing-page-of-balancers",
	}},
	{on: balancerGone, tests: []string{
		"lb-finalizer", "lb-two-of-one-service", "lb-retyped-to-cluster-ip", "lb-class-set-later", "lb-two-services", "lb-recreated",
		"lb-many-leave-nothing", "lb-same-name-in-two-namespaces", "lb-any-name", "lb-namespace-*",
		"lb-replaced-under-another-name", "lb-ccm-restarted-while-creating", "lb-ccm-stopped-inside-create", "lb-load-balancer-ip",
		"lb-load-balancer-ip-in-use", "lb-load-balancer-ip-freed", "lb-no-address-when-failed", "lb-delete-retried-after-restart",
		"lb-deleted-with-others-credentials",
		"lb-changed-while-ccm-down", "lb-deleted-with-ccm-down", "lb-delete-retried",
		"lb-orphan-is-deleted", "lb-renamed-cluster",
		"lb-deleted-out-of-band-then-service-deleted", "lb-renamed-balancer", "lb-stranger-of-same-name", "lb-doubt-*",
		"lb-of-namesake-cluster",
		"budget-*", "ha-leader-stopped", "ha-leader-killed-creating-balancer", "ha-leader-frozen",
		"resilience-stranger-of-same-name", "resilience-lost-create", "resilience-slow-balancer-api",
		"resilience-stale-balancers", "resilience-missing-page-of-balancers",
	}},
	{on: portFollows, tests: []string{
		"lb-health-check", "lb-quota-says-why", "lb-same-name-in-two-namespaces", "lb-any-name",
		"lb-ports-renamed-and-swapped", "lb-change-retried", "lb-tags-of-others-stay",
		"lb-reset-out-of-band-then-service-changed", "lb-ip-mode",
		"lb-changed-while-ccm-down", "lb-create-retried", "lb-deleted-out-of-band-then-changed", "lb-renamed-balancer",
		"lb-renamed-cluster",
		"lb-stranger-of-same-name", "lb-quiet", "lb-ccm-restarted-while-creating", "lb-ccm-stopped-inside-create",
		"lb-changed-out-of-band-then-service-changed", "lb-traffic-follows-port-change",
		"ha-api-server-away", "budget-*", "ha-leader-stopped", "ha-leader-killed-creating-balancer", "ha-leader-frozen",
		"resilience-lost-create", "resilience-slow-balancer-api", "resilience-stale-balancers",
		"resilience-missing-page-of-balancers",
	}},
	{on: targetsFollow, tests: []string{
		"lb-targets-retried", "lb-autoscaler-taint",
		"lb-exclusion-label-*", "lb-two-nodes-of-one-instance", "lb-refused-service-follows-nodes",
		"lb-cordoned-and-control-plane-nodes", "lb-last-target-goes",
	}},
	{on: trafficFlows, tests: []string{"lb-traffic-*"}},
	{on: "lb-source-ranges", tests: []string{"lb-traffic-source-ranges"}},
	{on: "lb-affinity", tests: []string{"lb-traffic-affinity"}},
	{on: "lb-udp", tests: []string{"lb-udp-and-tcp-same-port"}},

	{on: routeMade, tests: []string{"route-*"}},
	{on: routeGone, tests: []string{
		// Upstream's route controller deletes a route that leads elsewhere, before it makes it anew.
		"route-diverted",
		"route-of-new-instance", "route-of-stranger", "route-of-namesake-cluster", "route-outside-cluster-cidr",
		"route-of-changed-range", "route-of-foreign-node", "route-of-stranger-to-ended-instance", "route-create-fails",
		"route-not-ready-is-kept", "route-stopped-is-kept",
		"route-of-node-deleted-while-ccm-down", "route-refused-is-tried-again", "route-doubt-*",
	}},

	{on: standbyActs, tests: []string{
		"ha-one-acts", "ha-leader-stopped", "ha-leader-killed-creating-balancer", "ha-leader-frozen",
	}},
}

// withFoundations adds to tests what they build on, and that they need load balancers if that is a Service's. No
// test builds on itself: a pattern may match it.
func withFoundations(tests []conformance.Test) []conformance.Test {
	for i := range tests {
		test := &tests[i]
		test.BuildsOn = slices.Clone(test.BuildsOn)
		for _, f := range foundations {
			if f.on != test.ID && !slices.Contains(test.BuildsOn, f.on) && matchesAny(f.tests, test.ID) {
				test.BuildsOn = append(test.BuildsOn, f.on)
			}
		}
		if test.ID == balancerMade || slices.Contains(test.BuildsOn, balancerMade) {
			test.Needs = append([]conformance.Feature{conformance.FeatureLoadBalancers}, test.Needs...)
		}
	}
	return tests
}

func matchesAny(patterns []string, id string) bool {
	return slices.ContainsFunc(patterns, func(pattern string) bool {
		matched, err := path.Match(pattern, id)
		if err != nil {
			panic(fmt.Sprintf("pattern %q of foundations: %v", pattern, err))
		}
		return matched
	})
}
