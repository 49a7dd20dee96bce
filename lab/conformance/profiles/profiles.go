// Package profiles holds the conformance suite's tests, one file for each group
// of them.
package profiles

import (
	"slices"
	"strings"

	"github.com/ccmlab/ccmlab/lab/conformance"
)

// All returns the tests of every profile, in the order in which they are reported, and begun where no
// Priority says otherwise: one of the first waits long. The tables leave out what follows from other
// fields: the profile, which the ID begins with, and the level.
func All() []conformance.Test {
	tests := slices.Concat(
		nodeExtendedTests, nodeTests,
		lifecycleExtendedTests, lifecycleTests, exitTests,
		loadBalancerTests, trafficTests, clientAddressTests, balancerQuotaTests, budgetTests, routeTests,
		haTests, healthTests, controllersFlagTests, missingFieldTests, retryAfterTests,
		largeBudgetTests, resilienceNodeTests, resilienceClusterTests, resilienceBalancerTests, massDeletionTests,
	)
	for i := range tests {
		prefix, _, _ := strings.Cut(tests[i].ID, "-")
		tests[i].Profile, tests[i].Level = profilesByPrefix[prefix], conformance.Core
		if tests[i].Capability != "" {
			tests[i].Level = conformance.Extended
		}
	}
	return withFoundations(tests)
}

// profilesByPrefix has the profile of a test by the first word of its ID.
var profilesByPrefix = map[string]conformance.Profile{
	"node": conformance.Node, "lifecycle": conformance.Lifecycle, "lb": conformance.LoadBalancer,
	"route": conformance.Routing, "ha": conformance.HA, "resilience": conformance.Resilience,
	"budget": conformance.Budget,
}

// TestsThatNeed lists the core tests that are skipped without a feature, and counts the extended ones.
func TestsThatNeed(f conformance.Feature) (core []string, extended int) {
	for _, t := range All() {
		switch {
		case !slices.Contains(t.Needs, f):
		case t.Level == conformance.Core:
			core = append(core, t.ID)
		default:
			extended++
		}
	}
	return core, extended
}
