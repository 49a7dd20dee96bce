// Package profiles holds the conformance suite's tests, one file for each group
// of them.
package profiles

import (
	"slices"

	"github.com/ccmlab/ccmlab/lab/conformance"
)

// All are the tests of every profile, in the order in which they are reported, and
// begun where no Priority says otherwise: one of the first waits long.
func All() []conformance.Test {
	return withFoundations(slices.Concat(nodeBeyondTests, nodeTests, lifecycleBeyondTests, lifecycleTests, exitTests,
		loadBalancerTests, trafficTests, budgetTests, routeTests, haTests, controllersFlagTests, resilienceNodeTests, resilienceClusterTests,
		resilienceBalancerTests, massDeletionTests))
}
