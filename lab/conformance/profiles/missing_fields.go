package profiles

// Answers from which fields are missing: what is missing is not empty, so that nothing is taken away for it.

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"

	"github.com/ccmlab/ccmlab/lab/conformance"
)

// missingFieldTests are about each group of fields that a cloud's API has of instances, balancers and routes.
var missingFieldTests = []conformance.Test{
	{
		ID: "lifecycle-doubt-missing-fields", Capability: conformance.CapabilityDoubtfulInstances,
		Source: instanceExists + ": what is not known is an error; " + metadata,
		Requires: "While the cloud's answers leave out an instance's addresses, zone, type or tags, no Node is deleted or " +
			"loses what it has, whether the CCM starts or runs; one that joins meanwhile is initialised with all of it in the end.",
		Needs:    faultFeatures(conformance.FaultMissingInstanceAddresses),
		Compares: faultFeatures(conformance.MissingFieldKinds(conformance.Instances)...),
		Alone:    true, Bound: 3 * time.Minute,
		Run: missingInstanceFields,
	}, {
		ID: "lb-doubt-missing-fields", Capability: conformance.CapabilityDoubtfulBalancers,
		Source: fromEnsure + "; k8s.io/cloud-provider cloud.go: LoadBalancer.GetLoadBalancer " +
			"(\"whether the specified load balancer exists, and if so, what its status is\")",
		Requires: "While the cloud's answers leave out a balancer's address or listeners, a Service keeps its balancer and " +
			"its address and gets no second one, whether the CCM starts or runs; a change is followed in the end.",
		Needs:    faultFeatures(conformance.FaultMissingBalancerAddress),
		Compares: faultFeatures(conformance.MissingFieldKinds(conformance.Balancers)...),
		Alone:    true, Bound: 3 * time.Minute,
		Run: missingBalancerFields,
	}, {
		ID: "route-doubt-missing-fields", Capability: conformance.CapabilityDoubtfulRoutes, Source: fromListRoutes,
		Requires: "While the cloud's answers leave out a route's instance or destination, no route is deleted or made " +
			"twice, whether the CCM starts or runs; a Node that joins meanwhile gets its route in the end.",
		Needs:    append(faultFeatures(conformance.FaultMissingRouteDestination), someRoutes...),
		Compares: faultFeatures(conformance.MissingFieldKinds(conformance.Routes)...), Alone: true, Bound: 3 * time.Minute,
		Run: missingRouteFields,
	},
}

// forEachMissingField calls round for each group of fields of a thing that the cloud can leave out: first while the
// CCM is stopped, and then while it runs, where it may remember all that it needs. round calls restart, and lifts the
// fault.
func forEachMissingField(t *conformance.T, thing conformance.Thing, round func(conformance.Injection, func())) {
	for _, starts := range []bool{true, false} {
		for _, kind := range conformance.MissingFieldKinds(thing) {
			if !t.HasFeature(conformance.FaultFeature(kind)) {
				continue
			}
			restart := func() {}
			if starts {
				restart = stopCCM(t)
			}
			fault := injectFault(t, "injecting "+string(kind), kind, thing)
			if !starts {
				t.AllowUnmet(fault)
			}
			round(fault, restart)
		}
	}
}

func missingInstanceFields(t *conformance.T) {
	kept := newFleet(t, 2)
	for _, w := range kept {
		t.Await("Node "+w.Name+" to have all that its instance has", w.checkWhole)
	}
	kept[0].NotReady()
	holds := allHold(kept[0].checkWhole, kept[1].checkWhole, kept.checkNodesKept)
	forEachMissingField(t, conformance.Instances, func(fault conformance.Injection, restart func()) {
		joins := newJoiningWorker(t)
		asked := eitherHolds(checkFaultHits(t, fault, t.Attempts+1), joins.checkInitialized)
		restart()
		const what = "Nodes are to keep what they have, and none is to be initialised in part"
		held := allHold(holds, joins.checkNodeExists, joins.checkLabelsIfInitialized)
		t.HoldsUntil(what, held, "the CCM to have asked for instances", asked)
		liftFault(t, fault)
		t.HoldsUntil(what, held, "Node "+joins.Name+" to be initialised with all that its instance has", joins.checkWhole)
	})
}

// checkWhole returns an error unless the Node is initialised, and has its instance's provider ID, labels and addresses.
func (w worker) checkWhole(ctx context.Context) error {
	if err := w.checkInitialized(ctx); err != nil {
		return err
	}
	node, err := w.t.GetNode(ctx, w.Name)
	if err != nil {
		return err
	}
	for of, want := range map[corev1.NodeAddressType][]string{
		corev1.NodeInternalIP: w.instance.InternalIPs, corev1.NodeExternalIP: w.instance.ExternalIPs,
	} {
		if have := addressesOf(node, of); !hasSameAddresses(have, want) {
			return fmt.Errorf("node %s has the %s addresses %v, want %v", w.Name, of, have, want)
		}
	}
	return w.checkLabels(node)
}

