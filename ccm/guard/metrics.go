package guard

import "github.com/ccmlab/ccmlab/ccm/calls"

// What the budgets do, of Nodes and of load balancers, for /metrics.
var (
	trips = calls.NewCounter("mass_deletion_guard_trips_total",
		"How often too many objects were reported gone, so that no more were deleted.", "of")
	active = calls.NewGauge("mass_deletion_guard_active",
		"1 while objects that were reported gone are kept, because they are too many; else 0. "+
			"Only the leader reports it.", "of")
	holds = calls.NewGauge("mass_deletion_guard_held",
		"How many objects are kept until a person confirms the trip, or it has lasted for the hold time.", "of")
)
