package watch

import (
	"github.com/ccmlab/ccmlab/ccm/calls"
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
		"Nodes that the cloud watch deleted because their instance had ended, "+
			"not counting those that the lifecycle controller deletes.").WithLabelValues()
	nodesPrompted = calls.NewCounter("nodes_prompted_total",
		"Prompts of uninitialised Nodes whose instance came late.").WithLabelValues()
	orphanedBalancers = calls.NewGauge("orphaned_load_balancers",
		"Load balancers without a Service, by owner: those of this_cluster are deleted; "+
			"those of an unknown owner, with the cluster's name but not its UID, are kept.", "owner")
)
