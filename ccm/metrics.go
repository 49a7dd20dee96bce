package ccm

import (
	"sync/atomic"

	"github.com/ccmlab/ccmlab/ccm/calls"
)

// guardInUse is the mass-deletion guard of this process's provider, for its metrics. They are
// worked out when they are read: nobody calls the guard once all is well.
var guardInUse atomic.Pointer[deletionGuard]

// massDeletionTrips exists from the start, as 0.
var massDeletionTrips = calls.NewCounter("mass_deletion_guard_trips_total",
	"How often too many instances were gone at once, so that further Nodes were kept for a while.").WithLabelValues()

func init() {
	calls.NewGaugeFunc("mass_deletion_guard_active",
		"1 while Nodes whose instance is gone are kept for a while, as there are too many of them; else 0.",
		func() float64 {
			if active, _ := guardState(); active {
				return 1
			}
			return 0
		})
	calls.NewGaugeFunc("mass_deletion_guard_held_nodes",
		"Nodes whose instance is gone and that are kept for now.",
		func() float64 {
			_, held := guardState()
			return float64(held)
		})
}

// guardState asks the guard in use.
func guardState() (active bool, held int) {
	if g := guardInUse.Load(); g != nil {
		return g.activeAndHeld()
	}
	return false, 0
}
