package ccm

// The mass-deletion guard's metrics, on upstream's /metrics. How many are held
// is worked out when it is asked for: nobody calls the guard once all is well.

import (
	"sync/atomic"

	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
)

// guardInUse is the guard of this process's cloud.
var guardInUse atomic.Pointer[deletionGuard]

var massDeletionTrips = metrics.NewCounter(&metrics.CounterOpts{
	Name: "fakecloud_ccm_mass_deletion_guard_trips_total", StabilityLevel: metrics.ALPHA,
	Help: "How often too many instances were gone at once, so that further Nodes were kept for a while",
})

func init() {
	legacyregistry.MustRegister(massDeletionTrips)
	legacyregistry.RawMustRegister(
		metrics.NewGaugeFunc(&metrics.GaugeOpts{
			Name: "fakecloud_ccm_mass_deletion_guard_active", StabilityLevel: metrics.ALPHA,
			Help: "1 while Nodes whose instance is gone are kept for a while, as there are too many of them; else 0",
		}, func() float64 {
			if active, _ := guardState(); active {
				return 1
			}
			return 0
		}),
		metrics.NewGaugeFunc(&metrics.GaugeOpts{
			Name: "fakecloud_ccm_mass_deletion_guard_held_nodes", StabilityLevel: metrics.ALPHA,
			Help: "Nodes whose instance is gone and that are kept for now",
		}, func() float64 {
			_, held := guardState()
			return float64(held)
		}))
}

func guardState() (active bool, held int) {
	if g := guardInUse.Load(); g != nil {
		return g.state()
	}
	return false, 0
}
