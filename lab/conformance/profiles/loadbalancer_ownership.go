package profiles

// What a CCM does for a balancer whatever its Service's spec: the Nodes change though the Service asks for
// what the CCM refuses, the cluster gets another name, or the Service is gone.

import (
	"context"
	"errors"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/ccmlab/ccmlab/lab/conformance"
)

var balancerOwnershipTests = []conformance.Test{
	{
		ID: "lb-refused-service-follows-nodes", Capability: conformance.CapabilityRefusedServices,
		Source:   fromUpdate + "; " + fromNodeSet,
		Requires: "A Service that has a balancer and then asks for what its CCM may not be able to do, an SCTP port, keeps its balancer and address; Nodes that come and go become targets and cease to be.",
		Needs:    []conformance.Feature{conformance.FeatureTargets},
		Alone:    true, // Nothing else may change the Nodes, and nobody answers on these.
		Run:      lbRefusedServiceFollowsNodes,
	}, {
		ID: "lb-renamed-cluster", Capability: conformance.CapabilityRenamedCluster,
		Source:   fromEnsure + "; " + fromCleanup,
		Requires: "When the CCM is restarted with another cluster name, Services keep the balancers that they have, changes reach them, and the balancer of a Service that is deleted goes.",
		Needs:    []conformance.Feature{conformance.FeatureRenameCluster}, Alone: true, // The CCM is restarted.
		Run: lbRenamedCluster,
	}, {
		ID: "lb-orphan-is-deleted", Capability: conformance.CapabilityOrphans, Source: fromCleanup,
		Requires: "The balancer of a Service that went while no CCM ran, by force and without its finalizer, is deleted when one runs, and no other is.",
		Alone:    true, // The CCM is restarted.
		Bound:    conformance.DefaultBound + 3*orphanPatience,
		Run: func(t *conformance.T) {
			orphaning, kept := t.NewService(), t.NewService()
			t.AwaitBalancer(orphaning)
			before := t.AwaitBalancer(kept)
			restart := stopCCM(t)
			t.Change(orphaning, func(s *corev1.Service) { s.Finalizers = nil })
			t.DeleteService(orphaning)
			t.Must(t.NoService(t.Context(), orphaning), "deleting Service %s without its finalizer", orphaning.Name)
			restart()
			t.AwaitGone(orphaning)
			t.AwaitBalancer(kept, listensFor(t, kept), sameBalancer(before))
		},
	}, {
		ID: "lb-two-of-one-service", Capability: conformance.CapabilityTwinBalancers, Source: fromCleanup,
		Requires: "Of two balancers that say they are a Service's, as a create leaves them whose answer was lost, none is left when the Service is deleted.",
		Needs:    []conformance.Feature{conformance.FeatureTwinBalancers},
		Run: func(t *conformance.T) {
			svc, b := newServiceWithBalancer(t)
			twin, err := t.Cloud.CreateTwinBalancer(t.Context(), b.ID)
			t.Must(err, "making a second balancer of Service %s", svc.Name)
			t.Cleanup(func(ctx context.Context) error { return t.Cloud.DeleteBalancer(ctx, twin.ID) })
			deleteAndAwaitGone(t, svc)
		},
	},
}

// orphanPatience is how long a careful CCM may wait before it deletes an orphan.
const orphanPatience = time.Minute

func lbRefusedServiceFollowsNodes(t *conformance.T) {
	t.AwaitMachines()
	instance := t.NewInstance(t.Name("worker"))
	svc := t.NewService()
	own := t.AwaitBalancer(svc, leadsToNodesOf(t, instance)).Targets
	ensured := countEventsOf(t, svc, ensuredBalancer)
	t.Change(svc, func(s *corev1.Service) {
		s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{
			Name: "sctp", Protocol: corev1.ProtocolSCTP, Port: t.Port(), TargetPort: intstr.FromInt32(t.Workload.Port),
		})
	})
	t.Await("the CCM to have refused the Service, or done what it asks for", eitherHolds(
		checkWarning(t, svc, aboutProtocol),
		func(context.Context) error {
			if countEventsOf(t, svc, ensuredBalancer) == ensured {
				return errors.New("there is no Event that it is done")
			}
			return nil
		}))

	node := t.NewNodeOf(instance, conformance.NodeSpec{Balanced: true})
	t.AwaitInitialized(node.Name)
	t.AwaitBalancer(svc, leadsTo(own, instance.ID))
	deleteNode(t, node.Name)
	t.AwaitBalancer(svc, leadsTo(own))

	t.Change(svc, func(s *corev1.Service) { s.Spec.Ports = s.Spec.Ports[:1] })
	t.AwaitBalancer(svc, leadsTo(own), listensFor(t, svc))
}

// ensuredBalancer is the reason of upstream's Event when a Service's balancer is as the Service asks.
const ensuredBalancer = "EnsuredLoadBalancer"

// countEventsOf counts how often Events about the Service with that reason, or with any, have occurred.
func countEventsOf(t *conformance.T, svc *corev1.Service, reason string) (n int32) {
	for _, e := range eventsOnService(t, svc) {
		if reason == "" || e.Reason == reason {
			n += max(1, e.Count)
		}
	}
	return n
}

func lbRenamedCluster(t *conformance.T) {
	kept, changed, deleted := t.NewService(), t.NewService(), t.NewService()
	before := t.AwaitBalancer(kept)
	beforeChange := t.AwaitBalancer(changed, listensFor(t, changed))
	t.AwaitBalancer(deleted)
	restart := stopCCM(t)
	t.RenameCluster(t.Name("renamed"))
	restart()

	t.DeleteService(deleted)
	changePortAndAwait(t, changed, sameBalancer(beforeChange))
	t.AwaitGone(deleted)
	created := t.NewService() // When it has its balancer, the others' have been looked at, too.
	t.AwaitBalancer(created, listensFor(t, created))
	t.AwaitBalancer(kept, sameBalancer(before))
}
