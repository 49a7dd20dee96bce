package profiles

// Routes to the pods of Nodes: one for each Node's range of addresses, to its instance and no other, for as
// long as the Node exists, and nobody else's is touched. The tests look at the cloud's records only: no
// packet need flow.

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"sync"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/ccmlab/ccmlab/lab/conformance"
)

const (
	fromRoutes       = "k8s.io/cloud-provider cloud.go: Routes"
	fromListRoutes   = "k8s.io/cloud-provider cloud.go: Routes.ListRoutes (\"all managed routes that belong to the specified clusterName\")"
	routeController  = "k8s.io/cloud-provider controllers/route"
	fromRouteConcept = "kubernetes.io: Cloud Controller Manager, Route controller"
)

var someRoutes = []conformance.Feature{conformance.FeatureRoutes}

var routeTests = append([]conformance.Test{
	{
		ID: "route-to-node", Capability: conformance.CapabilityPodRoutes,
		Source:   fromRouteConcept + "; " + fromRoutes,
		Requires: "A Node that is given a range of pods' addresses gets a route for it, to its instance.",
		Needs:    someRoutes,
		Run:      func(t *conformance.T) { newRoutedNode(t) },
	}, {
		ID: "route-network-available", Capability: conformance.CapabilityPodRoutes,
		Source: "kubernetes.io: Node Status, Conditions (NetworkUnavailable); " + routeController +
			": updateNetworkingCondition",
		Requires: "The condition NetworkUnavailable of a Node is False, with the reason RouteCreated, once there is its route, and not before.",
		Needs:    someRoutes,
		Run: func(t *conformance.T) {
			r := newNodeWithRange(t)
			r.awaitNetworkAvailable()
		},
	}, {
		ID: "route-for-each-node", Capability: conformance.CapabilityPodRoutes, Source: routeController,
		Requires: "Each of several Nodes has a route of its own; when one Node is deleted its route goes, and the others' stay.",
		Needs:    someRoutes,
		Bound:    time.Minute, // Twice what upstream's default period of 10 s takes at most, three times in a row.
		Run: func(t *conformance.T) {
			stays, leaves := newRoutedNode(t), newRoutedNode(t)
			assert.NotEqual(t, stays.ranges, leaves.ranges)
			t.Must(stays.checkRoutes(t.Context()), "when there is a second Node")
			same := stays.checkRoutesKept()
			deleteNode(t, leaves.Name)
			t.HoldsUntil(
				"the route of Node "+stays.Name+" is to stay", same, "the route of Node "+leaves.Name+" to go",
				leaves.checkNoRoute,
			)
		},
	}, {
		ID: "route-of-new-instance", Capability: conformance.CapabilityPodRoutes, Source: routeController,
		Requires: "When a Node registers again, for a new instance of its name, its route leads to the new instance.",
		Needs:    []conformance.Feature{conformance.FeatureRoutes, conformance.FeatureNodeNames},
		Run: func(t *conformance.T) {
			before := newRoutedNode(t)
			before.terminateInstance()
			t.AwaitNoNode(before.Name)
			t.Await("the route to go with the Node", before.checkNoRoute)
			after := newNodeOfRoutes(t, before.Name, conformance.NodeSpec{})
			t.Await("the cluster to give it a range", after.findRanges)
			after.awaitRoutes()
		},
	}, {
		ID: "route-deleted-out-of-band", Capability: conformance.CapabilityPodRoutes,
		Source:   routeController + ": reconcile; KEP-5237 Watch-based route controller reconciliation",
		Requires: "A route that was deleted behind the CCM's back is made again, at the latest when another Node comes.",
		Needs:    someRoutes,
		Run: func(t *conformance.T) {
			r := newRoutedNode(t)
			t.Must(t.Cloud.DeleteRoute(t.Context(), r.theRoute().ID), "deleting the route to Node %s", r.Name)
			newNodeWithRange(t) // A CCM that looks only when Nodes change looks now.
			r.awaitRoutes()
		},
	}, {
		ID: "route-diverted", Capability: conformance.CapabilityPodRoutes,
		Source: "k8s.io/cloud-provider cloud.go: Route.TargetNode (\"the NodeName of the target instance\"), Route.Blackhole; " +
			routeController + ": reconcile",
		Requires: "A route that was made to lead to another instance behind the CCM's back leads to its Node's again, at the latest when another Node comes.",
		Needs:    []conformance.Feature{conformance.FeatureRoutes, conformance.FeatureDivertRoutes},
		Run: func(t *conformance.T) {
			r, other := newRoutedNode(t), newRoutedNode(t)
			err := t.Cloud.DivertRoute(
				t.Context(), r.theRoute().ID, conformance.RouteDiversion{InstanceID: other.instance.ID})
			t.Must(err, "diverting the route to Node %s", r.Name)
			newNodeWithRange(t)
			r.awaitRoutes()
			t.Must(other.checkRoutes(t.Context()), "the Node that it led to for a while")
		},
	}, {
		ID: "route-of-stranger", Capability: conformance.CapabilityPodRoutes,
		Source:   fromListRoutes + "; " + routeController + ": isResponsibleForRoute",
		Requires: "A route that is somebody else's is left alone, be it within the range of the cluster's pods or not.",
		Needs:    []conformance.Feature{conformance.FeatureRoutes, conformance.FeatureStrangerRoutes},
		Run: func(t *conformance.T) {
			testForeignRoutes(t, "198.51.100.0/24", t.Cloud.CreateForeignRoute)
		},
	}, {
		ID: "route-of-namesake-cluster", Capability: conformance.CapabilityNamesakeClusters,
		Source: "k8s.io/cloud-provider config: KubeCloudSharedConfiguration.ClusterName, which every cluster has by " +
			"default; " + routeController + ": reconcile (what is listed and no Node wants is deleted)",
		Requires: "A route of another cluster that has the same name, in the same project, is left alone, though no Node here wants it.",
		Needs:    []conformance.Feature{conformance.FeatureRoutes, conformance.FeatureNamesakeRoutes},
		Run: func(t *conformance.T) {
			testForeignRoutes(t, "192.0.2.0/24", t.Cloud.CreateNamesakeRoute)
		},
	}, {
		ID: "route-outside-cluster-cidr", Capability: conformance.CapabilityPodRoutes,
		Source: routeController + ": reconcile (a route for each of spec.podCIDRs, whatever --cluster-cidr is), " +
			"isResponsibleForRoute (which bounds deletions alone)",
		Requires: "A Node whose range of pods' addresses is outside of the cluster's gets a route for it as others do, and its condition NetworkUnavailable becomes False.",
		Needs:    someRoutes,
		Run:      routeOutsideClusterCIDR,
	}, {
		ID: "route-of-changed-range", Capability: conformance.CapabilityPodRoutes,
		Source:   routeController + ": reconcile (a route for each of spec.podCIDRs, and none that no Node wants)",
		Requires: "When a Node registers again, for the same instance and with another range of pods' addresses, that gets its route, and the route for the former range goes.",
		Needs:    someRoutes,
		Run:      routeOfChangedRange,
	}, {
		ID: "route-of-foreign-node", Capability: conformance.CapabilityForeignNodes,
		Source: "kubernetes.io: Node Status, Conditions (NetworkUnavailable: \"True if the network for the node is not correctly configured\"); " +
			"k8s.io/cloud-provider cloud.go: Route.TargetNode (\"the NodeName of the target instance\")",
		Requires: "A Node with another cloud's provider ID, to which no route can lead here, does not become NetworkUnavailable.",
		Needs:    someRoutes,
		Run: func(t *conformance.T) {
			r := routedNode{worker: newForeignNode(t)}
			t.Await("the cluster to give Node "+r.Name+" a range of pods' addresses", r.findRanges)
			holdsWhileOtherRoutesGo(t, "Node "+r.Name+" is not to become NetworkUnavailable", r.checkNotUnavailable)
		},
	}, {
		ID: "route-of-stranger-to-ended-instance", Capability: conformance.CapabilityPodRoutes,
		Source:   fromListRoutes + "; " + routeController + ": reconcileNodeRoutes (without a list no route is made or deleted)",
		Requires: "Somebody else's route to an instance that has ended is left alone, and the cluster's routes are made and deleted as ever.",
		Needs: []conformance.Feature{
			conformance.FeatureRoutes, conformance.FeatureStrangerRoutes, conformance.FeatureBlackholes,
		},
		Run: routeOfStrangerToEndedInstance,
	}, {
		ID: "route-create-fails", Capability: conformance.CapabilityPodRoutes,
		Source:   routeController + ": reconcile, updateNetworkingCondition; " + fromRoutes + ".CreateRoute",
		Requires: "A Node whose route is refused with 409, 412 or 500, or is made without an answer, has that route in the end, once, and does not say before that its network is there.",
		Needs:    slices.Concat(someRoutes, faultFeatures(createFailures...)), Alone: true, Bound: 3 * time.Minute,
		Run: routeCreateFails,
	}, {
		ID: "route-not-ready-is-kept", Capability: conformance.CapabilityPodRoutes,
		Source:   routeController + ": reconcile (a route goes when no Node wants it)",
		Requires: "The route of a Node that is not Ready, and whose instance runs, is kept.",
		Needs:    someRoutes,
		Run: func(t *conformance.T) {
			r := newRoutedNode(t)
			same := r.checkRoutesKept()
			r.NotReady()
			holdsWhileOtherRoutesGo(t, "the route of Node "+r.Name+" is to be kept", same)
		},
	}, {
		ID: "route-stopped-is-kept", Capability: conformance.CapabilityQuiet,
		Source: "k8s.io/cloud-provider cloud.go: Route.Blackhole; " + routeController +
			": reconcile (a blackhole is deleted, and made again as long as its Node is there)",
		Requires: "The route of a Node whose instance is stopped is there when the instance runs again, and is not deleted and made again meanwhile.",
		Needs:    someRoutes,
		Run:      routeStoppedIsKept,
	}, {
		ID: "route-of-node-deleted-while-ccm-down", Capability: conformance.CapabilityPodRoutes,
		Source:   routeController + ": reconcile",
		Requires: "The route of a Node that was deleted while no CCM ran goes when one runs, and a Node that came meanwhile gets its own.",
		Needs:    someRoutes, Alone: true,
		Run: func(t *conformance.T) {
			leaves, stays := newRoutedNode(t), newRoutedNode(t)
			same := stays.checkRoutesKept()
			restart := stopCCM(t)
			deleteNode(t, leaves.Name)
			t.Must(leaves.checkRoutes(t.Context()), "no CCM runs")
			restart()
			t.HoldsUntil(
				"the route of Node "+stays.Name+" is to stay", same, "the route of Node "+leaves.Name+" to go",
				leaves.checkNoRoute,
			)
			newRoutedNode(t)
		},
	}, {
		ID: "route-refused-is-tried-again", Capability: conformance.CapabilityPodRoutes,
		Source:   routeController + ": reconcile, updateNetworkingCondition",
		Requires: "While the cloud refuses a Node's route, its condition NetworkUnavailable is not False; once it does not, the Node gets its route.",
		Needs:    []conformance.Feature{conformance.FeatureRoutes, conformance.FeatureRouteQuota}, Alone: true,
		Run: func(t *conformance.T) {
			before := newRoutedNode(t)
			r, lift := newRefusedNode(t)
			// The CCM has tried when it has seen to a Node that went afterwards.
			leaving := deleteAndCheckRoutes([]routedNode{before})
			t.HoldsUntil(
				"what Node "+r.Name+" says of its network is to be true", r.checkNetworkReport,
				"the CCM to have looked at all routes", leaving,
			)
			lift()
			r.awaitNetworkAvailable()
		},
	}, {
		ID: "route-refused-says-why", Capability: conformance.CapabilityExplains,
		Source:   fromDebugging + "; " + routeController + ": FailedToCreateRoute",
		Requires: "While the cloud refuses a Node's route, a Warning Event on the Node says so.",
		Needs:    []conformance.Feature{conformance.FeatureRoutes, conformance.FeatureRouteQuota}, Alone: true,
		Run: func(t *conformance.T) {
			r, lift := newRefusedNode(t)
			t.Await("a Warning on Node "+r.Name+" about its route",
				checkEventAbout(t, r.Name, corev1.EventTypeWarning, aboutRoutes))
			lift()
			r.awaitRoutes()
		},
	},
}, routeDoubtTests()...)

