package ccm

// What the cloud watch has done, for /metrics.

import (
	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
)

const metricsNamespace, metricsSubsystem = "fakecloud", "ccm"

func watchCounter(name, help string) *metrics.Counter {
	return metrics.NewCounter(&metrics.CounterOpts{
		Namespace: metricsNamespace, Subsystem: metricsSubsystem, Name: name, Help: help, StabilityLevel: metrics.ALPHA,
	})
}

var (
	balancerRepairs = watchCounter("load_balancer_repairs_total", "Load balancers that were changed or deleted out of band and brought back to what their Service wants.")
	orphansDeleted  = watchCounter("orphaned_load_balancers_deleted_total", "Load balancers of this cluster that were deleted because their Service does not exist or wants none.")
	nodesRemoved    = watchCounter("nodes_removed_total", "Nodes that were deleted because their instance had ended.")
	nodesPrompted   = watchCounter("nodes_prompted_total", "Prompts of uninitialised Nodes whose instance came late.")

	orphans = metrics.NewGaugeVec(&metrics.GaugeOpts{
		Namespace: metricsNamespace, Subsystem: metricsSubsystem, Name: "orphaned_load_balancers", StabilityLevel: metrics.ALPHA,
		Help: "Load balancers without a Service, by whose they are: those of this_cluster get deleted; those of an unknown one, which carry the cluster's name and not its UID, are left alone.",
	}, []string{"owner"})
)

func init() {
	legacyregistry.MustRegister(balancerRepairs, orphansDeleted, nodesRemoved, nodesPrompted, orphans)
}
