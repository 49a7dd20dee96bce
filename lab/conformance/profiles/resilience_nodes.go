package profiles

// Incidents with instances and Nodes: the cloud's API throttles, forgets, lags, or leaves something out.

import (
	"context"
	"fmt"
	"time"

	"github.com/ccmlab/ccmlab/lab/conformance"
)

// resilienceNodeTests are incidents with instances, Nodes and credentials.
var resilienceNodeTests = []conformance.Test{
	{
		ID: "resilience-empty-instance-list", Capability: conformance.CapabilityDoubtfulInstances,
		Source: instanceExists + " (an empty list is no word about one instance); " + nodeController +
			": what fails is tried again",
		Requires: "While the cloud's lists of instances come empty, no Node is deleted, a new one neither, and that one is initialised afterwards at the latest.",
		Needs:    faultFeatures(conformance.FaultEmptyList), Alone: true,
		Bound: incidentBound,
		Run:   func(t *conformance.T) { testWrongAnswers(t, conformance.FaultEmptyList) },
		Incident: &conformance.Incident{
			Name:  "empty-instance-list",
			Title: "The list of instances comes empty",
			Happened: "The cloud answers the question for all instances with success and an empty list: a database behind it was restored, a filter was " +
				"changed, or a policy hides what the caller may no longer see. A careless CCM concludes that nothing is there, and deletes each Node that is " +
				"not Ready at that moment.",
			Danger: "A Node that is deleted takes its pods with it. Those who wait for a kubelet that is only late, during an upgrade for one, lose " +
				"workloads that were running all the time; where the CCM runs as a pod, it may go with the first of them, and its log too.",
			Watch: "In kubectl get nodes -w: three workers, of which one is NotReady, and a fourth that joins while the lists are empty. The cloud's own list, " +
				"as the operator sees it, shows all of them running.",
			Right: "It keeps all Nodes, asks for the one instance by its ID before it believes that it is gone, leaves the new Node tainted for as long as " +
				"it cannot find its instance, and initialises it when it can.",
			Known: []string{
				"https://github.com/oracle/oci-cloud-controller-manager/issues/434",
				"https://github.com/sergelogvinov/proxmox-cloud-controller-manager/issues/169",
				"https://github.com/apache/cloudstack-kubernetes-provider/issues/37",
			},
		},
	}, {
		ID:       "resilience-throttled-refresh",
		Source:   instanceExists + ": what is no answer is an error; " + nodeController + ": what fails is tried again",
		Requires: "A CCM that has just started and whose every call about instances is answered with 429 deletes no Node; one that joined meanwhile is initialised when that is over.",
		Needs:    faultFeatures(conformance.FaultThrottled), Alone: true,
		Bound: incidentBound,
		Run:   throttledRefresh,
		Incident: &conformance.Incident{
			Name:  "throttled-refresh",
			Title: "Throttled while the cache must be filled",
			Happened: "The CCM was restarted and remembers nothing. At that moment the cloud throttles its account, and every call about instances is " +
				"answered with 429. A careless CCM fails to fill its cache, goes on with the empty one, and takes what is not in it for gone.",
			Danger: "Clusters that grow are hit: what uses up the rate limit is the very burst of new machines, and theirs are the Nodes that are not in " +
				"the cache and not Ready yet. They are deleted as fast as they join, and their kubelets do not register again by themselves.",
			Watch: "In kubectl get nodes -w: three workers, one of them NotReady, and a fourth that joins and is not Ready yet. In the cloud's audit, each of " +
				"the CCM's calls about instances ends with 429.",
			Right: "It takes a refusal for no answer: it keeps all Nodes, waits longer between its calls, and does what was left when the cloud " +
				"answers again.",
			Known: []string{
				"https://github.com/kubernetes-sigs/cloud-provider-azure/issues/2880",
				"https://github.com/kubernetes/kubernetes/issues/75016",
				"https://github.com/hetznercloud/hcloud-cloud-controller-manager/issues/661",
			},
		},
	}, {
		ID: "resilience-missing-page", Capability: conformance.CapabilityDoubtfulInstances,
		Source: instanceExists + " (a list that lacks an instance is no word about it); " + nodeController +
			": what fails is tried again",
		Requires: "While the cloud's lists of instances end after their first item, no Node is deleted, a new one neither, and that one is initialised afterwards at the latest.",
		Needs:    faultFeatures(conformance.FaultPartialList), Alone: true,
		Bound: incidentBound,
		Run:   func(t *conformance.T) { testWrongAnswers(t, conformance.FaultPartialList) },
		Incident: &conformance.Incident{
			Name:  "missing-page",
			Title: "A page of the list is missing",
			Happened: "A list of instances ends too early, with success and without a word: the token for the next page got lost, or the cloud's page has " +
				"become smaller than the client expects. A careless CCM reads one page for the whole, and what was on the others for gone.",
			Danger: "It hurts clusters that have just grown beyond a page, and then only the Nodes on the later ones. Since most Nodes are fine, it looks " +
				"like a fault of those machines, and is sought there.",
			Watch: "In kubectl get nodes -w: three workers, of which the one that is NotReady is not in what the CCM is shown, and a fourth that joins " +
				"meanwhile. The operator's own list of instances is whole.",
			Right: "It asks for the instance that is missing by its ID before it believes that it is gone, keeps all Nodes, and initialises the new one " +
				"at the latest when the list is whole again.",
			Known: []string{
				"https://github.com/aws/karpenter-provider-aws/pull/4157",
				"https://github.com/kubernetes/autoscaler/pull/6376",
			},
		},
	}, {
		ID: "resilience-missing-field", Capability: conformance.CapabilityDoubtfulInstances,
		Source:   instanceExists + "; " + instanceShutdown + ": what is not known is an error",
		Requires: "While the cloud's answers do not say what state an instance is in, a Node of one that runs is neither deleted nor called shut down; the CCM's work goes on afterwards.",
		Needs:    faultFeatures(conformance.FaultMissingField), Alone: true,
		Bound: incidentBound,
		Run:   func(t *conformance.T) { testWrongAnswers(t, conformance.FaultMissingField) },
		Incident: &conformance.Incident{
			Name:  "missing-field",
			Title: "A field is gone from the API",
			Happened: "After an update of the cloud, or by way of a proxy, what it says of an instance no longer has the state in it. A careless CCM takes " +
				"the empty value for something that is not running, which to it is stopped or ended; or it ends with a nil pointer each time it looks.",
			Danger: "Nodes that are not Ready are deleted, or get the shutdown taint, upon which the volumes of their pods may be attached elsewhere while " +
				"those still write. A CCM that crashes does nothing for anybody else either, and is back for the next crash.",
			Watch: "In kubectl get nodes -w, and the taints of the worker that is NotReady. The CCM's log says what it misses, and its process lives on.",
			Right: "It takes an answer that lacks what it needs for none, says so, keeps Nodes and taints as they are, and goes on when the answers are " +
				"whole again.",
			Known: []string{
				"https://github.com/kubernetes/cloud-provider-aws/issues/1365",
				"https://github.com/kubernetes/kubernetes/pull/111748",
				"https://github.com/kubernetes/kubernetes/issues/45118",
			},
		},
	}, {
		ID: "resilience-stale-reads", Capability: conformance.CapabilityDoubtfulInstances,
		Source:   instanceExists + " (an old list is no word about a new instance); " + lifecycleController,
		Requires: "A Node whose instance is newer than what the cloud's reads show is not deleted, nor is one whose instance runs; what changed meanwhile is acted on when reads are up to date again.",
		Needs:    faultFeatures(conformance.FaultStale), Alone: true,
		Bound: incidentBound,
		Run:   staleReads,
		Incident: &conformance.Incident{
			Name:  "stale-reads",
			Title: "The cloud reads from an old copy",
			Happened: "The cloud answers reads from a copy that lags behind. Instances that were just created are not in it, and those that were stopped or " +
				"terminated are shown running. A careless CCM does not find a new machine's instance, and deletes its Node.",
			Danger: "New machines are hit in the minutes in which they are needed most, while a cluster grows. Their kubelets do not register again by " +
				"themselves: the machine runs and is paid for, and never becomes a Node.",
			Watch: "In kubectl get nodes -w: a worker whose instance is newer than the copy is NotReady, and must stay; two others are stopped and terminated " +
				"while the copy says that they run.",
			Right: "It asks for the one instance that a list lacks before it believes that it is gone. When reads are up to date again, the stopped one's " +
				"Node has the shutdown taint, the terminated one's is gone, and all others are there.",
			Known: []string{
				"https://github.com/kubernetes/cloud-provider-aws/pull/1024",
				"https://github.com/kubernetes/kubernetes/pull/127424",
				"https://github.com/kubernetes/kubernetes/issues/81636",
				"https://github.com/kubernetes/kubernetes/issues/58334",
			},
		},
	}, {
		ID:       "resilience-slow-api",
		Source:   instanceExists + ": what is no answer is an error; " + nodeController + ": what fails is tried again",
		Requires: "While every answer about instances takes half a minute, no Node is deleted; a Node that joined meanwhile is initialised when answers are quick again.",
		Needs:    faultFeatures(conformance.FaultSlow), Alone: true,
		Bound: incidentBound,
		Run:   slowAPI,
		Incident: &conformance.Incident{
			Name:  "slow-api",
			Title: "Every answer takes half a minute",
			Happened: "The cloud answers, but each answer takes thirty seconds, on a day on which the CCM has just been restarted. Upstream's controllers ask " +
				"for one Node after the other, so that one slow answer holds up all others. A careless CCM takes a time-out for an answer, or ends " +
				"because it did not get through its start.",
			Danger: "Nodes that are not Ready are deleted, new ones stay tainted, and a CCM that starts over and over never gets beyond its first question, " +
				"and sends that again each time.",
			Watch: "In kubectl get nodes -w: three workers, of which one is NotReady, and a fourth that waits with its taint. In the cloud's audit, each " +
				"call about instances takes long, or is broken off by the CCM.",
			Right: "It has time-outs and takes them for no answer, keeps all Nodes, keeps its lease, and initialises the new Node soon after answers are " +
				"quick again.",
			Known: []string{
				"https://github.com/kubernetes/kubernetes/pull/137964",
				"https://github.com/linode/linode-cloud-controller-manager/pull/361",
				"https://github.com/kubernetes/kubernetes/issues/114295",
			},
		},
	}, {
		ID: "resilience-tripped-breaker",
		Source: nodeController + ", " + fromEnsure + ": what fails is tried again, after pauses that double from 5 ms and " +
			"from 5 s; oci-go-sdk common/circuit_breaker.go (half a minute without calls)",
		Requires: "A CCM whose calls have all failed with 500, ten within two minutes, deletes no Node meanwhile; " +
			"soon after the cloud is well, a Node that joins is initialised and a new Service gets its balancer.",
		Needs: faultFeatures(conformance.FaultServerError), Alone: true,
		Bound: incidentBound,
		Run:   trippedBreaker,
		Incident: &conformance.Incident{
			Name:  "tripped-breaker",
			Title: "The cloud fails until the client's circuit breaker opens",
			Happened: "The CCM has just been restarted, and the cloud fails every call. The client library has a circuit breaker: Oracle's, for one, makes no " +
				"call for half a minute after ten within two minutes of which most have failed, and returns an error of its own. A careless CCM's breaker " +
				"does not close, or the CCM gives up because of it.",
			Danger: "The cloud is well again, and the CCM is not: new machines stay tainted, and Services get no address. The cloud's audit " +
				"does not say why, as no call is made, and those who look there think that the CCM has nothing to do.",
			Watch: "In the cloud's audit, ten calls that end with 500, and then perhaps none for a while. In kubectl get nodes -w, a worker that is " +
				"NotReady and stays, and one that joins when the cloud is well.",
			Right: "It takes what a breaker says for no answer, keeps all Nodes, tries again, and is back at work within seconds or, after a breaker's " +
				"half minute, at upstream's next try.",
			Known: []string{
				"https://github.com/hetznercloud/hcloud-cloud-controller-manager/issues/1028",
				"https://docs.oracle.com/en-us/iaas/tools/python/latest/sdk_behaviors/circuit_breakers.html",
			},
		},
	},
}

