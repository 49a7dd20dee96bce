package ccm

import (
	"github.com/ccmlab/ccmlab/ccm/calls"
)

// What the mass-deletion guards do, of Nodes and of load balancers.
var (
	massDeletionTrips = calls.NewCounter("mass_deletion_guard_trips_total",
		"How often too many were found gone, so that no further one was deleted.", "of")
	massDeletionActive = calls.NewGauge("mass_deletion_guard_active",
		"1 while what is found gone is kept, as there is too much of it; else 0. "+
			"Of several replicas, the one that leads knows it.", "of")
	massDeletionHeld = calls.NewGauge("mass_deletion_guard_held",
		"How many are kept until a person confirms that they are gone, or it was said for long.", "of")
)

// What the cloud watch has done, for /metrics.
var (
	balancerRepairs = calls.NewCounter("load_balancer_repairs_total",
		"Load balancers that were changed or deleted out of band "+
			"and brought back to what their Service wants.").WithLabelValues()
	orphansDeleted = calls.NewCounter("orphaned_load_balancers_deleted_total",
		"Load balancers of this cluster that were deleted "+
			"because their Service does not exist or wants none.").WithLabelValues()
	nodesRemoved = calls.NewCounter("nodes_removed_total",
		"Nodes that were deleted while following the cloud because their instance had ended, "+
			"beside those that the lifecycle controller deletes.").WithLabelValues()
	nodesPrompted = calls.NewCounter("nodes_prompted_total",
		"Prompts of uninitialised Nodes whose instance came late.").WithLabelValues()
	orphanedBalancers = calls.NewGauge("orphaned_load_balancers",
		"Load balancers without a Service, by owner: those of this_cluster get deleted; "+
			"those of an unknown one, which carry the cluster's name and not its UID, are left alone.", "owner")
)
