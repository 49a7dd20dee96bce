package ccm

import "github.com/ccmlab/ccmlab/ccm/calls"

// What the mass-deletion guard does, for /metrics. Each exists from the start, as 0.
var (
	massDeletionTrips = calls.NewCounter("mass_deletion_guard_trips_total",
		"How often too many instances were gone at once, so that no further Node was deleted.").WithLabelValues()
	massDeletionActive = calls.NewGauge("mass_deletion_guard_active",
		"1 while Nodes whose instance is found gone are kept, as there are too many of them; else 0. "+
			"Of several replicas, the one that leads knows it.").WithLabelValues()
	massDeletionHeld = calls.NewGauge("mass_deletion_guard_held_nodes",
		"Nodes whose instance is gone and that are kept until a person confirms that, "+
			"or the cloud has said so for long.").WithLabelValues()
)