// What oci-go-sdk has for its circuit breakers (common/circuit_breaker.go), of which each client but the one for
// instances has one: it opens when 80 % of at least breakerCalls within breakerWindow have failed, and lets one through
// after breakerPause. If it stays open, no more calls than these reach the cloud.
const (
	breakerCalls  = 10
	breakerWindow = 2 * time.Minute
	breakerPause  = 30 * time.Second
)

// trippedBreaker restarts the CCM under the fault: a breaker also counts the calls that have succeeded before.
func trippedBreaker(t *conformance.T) {
	kept := newFleet(t, 1)
	restart := stopCCM(t)
	fault := injectFault(t, "having the cloud fail every call", conformance.FaultServerError)
	kept[0].NotReady()
	began, exits := time.Now(), t.Exits()
	// Each of these Services costs two calls at least, of a CCM that asks the cloud for each.
	failed := []func(context.Context) error{checkFaultHits(t, fault, breakerCalls)}
	for range breakerCalls / 2 {
		failed = append(failed, checkFailuresTold(t, t.NewService()))
	}
	restart()
	t.HoldsUntil("all Nodes are to be kept", kept.checkNodesKept, "calls to have failed", func(ctx context.Context) error {
		err := allHold(failed...)(ctx)
		switch {
		case t.Exits() > exits: // Its breaker has ended with it.
			return nil
		case err != nil && time.Since(began) > breakerWindow:
			t.NotMade("not within %s: %v", breakerWindow, err)
		}
		return err
	})
	liftFault(t, fault)
	// The pauses of upstream's controllers double, the Service's from 5 s: what fails while a breaker is open is tried
	// again before twice breakerPause and 5 s have passed. The rest is for the other Services, which come one by one.
	const within = 3 * breakerPause
	svc, late := t.NewService(), newJoiningWorker(t)
	working := allHold(late.checkInitialized, checkOneBalancer(t, svc))
	awaitPromptly(t, "the CCM to work again", within, working, joiningNode)
	t.Must(kept.checkNodesKept(t.Context()), "looking at the Nodes that were there")
}