// aboutRoutes matches an Event that tells of a route.
var aboutRoutes = regexp.MustCompile(`(?i)route`)

// routedNode is a worker and the ranges of its pods' addresses.
type routedNode struct {
	worker
	ranges []netip.Prefix
}

// newNodeOfRoutes returns a worker whose Node is registered. Routes that the CCM leaves are deleted after the
// test: the range will be another Node's.
func newNodeOfRoutes(t *conformance.T, name string, spec conformance.NodeSpec) routedNode {
	instance := t.NewInstance(name)
	t.Cleanup(func(ctx context.Context) error { return removeRoutes(ctx, t, instance) })
	return routedNode{worker: worker{t: t, instance: instance, StandIn: t.NewNodeOf(instance, spec)}}
}

// newNodeWithRange returns a worker that has its ranges; its routes may be missing yet.
func newNodeWithRange(t *conformance.T) routedNode {
	r := newNodeOfRoutes(t, t.Name("routed"), conformance.NodeSpec{})
	t.Await("the cluster to give Node "+r.Name+" a range of pods' addresses", r.findRanges)
	t.AwaitInitialized(r.Name)
	return r
}

// newRoutedNode returns a worker that has its ranges and its routes.
func newRoutedNode(t *conformance.T) routedNode {
	r := newNodeWithRange(t)
	r.awaitRoutes()
	return r
}

