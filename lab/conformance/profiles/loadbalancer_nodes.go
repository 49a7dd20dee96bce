package profiles

// Which Nodes are a balancer's targets: labels, taints and Nodes that upstream's predicates tell
// apart (k8s.io/cloud-provider controllers/service/controller.go: stableNodeSetPredicates).

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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
	}, {
		ID: "lb-cordoned-and-control-plane-nodes",
		Source: serviceController + ": stableNodeSetPredicates; kubernetes/kubernetes#90823 (v1.19); " +
			"KEP-1143 (node-role labels change no behaviour)",
		Requires: "A Node with the role control-plane, by label and taint, is a target, and one that is cordoned stays a target, also of balancers that are made later.",
		Needs:    showsTargets, Alone: true,
		Run: lbCordonedAndControlPlaneNodes,
	}, {
		ID: "lb-last-target-goes", Source: fromUpdate + "; " + serviceController + ": lockedUpdateLoadBalancerHosts",
		Requires: "When no Node may be a target any more, a balancer has none, and it is still there: the next Node that may be one becomes its target.",
		Needs:    showsTargets, Alone: true,
		Run: lbLastTargetGoes,
	},
}

func lbCordonedAndControlPlaneNodes(t *conformance.T) {
	const role = "node-role.kubernetes.io/control-plane" // As kubeadm has it.
	controlPlane, _ := t.NewWorker(conformance.NodeSpec{
		Balanced: true, Labels: map[string]string{role: "", "node-role.kubernetes.io/master": ""},
		Change: func(n *corev1.Node) {
			n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: role, Effect: corev1.TaintEffectNoSchedule})
		},
	})
	cordoned, node := t.NewWorker(conformance.NodeSpec{Balanced: true})
	svc := t.NewService()
	t.AwaitBalancer(svc, hasTarget(controlPlane), hasTarget(cordoned))
	t.Must(patchNode(t.Context(), t, node.Name, `{"spec":{"unschedulable":true}}`), "cordoning Node %s", node.Name)
	watchTargetUntilNextJoins(t, svc, cordoned)
	t.AwaitBalancer(t.NewService(), hasTarget(controlPlane), hasTarget(cordoned))
}

func lbLastTargetGoes(t *conformance.T) {
	instance, node := t.NewWorker(conformance.NodeSpec{Balanced: true})
	svc := t.NewService()
	before := t.AwaitBalancer(svc, hasTarget(instance))
	excludeAllNodes(t)
	t.AwaitBalancer(svc, leadsTo(nil), sameBalancer(before))
	setExclusionLabel(t, node.Name, `null`)
	t.AwaitBalancer(svc, leadsTo([]string{instance.ID}), sameBalancer(before), listensFor(t, svc))
}

// excludeAllNodes keeps every Node out of balancers until the test has ended.
func excludeAllNodes(t *conformance.T) {
	list, err := t.Kube.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
	t.Must(err, "listing the Nodes")
	for _, n := range list.Items {
		value, labelled := n.Labels[corev1.LabelNodeExcludeBalancers]
		if value == "true" {
			continue
		}
		before := "null"
		if labelled {
			before = strconv.Quote(value)
		}
		t.Cleanup(func(ctx context.Context) error { return patchNode(ctx, t, n.Name, exclusionPatch(before)) })
		setExclusionLabel(t, n.Name, `"true"`)
	}
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
	watchTargetUntilNextJoins(t, svc, instance)
	deleteNode(t, node.Name)
	t.AwaitBalancer(svc, lacksTarget(instance), hasTarget(other))
}

// watchTargetUntilNextJoins watches that the instance stays a target of the Service's balancer until a Node that
// joins now is one, too: by then the CCM knows what has happened to Nodes before.
func watchTargetUntilNextJoins(t *conformance.T, svc *corev1.Service, i conformance.Instance) {
	joined, _ := t.NewWorker(conformance.NodeSpec{Balanced: true})
	t.HoldsUntil("the instance of Node "+i.NodeName+" is to stay a target", func(ctx context.Context) error {
		found, err := t.BalancersOf(ctx, svc)
		for _, b := range found {
			err = errors.Join(err, hasTarget(i)(b))
		}
		return err
	}, "the Node that joined to be a target", checkOneBalancer(t, svc, hasTarget(joined)))
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