// incidentBound leaves time to other CCMs, with longer leases, that look at Nodes less often.
const incidentBound = 5 * time.Minute

// testWrongAnswers checks that a Node that is not Ready, others that are, and one that joins are all kept while
// the cloud gives such an answer about instances.
func testWrongAnswers(t *conformance.T, kind conformance.FaultKind) {
	nodes, others := newFleet(t, 3), newFleet(t, 3)
	fault := injectOnInstances(t, kind)
	nodes[2].NotReady() // The youngest: a list that is cut off does not have it.
	holds, c := nodes.checkNodesKept, chanceIn(kind, t.Attempts)
	holdsThroughFault(t, fault, c, others, "all Nodes are to be kept", holds)
	late := joinDuringFault(t, fault, c, others[0], holds)
	liftFault(t, fault)
	awaitRecovery(t, late, holds)
}

// joinDuringFault returns a worker that joined during a fault, and about which the CCM has asked, or could
// have. It is called when the CCM has had its chance with other Nodes: a Node that waits makes the CCM ask more
// often.
func joinDuringFault(
	t *conformance.T,
	fault conformance.Injection,
	c chance,
	ready worker,
	holds func(context.Context) error,
) worker {
	late := newJoiningWorker(t)
	asked := eitherHolds(checkAskedAgain(t, fault, c, ready), late.checkInitialized)
	t.HoldsUntil(
		"all Nodes are to be kept", allHold(holds, late.checkNodeExists),
		"the CCM to have asked for the instance of Node "+late.Name+", too", asked,
	)
	return late
}