// checkLabelsIfInitialized returns an error if the Node is initialised without its instance's labels. Its addresses may
// come a moment later.
func (w worker) checkLabelsIfInitialized(ctx context.Context) error {
	node, err := w.t.Initialized(ctx, w.Name)
	if err != nil {
		return nil //nolint:nilerr // It is not initialised, or cannot be seen.
	}
	return w.checkLabels(node)
}

func (w worker) checkLabels(node *corev1.Node) error {
	want := map[string]string{}
	if w.t.HasFeature(conformance.FeatureZones) {
		want[corev1.LabelTopologyZone], want[corev1.LabelTopologyRegion] = w.instance.Zone, w.instance.Region
	}
	if w.t.HasFeature(conformance.FeatureInstanceTypes) {
		want[corev1.LabelInstanceTypeStable] = w.instance.Type
	}
	for key, value := range want {
		if node.Labels[key] != value {
			return fmt.Errorf("node %s has label %s=%q, want %q", w.Name, key, node.Labels[key], value)
		}
	}
	return nil
}

// missingBalancerFields reconciles one Service for which there is nothing to change: what the CCM knows of its balancer
// is what it has read. Another one's port changes, which shows that the CCM has come so far.
func missingBalancerFields(t *conformance.T) {
	services, ids := []*corev1.Service{t.NewService(), t.NewService()}, map[string]string{}
	before := map[string]corev1.LoadBalancerStatus{}
	for _, svc := range services {
		ids[svc.Name] = t.AwaitBalancer(svc, listensFor(t, svc)).ID
		now, err := t.GetService(t.Context(), svc)
		t.Must(err, "reading Service %s", svc.Name)
		before[svc.Name] = now.Status.LoadBalancer
	}
	holds := func(ctx context.Context) error {
		for _, svc := range services {
			now, err := t.GetService(ctx, svc)
			if err == nil && !assert.ObjectsAreEqual(before[svc.Name], now.Status.LoadBalancer) {
				err = fmt.Errorf("service %s had %v, and has %v", svc.Name, before[svc.Name], now.Status.LoadBalancer)
			}
			if err != nil {
				return err
			}
		}
		return checkBalancersKept(ctx, t, ids, services)
	}
	same, changed := services[0], services[1]
	forEachMissingField(t, conformance.Balancers, func(fault conformance.Injection, restart func()) {
		const what = "each Service is to keep its balancer and its address, and to get no other"
		promptReconcile(t, same)
		var follows func(context.Context) error
		for range 2 { // The second time it has been about the other Service, too.
			asked, warned := checkFaultHits(t, fault, t.Attempts+1), checkNewWarning(t, changed)
			changePort(t, changed)
			follows = checkOneBalancer(t, changed, listensFor(t, changed))
			restart()
			t.HoldsUntil(what, holds, "the CCM to have followed a change, or to have failed to",
				eitherHolds(asked, warned, follows))
			restart = func() {}
		}
		liftFault(t, fault)
		promptReconcile(t, changed)
		t.HoldsUntil(what, holds, "the change to be followed", follows)
	})
	for _, svc := range services {
		deleteAndAwaitGone(t, svc)
	}
}

func missingRouteFields(t *conformance.T) {
	first := newRoutedNode(t)
	names, kept := []string{first.Name}, []func(context.Context) error{first.checkRoutesKept()}
	forEachMissingField(t, conformance.Routes, func(fault conformance.Injection, restart func()) {
		joins := newNodeOfRoutes(t, t.Name("routed"), conformance.NodeSpec{})
		t.Await("the cluster to give Node "+joins.Name+" a range of pods' addresses", joins.findRanges)
		asked := eitherHolds(checkFaultHits(t, fault, t.Attempts+1), joins.checkRoutes)
		restart()
		what, holds := "the routes of Nodes "+strings.Join(names, ", ")+" are to be kept", allHold(kept...)
		t.HoldsUntil(what, holds, "the CCM to have looked at the routes", asked)
		liftFault(t, fault)
		t.HoldsUntil(what, holds, "the route to Node "+joins.Name+", which joined meanwhile", joins.checkRoutes)
		names, kept = append(names, joins.Name), append(kept, joins.checkRoutesKept())
	})
	holdsWhileOtherRoutesGo(t, "the routes of all Nodes are to be kept afterwards", allHold(kept...))
}
