package profiles

// Which Nodes are a balancer's targets: labels, taints and Nodes that upstream's predicates tell
// apart (k8s.io/cloud-provider controllers/service/controller.go: stableNodeSetPredicates).

import (
	"context"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	nodehelpers "k8s.io/cloud-provider/node/helpers"

	"github.com/ccmlab/ccmlab/lab/conformance"
)

// showsTargets has the feature that tests of a balancer's targets need. They run alone: nobody answers on the
// Nodes that they add.
var showsTargets = []conformance.Feature{conformance.FeatureTargets}

var balancerNodeTests = []conformance.Test{
	{
		ID:       "lb-exclusion-label-empty",
		Source:   serviceController + ": nodeIncludedPredicate; kubernetes.io: Well-Known Labels, Annotations and Taints",
		Requires: "The label node.kubernetes.io/exclude-from-external-load-balancers keeps a Node out of balancers with an empty value, too: kubeadm sets it so.",
		Needs:    showsTargets, Alone: true,
		Run: func(t *conformance.T) {
			instance, node := t.NewWorker(conformance.NodeSpec{Balanced: true})
			other, _ := t.NewWorker(conformance.NodeSpec{Balanced: true})
			svc := t.NewService()
			t.AwaitBalancer(svc, hasTarget(instance), hasTarget(other))
			setExclusionLabel(t, node.Name, `""`)
			t.AwaitBalancer(svc, lacksTarget(instance), hasTarget(other))
		},
	}, {
		ID: "lb-exclusion-label-false", Capability: conformance.CapabilityExclusionValue,
		Source:   serviceController + ": nodeIncludedPredicate (kubernetes/kubernetes#131085, v1.34)",
		Requires: "A Node whose label node.kubernetes.io/exclude-from-external-load-balancers is false is a target.",
		Needs:    showsTargets, Alone: true,
		Run: func(t *conformance.T) {
			instance, node := t.NewWorker(conformance.NodeSpec{Balanced: true})
			other, _ := t.NewWorker(conformance.NodeSpec{Balanced: true})
			svc := t.NewService()
			setExclusionLabel(t, node.Name, `"true"`)
			t.AwaitBalancer(svc, lacksTarget(instance), hasTarget(other))
			setExclusionLabel(t, node.Name, `"false"`)
			t.AwaitBalancer(svc, hasTarget(instance), hasTarget(other))
		},
	}, {
		ID: "lb-autoscaler-taint", Source: serviceController + ": nodeUnTaintedPredicate",
		Requires: "A Node that the cluster autoscaler is about to remove, which its taint ToBeDeletedByClusterAutoscaler says, is no target of a new balancer; when the taint has gone, it is one at the latest when another Node comes.",
		Needs:    showsTargets, Alone: true,
		Run: lbAutoscalerTaint,
	}, {
		ID: "lb-two-nodes-of-one-instance", Capability: conformance.CapabilityDuplicateNodes,
		Source:   fromNodeSet + "; " + fromUpdate,
		Requires: "Two Nodes with the provider ID of one instance keep no Service from its balancer, of which the instance is a target until the last of them goes.",
		Needs:    showsTargets, Alone: true,
		Run: lbTwoNodesOfOneInstance,
	},
}

// toBeDeleted is the taint that the cluster autoscaler gives to a Node that it is about to remove.
var toBeDeleted = corev1.Taint{Key: "ToBeDeletedByClusterAutoscaler", Effect: corev1.TaintEffectNoSchedule}

func lbAutoscalerTaint(t *conformance.T) {
	leaving, node := t.NewWorker(conformance.NodeSpec{Balanced: true})
	t.Must(nodehelpers.AddOrUpdateTaintOnNode(t.Kube, node.Name, &toBeDeleted), "tainting Node %s", node.Name)
	// Upstream changes no balancer because of the taint alone. When a later Node is initialised, the
	// CCM knows of the taint.
	staying, _ := t.NewWorker(conformance.NodeSpec{Balanced: true})
	svc := t.NewService()
	t.AwaitBalancer(svc, lacksTarget(leaving), hasTarget(staying))

	tainted, err := t.GetNode(t.Context(), node.Name)
	t.Must(err, "reading Node %s", node.Name)
	t.Must(nodehelpers.RemoveTaintOffNode(t.Kube, node.Name, tainted, &toBeDeleted), "untainting Node %s", node.Name)
	another, _ := t.NewWorker(conformance.NodeSpec{Balanced: true})
	t.AwaitBalancer(svc, hasTarget(leaving), hasTarget(staying), hasTarget(another))
}

func lbTwoNodesOfOneInstance(t *conformance.T) {
	instance, node := t.NewWorker(conformance.NodeSpec{Balanced: true})
	other, _ := t.NewWorker(conformance.NodeSpec{Balanced: true})
	twin := t.NewNode(conformance.NodeSpec{Name: t.Name("twin"), ProviderID: instance.ProviderID, Balanced: true})
	t.AwaitInitialized(twin.Name)
	svc := t.NewService()
	t.AwaitBalancer(svc, hasTarget(instance), hasTarget(other), listensFor(t, svc))

	deleteNode(t, twin.Name)
	// When the next one is a target, the CCM knows that the twin has gone.
	joined, _ := t.NewWorker(conformance.NodeSpec{Balanced: true})
	t.HoldsUntil("the instance of Node "+node.Name+" is to stay a target", func(ctx context.Context) error {
		found, err := t.BalancersOf(ctx, svc)
		for _, b := range found {
			err = errors.Join(err, hasTarget(instance)(b))
		}
		return err
	}, "the Node that joined to be a target", checkOneBalancer(t, svc, hasTarget(joined)))
	deleteNode(t, node.Name)
	t.AwaitBalancer(svc, lacksTarget(instance), hasTarget(other))
}

// hasTarget checks that the instance is among the balancer's targets, once.
func hasTarget(i conformance.Instance) func(conformance.Balancer) error {
	return func(b conformance.Balancer) error {
		times := 0
		for _, id := range b.Targets {
			if id == i.ID {
				times++
			}
		}
		if times != 1 {
			return fmt.Errorf("balancer %s has targets %v, among which %s (%s) is %d times", b.ID, b.Targets, i.ID,
				i.NodeName, times)
		}
		return nil
	}
}

// lacksTarget checks that the instance is not among the balancer's targets.
func lacksTarget(i conformance.Instance) func(conformance.Balancer) error {
	return func(b conformance.Balancer) error {
		if slices.Contains(b.Targets, i.ID) {
			return fmt.Errorf("balancer %s has targets %v, among which is %s (%s)", b.ID, b.Targets, i.ID, i.NodeName)
		}
		return nil
	}
}