// checkAskedAgain returns an error until the CCM's client has sent one more call as often as it does, or the
// CCM has held back and gone round all Nodes: see chance. Fewer rounds do than at first, when the CCM may have
// remembered something.
func checkAskedAgain(
	t *conformance.T, fault conformance.Injection, c chance, ready worker,
) func(context.Context) error {
	c.rounds = min(c.rounds, 4)
	return eitherHolds(checkFaultHits(t, fault, t.Attempts+1), newNodeSweeps(ready).
		checkSweepsSinceHit(checkFaultHits(t, fault, 1), c))
}

func throttledRefresh(t *conformance.T) {
	nodes, others := newFleet(t, 3), newFleet(t, 3)
	restart := stopCCM(t) // One that has just started has a cache to fill.
	fault := injectOnInstances(t, conformance.FaultThrottled)
	nodes[0].NotReady()
	holds, c := nodes.checkNodesKept, chanceIn(conformance.FaultThrottled, t.Attempts)
	restart()
	holdsThroughFault(t, fault, c, others, "all Nodes are to be kept", holds)
	late := joinDuringFault(t, fault, c, others[0], holds)
	late.NotReady() // There is no answer whatever that could say that its instance is gone.
	t.HoldsUntil("all Nodes are to be kept", allHold(holds, late.checkNodeExists), "the CCM to have asked again",
		eitherHolds(checkAskedAgain(t, fault, c, others[0]), late.checkInitialized))
	liftFault(t, fault)
	late.Ready()
	awaitRecovery(t, late, holds)
}