func removeRoutes(ctx context.Context, t *conformance.T, instance conformance.Instance) error {
	routes, err := t.Cloud.ListRoutes(ctx)
	for _, r := range routes {
		if r.InstanceID == instance.ID {
			err = errors.Join(err, t.Cloud.DeleteRoute(ctx, r.ID))
		}
	}
	return err
}

// findRanges sets the ranges that the cluster has given the Node. It returns an error while there are none.
func (r *routedNode) findRanges(ctx context.Context) error {
	n, err := r.t.GetNode(ctx, r.Name)
	if err != nil {
		return err
	}
	r.ranges = nil
	for _, cidr := range n.Spec.PodCIDRs {
		p, err := netip.ParsePrefix(cidr)
		if err != nil {
			return err
		}
		r.ranges = append(r.ranges, p.Masked())
	}
	if len(r.ranges) == 0 {
		return errors.New("it has none")
	}
	return nil
}

// routesTo returns the cluster's routes for a range.
func routesTo(ctx context.Context, t *conformance.T, want netip.Prefix) ([]conformance.Route, error) {
	all, err := t.Cloud.ListRoutes(ctx)
	if err != nil {
		return nil, err
	}
	var found []conformance.Route
	for _, r := range all {
		p, err := netip.ParsePrefix(r.Destination)
		if err != nil {
			return nil, fmt.Errorf("route %s: %w", r.ID, err)
		}
		if p.Masked() == want {
			found = append(found, r)
		}
	}
	return found, nil
}