func staleReads(t *conformance.T) {
	nodes, others := newFleet(t, 3), newFleet(t, 3)
	restart := stopCCM(t)
	for i, w := range others { // An old copy does not show what is stopped from now on.
		t.Must(t.Cloud.StopInstance(t.Context(), w.instance.ID), "stopping instance %s", w.instance.ID)
		others[i].off = true
	}
	fault := injectOnInstances(t, conformance.FaultStale)
	nodes[0].NotReady()
	asked := checkFaultHits(t, fault, 1)
	restart()
	t.HoldsUntil(
		"all Nodes are to be kept", nodes.checkNodesKept, "the CCM to have asked once, so that there is an old copy",
		asked,
	)

	// By its provider ID: that is a question about one instance, whatever lists show.
	instance := t.NewInstance(t.Name("younger"))
	younger := worker{t: t, instance: instance, StandIn: t.NewNode(conformance.NodeSpec{
		Name: instance.NodeName, ProviderID: instance.ProviderID,
	})}
	holds := allHold(nodes.checkNodesKept, younger.checkNodeKept)
	asked = eitherHolds(
		checkFaultHits(t, fault, chanceIn(conformance.FaultStale, t.Attempts).calls), younger.checkInitialized,
	)
	t.HoldsUntil("all Nodes are to be kept", holds, "the CCM to have looked for the younger instance", asked)
	younger.NotReady()
	holdsThroughFault(t, fault, chanceIn(conformance.FaultStale, t.Attempts), others, "all Nodes are to be kept", holds)

	halted, ended := nodes[1], nodes[2]
	halted.stopInstance()
	ended.terminateInstance()
	liftFault(t, fault)
	holds = allHold(nodes[0].checkNodeKept, younger.checkNodeKept, halted.checkNodeExists)
	t.HoldsUntil(
		"other Nodes are to be kept", holds, "the stopped instance's Node to be called shut down",
		halted.checkShutdownTaint,
	)
	t.HoldsUntil(
		"other Nodes are to be kept", holds, "the ended instance's Node to be deleted",
		func(ctx context.Context) error { return t.NoNode(ctx, ended.Name) },
	)
	younger.Ready()
	t.HoldsUntil("other Nodes are to be kept", holds, "the younger Node to be initialised", younger.checkInitialized)
}

func slowAPI(t *conformance.T) {
	nodes, others := newFleet(t, 3), newFleet(t, 2)
	restart := stopCCM(t)
	fault := injectOnInstances(t, conformance.FaultSlow)
	nodes[0].NotReady()
	holds := nodes.checkNodesKept
	restart()
	// As many as its client sends before it gives up on a call, or waits for: each
	// costs time. That a time-out is no answer is the matter of another test.
	asked := eitherHolds(checkFaultHits(t, fault, t.Attempts), stopAndCheckTaints(others))
	t.HoldsUntil("all Nodes are to be kept", holds, "the CCM to have waited for answers", asked)
	late := newJoiningWorker(t)
	liftFault(t, fault)
	awaitRecovery(t, late, holds)
}

// awaitRecovery watches that all Nodes are kept after the fault, until the CCM has initialised the one that
// joined during it, and tainted another one that is stopped.
func awaitRecovery(t *conformance.T, late worker, holds func(context.Context) error) {
	const what = "all Nodes are to be kept afterwards"
	holds = allHold(holds, late.checkNodeExists)
	t.HoldsUntil(what, holds, "Node "+late.Name+", which joined meanwhile, to be initialised", late.checkInitialized)
	holdsWhileStopped(what, holds, newWorker(t))
}

// injectOnInstances injects a fault into calls about instances.
func injectOnInstances(t *conformance.T, kind conformance.FaultKind) conformance.Injection {
	return injectFault(t, "injecting "+string(kind), kind, conformance.Instances)
}

// fleet is several workers.
type fleet []worker

func newFleet(t *conformance.T, size int) fleet {
	f := make(fleet, size)
	for i := range f {
		f[i] = newJoiningWorker(t)
	}
	t.Await(fmt.Sprintf("%d Nodes to be initialised", size), func(ctx context.Context) error {
		for i, w := range f {
			if _, err := t.Initialized(ctx, w.Name); err != nil {
				return fmt.Errorf("%d are; then %w", i, err)
			}
		}
		return nil
	})
	return f
}

// newJoiningWorker makes a worker whose Node is registered. The CCM need not have seen it.
func newJoiningWorker(t *conformance.T) worker { return newJoiningWorkerIn(t, "") }

// newJoiningWorkerIn does the same in a zone, for a worker that balancers may have, unless zone is "".
func newJoiningWorkerIn(t *conformance.T, zone string) worker {
	instance := t.CreateInstance(conformance.InstanceSpec{Name: t.Name("worker"), Zone: zone})
	return worker{
		t: t, instance: instance, StandIn: t.NewNodeOf(instance, conformance.NodeSpec{Balanced: zone != ""}),
	}
}

// checkNodesKept returns an error once one of the Nodes is deleted or has the shutdown taint.
func (f fleet) checkNodesKept(ctx context.Context) error {
	for _, w := range f {
		if err := w.checkNodeKept(ctx); err != nil {
			return fmt.Errorf("node %s: %w", w.Name, err)
		}
	}
	return nil
}

// checkNodesExist returns an error once one of the Nodes is deleted.
func (f fleet) checkNodesExist(ctx context.Context) error {
	for _, w := range f {
		if err := w.checkNodeExists(ctx); err != nil {
			return err
		}
	}
	return nil
}

// checkNodeExists returns an error once the Node is deleted.
func (w worker) checkNodeExists(ctx context.Context) error {
	_, err := w.t.GetNode(ctx, w.Name)
	return err
}

// checkInitialized returns an error until the CCM has initialised the Node, with its
// instance's provider ID.
func (w worker) checkInitialized(ctx context.Context) error {
	node, err := w.t.Initialized(ctx, w.Name)
	if err == nil && node.Spec.ProviderID != w.instance.ProviderID {
		err = fmt.Errorf("node %s has provider ID %q, want %q", w.Name, node.Spec.ProviderID, w.instance.ProviderID)
	}
	return err
}

// checkNoCrash returns an error once the CCM has ended by itself without a fault that excuses it.
func checkNoCrash(t *conformance.T) func(context.Context) error {
	before := t.Crashes()
	return func(context.Context) error {
		if n := t.Crashes() - before; n > 0 {
			return fmt.Errorf("the CCM has ended by itself, times: %d", n)
		}
		return nil
	}
}

// allHold returns the error of the first check that fails.
func allHold(each ...func(context.Context) error) func(context.Context) error {
	return func(ctx context.Context) error {
		for _, holds := range each {
			if err := holds(ctx); err != nil {
				return err
			}
		}
		return nil
	}
}