// checkRoutes returns an error unless each of the Node's ranges has exactly one route, to its instance.
func (r routedNode) checkRoutes(ctx context.Context) error {
	for _, p := range r.ranges {
		found, err := routesTo(ctx, r.t, p)
		switch {
		case err != nil:
			return err
		case len(found) != 1:
			return fmt.Errorf("for %s of Node %s there are %d routes, want one: %v", p, r.Name, len(found), found)
		case found[0].InstanceID != r.instance.ID:
			return fmt.Errorf(
				"the route for %s of Node %s leads to %s, want %s", p, r.Name, found[0].InstanceID, r.instance.ID,
			)
		}
	}
	return nil
}

// checkRoutesKept returns an error unless each of the Node's ranges has the route that it has now. A route that
// was deleted and made again fails: it may have been missed meanwhile.
func (r routedNode) checkRoutesKept() func(context.Context) error {
	routes := func(ctx context.Context) (all []conformance.Route, err error) {
		for _, p := range r.ranges {
			found, err := routesTo(ctx, r.t, p)
			if err != nil {
				return nil, err
			}
			all = append(all, found...)
		}
		return all, nil
	}
	before, err := routes(r.t.Context())
	r.t.Must(err, "looking at the routes to Node %s", r.Name)
	return func(ctx context.Context) error {
		now, err := routes(ctx)
		if err == nil && !assert.ObjectsAreEqual(before, now) {
			err = fmt.Errorf("the routes of Node %s were %v, and are %v", r.Name, before, now)
		}
		return err
	}
}

func (r routedNode) awaitRoutes() { r.t.Await("the route to Node "+r.Name, r.checkRoutes) }

// checkNoRoute returns an error while any of the Node's ranges has a route.
func (r routedNode) checkNoRoute(ctx context.Context) error {
	for _, p := range r.ranges {
		found, err := routesTo(ctx, r.t, p)
		if err == nil && len(found) > 0 {
			err = fmt.Errorf("for %s, which Node %s had, there is still a route: %v", p, r.Name, found)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// theRoute returns the route for the Node's first range.
func (r routedNode) theRoute() conformance.Route {
	found, err := routesTo(r.t.Context(), r.t, r.ranges[0])
	r.t.Must(err, "looking at the route to Node %s", r.Name)
	require.Len(r.t, found, 1)
	return found[0]
}

// networkAvailable tells whether the Node's condition NetworkUnavailable is False.
func (r routedNode) networkAvailable(ctx context.Context) (bool, error) {
	node, err := r.t.GetNode(ctx, r.Name)
	if err != nil {
		return false, err
	}
	for _, c := range node.Status.Conditions {
		if c.Type == corev1.NodeNetworkUnavailable && c.Status == corev1.ConditionFalse {
			if c.Reason != "RouteCreated" {
				return true, fmt.Errorf(
					"its condition NetworkUnavailable is False for the reason %q, want RouteCreated", c.Reason,
				)
			}
			return true, nil
		}
	}
	return false, nil
}

// checkNotUnavailable returns an error if the Node says that its network is not there.
func (r routedNode) checkNotUnavailable(ctx context.Context) error {
	node, err := r.t.GetNode(ctx, r.Name)
	if err != nil {
		return err
	}
	for _, c := range node.Status.Conditions {
		if c.Type == corev1.NodeNetworkUnavailable && c.Status == corev1.ConditionTrue {
			return fmt.Errorf("its condition NetworkUnavailable is True: %s: %s", c.Reason, c.Message)
		}
	}
	return nil
}

func (r routedNode) checkNetworkAvailable(ctx context.Context) error {
	ok, err := r.networkAvailable(ctx)
	if err == nil && !ok {
		err = errors.New("its condition NetworkUnavailable is not False")
	}
	return err
}

// checkNetworkReport returns an error when the Node says that its network is there, and it is not.
func (r routedNode) checkNetworkReport(ctx context.Context) error {
	ok, err := r.networkAvailable(ctx)
	if err != nil || !ok {
		return err
	}
	if err := r.checkRoutes(ctx); err != nil {
		return fmt.Errorf("its condition NetworkUnavailable is False, and %w", err)
	}
	return nil
}

// awaitNetworkAvailable waits for the Node to say that its network is there, which must be true.
func (r routedNode) awaitNetworkAvailable() {
	r.t.HoldsUntil("what Node "+r.Name+" says of its network is to be true", r.checkNetworkReport,
		"it to say that its network is there", r.checkNetworkAvailable)
}

// holdsWhileOtherRoutesGo watches that something holds until the CCM has had its chance to break it: until the
// routes of two deleted Nodes are gone. The second Node is deleted when the first one's route is gone, so that
// the CCM has looked at all routes in between.
func holdsWhileOtherRoutesGo(t *conformance.T, what string, holds func(context.Context) error) {
	for range 2 {
		control := newRoutedNode(t)
		deleteNode(t, control.Name)
		t.HoldsUntil(what, holds, "the route of Node "+control.Name+", which was deleted, to go", control.checkNoRoute)
	}
}

// deleteAndCheckRoutes deletes the Nodes one after the other, each when the routes of the one before are gone,
// and returns an error until all are.
func deleteAndCheckRoutes(leaving []routedNode) func(context.Context) error {
	var leave []func()
	for _, r := range leaving {
		leave = append(leave, sync.OnceFunc(func() { deleteNode(r.t, r.Name) }))
	}
	return func(ctx context.Context) error {
		for i, r := range leaving {
			leave[i]()
			if err := r.checkNoRoute(ctx); err != nil {
				return err
			}
		}
		return nil
	}
}

// testForeignRoutes checks that routes made by create are left alone: one within the pods' range, and one
// beyond it. Each test has its own range beyond, of RFC 5737: a cloud refuses two routes for one destination.
func testForeignRoutes(
	t *conformance.T,
	beyond string,
	create func(context.Context, conformance.ForeignRoute) (conformance.Route, error),
) {
	// Within the pods' range, the CCM would take for its own what a Node that has
	// gone had.
	former := newRoutedNode(t)
	deleteNode(t, former.Name)
	t.Await("the route to go with the Node", former.checkNoRoute)
	var strangers []conformance.Route
	for _, destination := range []string{former.ranges[0].String(), beyond} {
		r, err := create(t.Context(), conformance.ForeignRoute{
			Destination: destination, InstanceID: former.instance.ID,
		})
		t.Must(err, "making somebody else's route for %s", destination)
		t.Cleanup(func(ctx context.Context) error { return t.Cloud.DeleteRoute(ctx, r.ID) })
		strangers = append(strangers, r)
	}
	holdsWhileOtherRoutesGo(t, "somebody else's routes are to be left alone", checkSameRoutes(t, strangers...))
}

// checkSameRoutes returns an error once one of these routes is gone or changed.
func checkSameRoutes(t *conformance.T, routes ...conformance.Route) func(context.Context) error {
	return func(ctx context.Context) error {
		for _, want := range routes {
			now, there, err := t.Cloud.GetRoute(ctx, want.ID)
			if err == nil && !there {
				err = fmt.Errorf("the one for %s is gone", want.Destination)
			}
			if err == nil && now != want {
				err = fmt.Errorf("%v has become %v", want, now)
			}
			if err != nil {
				return err
			}
		}
		return nil
	}
}

func routeOfStrangerToEndedInstance(t *conformance.T) {
	instance := t.NewInstance(t.Name("ended"))
	stranger, err := t.Cloud.CreateForeignRoute(
		t.Context(), conformance.ForeignRoute{Destination: "198.18.1.0/24", InstanceID: instance.ID})
	t.Must(err, "making somebody else's route to instance %s", instance.ID)
	t.Cleanup(func(ctx context.Context) error { return t.Cloud.DeleteRoute(ctx, stranger.ID) })
	t.Must(t.Cloud.TerminateInstance(t.Context(), instance.ID), "terminating instance %s", instance.ID)
	untouched := checkSameRoutes(t, stranger)
	if err := untouched(t.Context()); err != nil {
		t.NotMade("the route is to stay when its instance has ended: %w", err)
	}
	holdsWhileOtherRoutesGo(t, "somebody else's route is to be left alone", untouched)
}

func routeStoppedIsKept(t *conformance.T) {
	r := newRoutedNode(t)
	same := r.checkRoutesKept()
	r.stopInstance()
	t.HoldsUntil(
		"the route of Node "+r.Name+" is to be kept", same, "it to get the shutdown taint", r.checkShutdownTaint,
	)
	holdsWhileOtherRoutesGo(t, "the route of Node "+r.Name+" is to be kept", same)
	t.Must(t.Cloud.StartInstance(t.Context(), r.instance.ID), "starting instance %s", r.instance.ID)
	r.Ready()
	t.Must(same(t.Context()), "when its instance runs again")
}

// outsideCIDR is a range for documentation (RFC 5737), which no cluster has for its pods.
const outsideCIDR = "203.0.113.0/24"

// withRange has a Node register with a range of pods' addresses.
func withRange(cidr string) conformance.NodeSpec {
	return conformance.NodeSpec{Change: func(n *corev1.Node) {
		n.Spec.PodCIDR, n.Spec.PodCIDRs = cidr, []string{cidr}
	}}
}

func routeOfChangedRange(t *conformance.T) {
	const changed = "198.18.2.0/24"
	before := newRoutedNode(t)
	deleteNode(t, before.Name)
	after := before
	after.StandIn = t.NewNodeOf(before.instance, withRange(changed))
	after.ranges = []netip.Prefix{netip.MustParsePrefix(changed)}
	t.AwaitInitialized(after.Name)
	after.awaitRoutes()
	t.HoldsUntil("the route for "+changed+" is to stay", after.checkRoutesKept(),
		"the route for the former range to go", before.checkNoRoute)
}

// createFailures are what becomes of the call that makes a route.
var createFailures = []conformance.FaultKind{
	conformance.FaultConflict, conformance.FaultPrecondition, conformance.FaultServerError, conformance.FaultLost,
}

func routeCreateFails(t *conformance.T) {
	var each []func(context.Context) error
	for _, kind := range createFailures {
		fault := injectFaultOf(t, "having routes fail with "+string(kind), conformance.Fault{
			Kind: kind, On: []conformance.Thing{conformance.Routes}, Writes: true,
		})
		calls := t.Attempts + 1 // The CCM was told, and has had its time to say of the Node what it should not.
		if kind == conformance.FaultLost {
			calls = 1
		}
		failed := checkFaultHits(t, fault, calls)
		r := newNodeWithRange(t)
		t.HoldsUntil("what Node "+r.Name+" says of its network is to be true", r.checkNetworkReport,
			"the call that makes its route to have failed", failed)
		liftFault(t, fault)
		r.awaitNetworkAvailable()
		each = append(each, r.checkRoutes)
	}
	holdsWhileOtherRoutesGo(t, "each Node is to have its route, once", allHold(each...))
}

func routeOutsideClusterCIDR(t *conformance.T) {
	r := newNodeOfRoutes(t, t.Name("routed"), withRange(outsideCIDR))
	r.ranges = []netip.Prefix{netip.MustParsePrefix(outsideCIDR)}
	t.AwaitInitialized(r.Name)
	r.awaitRoutes()
	r.awaitNetworkAvailable()
	same := r.checkRoutesKept()
	holdsWhileOtherRoutesGo(t, "the route for "+outsideCIDR+" is to be kept", same)
}

// newRefusedNode makes a Node whose route the cloud refuses until the limit is lifted.
func newRefusedNode(t *conformance.T) (r routedNode, lift func()) {
	undo, err := t.Cloud.LimitRoutes(t.Context())
	t.Must(err, "having the cloud refuse routes")
	t.Cleanup(undo.Lift)
	return newNodeWithRange(t), func() { t.Must(undo.Lift(t.Context()), "having the cloud take routes again") }
}

// routeDoubtTests returns tests of answers that do not say that a route, or the instance behind it, is gone.
func routeDoubtTests() []conformance.Test {
	doubtful := []struct {
		id, what string
		kind     conformance.FaultKind
		on       []conformance.Thing
		source   string
	}{
		{
			"unavailable", "neither routes nor instances can be asked for", conformance.FaultUnavailable,
			[]conformance.Thing{conformance.Routes, conformance.Instances},
			fromListRoutes + ": what is no answer is an error",
		},
		{
			"empty-list", "the list of routes has nothing in it", conformance.FaultEmptyList,
			[]conformance.Thing{conformance.Routes}, fromListRoutes,
		},
		{
			"no-instances", "the list of instances has nothing in it", conformance.FaultEmptyList,
			[]conformance.Thing{conformance.Instances},
			"k8s.io/cloud-provider cloud.go: Route.Blackhole (\"The node controller will delete the route\")",
		},
	}
	var tests []conformance.Test
	for _, d := range doubtful {
		tests = append(tests, conformance.Test{
			ID: "route-doubt-" + d.id,
			Requires: "The routes of Nodes are neither deleted nor made twice while " + d.what +
				", not even by a CCM that has just started, nor afterwards.",
			Capability: conformance.CapabilityPodRoutes, Source: d.source,
			Needs: []conformance.Feature{conformance.FeatureRoutes, conformance.FaultFeature(d.kind)}, Alone: true,
			Bound: 3 * time.Minute,
			Run:   func(t *conformance.T) { routeDoubt(t, d.kind, d.on) },
		})
	}
	return tests
}

// routeDoubt restarts the CCM while the answers are doubtful, so that it remembers nothing. The CCM has had its
// chance when it works all the same, or has looked at the routes often enough.
func routeDoubt(t *conformance.T, kind conformance.FaultKind, on []conformance.Thing) {
	kept, leaving := newRoutedNode(t), []routedNode{newRoutedNode(t), newRoutedNode(t)}
	same := kept.checkRoutesKept()
	restart := stopCCM(t)
	faults := map[conformance.Thing]conformance.Injection{}
	for _, thing := range on { // Each on its own, or calls about one would be counted for another.
		faults[thing] = injectFault(t, "injecting "+string(kind), kind, thing)
		if len(faults) > 1 { // A CCM that gets no answer to one question may not ask the next.
			t.AllowUnmet(faults[thing])
		}
	}
	looked := eitherHolds(checkRoutesListed(t, faults), deleteAndCheckRoutes(leaving))
	restart()
	t.HoldsUntil(
		"the route of Node "+kept.Name+" is to be kept in doubt", same, "the CCM to have looked at all routes", looked,
	)
	for _, fault := range faults {
		liftFault(t, fault)
	}
	holdsWhileOtherRoutesGo(t, "the route of Node "+kept.Name+" is to be kept after the doubt", same)
}

// checkRoutesListed returns an error until the CCM has looked at the routes, as the calls that met a fault
// show. Where only calls about instances meet one, most of which are not made for routes, the CCM must also
// have listed the routes twice, if the cloud counts that.
func checkRoutesListed(
	t *conformance.T, faults map[conformance.Thing]conformance.Injection,
) func(context.Context) error {
	if fault, ok := faults[conformance.Routes]; ok {
		return checkFaultHits(t, fault, t.Attempts+1)
	}
	asked := checkFaultHits(t, faults[conformance.Instances], 4*(t.Attempts+1))
	if !t.HasFeature(conformance.FeatureCalls) {
		return asked
	}
	before := countCloudCalls(t).Of[conformance.Routes].Reads
	return allHold(asked, func(ctx context.Context) error {
		now, err := t.Cloud.CountCalls(ctx)
		if reads := now.Of[conformance.Routes].Reads - before; err == nil && reads < 2 {
			err = fmt.Errorf("it has asked for routes, times: %d", reads)
		}
		return err
	})
}
