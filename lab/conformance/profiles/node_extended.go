package profiles

// What a CCM can do for Nodes beyond upstream's controllers: initialise and remove them at once, say
// why they wait, and not believe a cloud that has lost its data.

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"time"

	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"

	"github.com/ccmlab/ccmlab/lab/conformance"
)

const (
	fromDebugging = "kubernetes.io: Debug Cluster (Events tell what goes wrong with an object)"
	fromEvents    = "kubernetes/community api-conventions.md: Events (what recurs is one Event)"
)

var nodeExtendedTests = []conformance.Test{
	{
		ID: "node-namesake-instance", Capability: conformance.CapabilityNamesakeClusters,
		Source:   "k8s.io/cloud-provider cloud.go: InstanceMetadata.ProviderID, which never changes",
		Requires: "A Node gets nothing of an instance that has its name and is another cluster's in the same project; when there is its own, it gets that one's.",
		Needs:    []conformance.Feature{conformance.FeatureNamesakeInstances, conformance.FeatureNodeNames},
		Run: func(t *conformance.T) {
			node := t.NewNode(conformance.NodeSpec{Name: t.Name("namesake")})
			theirs, err := t.Cloud.CreateNamesakeInstance(t.Context(), conformance.Name{Name: node.Name})
			t.Must(err, "creating an instance %s of another cluster", node.Name)
			t.Cleanup(func(ctx context.Context) error { return t.Cloud.TerminateInstance(ctx, theirs.ID) })
			waitsWhileOthersJoin(t, node.Name)
			// Where names are unique in a project its own can be made only now.
			t.Must(t.Cloud.TerminateInstance(t.Context(), theirs.ID), "terminating instance %s", theirs.ID)
			own := t.NewInstance(node.Name)
			assert.Equal(t, own.ProviderID, t.AwaitInitialized(node.Name).Spec.ProviderID)
		},
	}, {
		ID: "node-late-instance-at-once", Capability: conformance.CapabilityPromptInitialization,
		Source:   nodeController + ": what fails is tried again, after up to 1000 s",
		Requires: "A Node that has waited for long is initialised when its instance appears, and not when the back-off of a control loop ends.",
		Needs:    []conformance.Feature{conformance.FeatureNodeNames},
		Bound:    longWait + conformance.DefaultBound,
		Run: func(t *conformance.T) {
			began := time.Now()
			node := t.NewNode(conformance.NodeSpec{Name: t.Name("early")})
			t.HoldsUntil("Node "+node.Name+
				" is to wait", checkStaysUninitialized(t, node.Name), "a long wait", func(context.Context) error {
				if waited := time.Since(began); waited < longWait {
					return fmt.Errorf("it has waited for %s", waited.Round(time.Second))
				}
				return nil
			})
			instance := t.NewInstance(node.Name)
			// Upstream's next try comes later: its back-off doubles.
			awaitPromptly(t, "Node "+node.Name+" to be initialised", 20*time.Second, checkNodeInitialized(t, node.Name), joiningNode)
			assert.Equal(t, instance.ProviderID, t.AwaitInitialized(node.Name).Spec.ProviderID)
		},
	}, {
		ID: "node-provided-ip-mismatch-says-why", Capability: conformance.CapabilityExplains,
		Source:   fromDebugging,
		Requires: "While a Node waits because its kubelet was given a --node-ip that is no address of its instance, a Warning Event on it says why.",
		Run: func(t *conformance.T) {
			instance := t.NewInstance(t.Name("node-ip"))
			node := t.NewNodeOf(instance, conformance.NodeSpec{NodeIP: "192.0.2.1"}) // A documentation address.
			awaitWarning(t, node.Name)
		},
	}, {
		ID: "node-without-taint-says-why", Capability: conformance.CapabilityExplains,
		Source:   fromDebugging + "; " + nodeController + ": only a Node with the taint is initialized",
		Requires: "A Node that has neither a provider ID nor the taint with which it would get one has a Warning Event that says so, or gets its provider ID all the same.",
		Run:      withoutTaintSaysWhy,
	}, {
		ID: "node-says-why-once", Capability: conformance.CapabilityExplains, Source: fromEvents,
		Requires: "While a Node waits for its instance, what says why is said once, and not at every retry.",
		Run:      saysWhyOnce,
	},
}

var lifecycleExtendedTests = []conformance.Test{
	{
		ID: "lifecycle-stopped-while-ready-is-kept",
		Source: "k8s.io/cloud-provider cloud.go: Instances.InstanceExistsByProviderID (\"should still return true for instances that exist but are stopped/sleeping\"); " +
			lifecycleController,
		Requires: "A Node whose instance is stopped is kept, while its kubelet has not yet said that it is not Ready, and afterwards.",
		Run:      stoppedWhileReadyIsKept,
	}, {
		ID: "lifecycle-stopped-is-told", Capability: conformance.CapabilityExplains, Source: fromDebugging,
		Requires: "When the instance of a Node is stopped, an Event on the Node says so, though its kubelet has not yet said that it is not Ready.",
		Run: func(t *conformance.T) {
			w := newWorker(t)
			t.Must(t.Cloud.StopInstance(t.Context(), w.instance.ID), "stopping instance %s", w.instance.ID)
			stopped := regexp.MustCompile(`(?i)stopp|shut`)
			t.Await("an Event on Node "+w.Name+" about its stopped instance", checkEventAbout(t, w.Name, "", stopped))
		},
	}, {
		ID: "lifecycle-terminated-while-ready", Capability: conformance.CapabilityPromptRemoval,
		Source:   "KEP-2392 Cloud Controller Manager (a Node goes when its instance has); " + instanceExists,
		Requires: "A Node whose instance has ended is deleted though its kubelet's last word is that it is Ready.",
		Run: func(t *conformance.T) {
			w := newWorker(t)
			t.Must(t.Cloud.TerminateInstance(t.Context(), w.instance.ID), "terminating instance %s", w.instance.ID)
			// It is about pods that wait for a Node that is no more.
			awaitPromptly(t, "Node "+w.Name+" to go", halfAMinute, func(ctx context.Context) error {
				return t.NoNode(ctx, w.Name)
			}, joiningNode)
		},
	}, {
		ID: "lifecycle-ended-before-initialized-by-name", Capability: conformance.CapabilityUninitializedRemoval,
		Source: instanceExists + " (\"Use the node.name or node.spec.providerID field\"); " +
			"kubernetes/cloud-provider-aws#1471",
		Requires: "A Node without a provider ID that is not Ready, and whose instance ended before it was initialized, is deleted.",
		Needs:    []conformance.Feature{conformance.FeatureNodeNames}, Alone: true,
		Run: endedBeforeInitialized,
	}, {
		ID: "lifecycle-renamed-is-kept", Capability: conformance.CapabilityStableNodes,
		Source:   instanceExists + "; " + metadata + " (\"should always check node.spec.providerID first\")",
		Requires: "A Node whose instance gets another name once it is initialized, and that is not Ready, stays as it is: it is neither deleted nor called shut down, and keeps its provider ID and addresses.",
		Needs:    []conformance.Feature{conformance.FeatureRenameInstance},
		Run: func(t *conformance.T) {
			staysAsItIs(t, "renaming", func(id string) error {
				name := t.Name("renamed")
				now, err := t.Cloud.RenameInstance(t.Context(), id, conformance.Name{Name: name})
				if err == nil && now.Name != name {
					t.NotMade("instance %s is called %s, and was to be called %s", id, now.Name, name)
				}
				return err
			})
		},
	}, {
		ID: "lifecycle-rebooted-is-kept", Capability: conformance.CapabilityStableNodes,
		Source: instanceExists + "; " + instanceShutdown +
			": true \"if the instance is shutdown\", which one that boots is not",
		Requires: "A Node whose instance is rebooted, and that is not Ready meanwhile, stays as it is: it is neither deleted nor called shut down, and keeps its provider ID and addresses.",
		Needs:    []conformance.Feature{conformance.FeatureRebootInstance},
		Run: func(t *conformance.T) {
			staysAsItIs(t, "rebooting", func(id string) error { return t.Cloud.RebootInstance(t.Context(), id) })
		},
	},
}

// massDeletionTests come last: a CCM may be wary for some time afterwards.
var massDeletionTests = []conformance.Test{
	{
		ID: "lifecycle-mass-deletion", Capability: conformance.CapabilityMassDeletionGuard,
		Source:   instanceExists + " (what it says of all at once deletes all Nodes, and all their pods)",
		Requires: "When the cloud says of most Nodes at once that their instances do not exist, most Nodes are kept, and are there when it has come to its senses.",
		Needs:    faultFeatures(conformance.FaultNotFound), Alone: true,
		Bound: 3 * time.Minute, Priority: conformance.Late,
		Run: func(t *conformance.T) { massDeletion(t, 0, 0) },
	}, {
		ID: "lifecycle-mass-deletion-across-restarts", Capability: conformance.CapabilityMassDeletionGuard,
		Source:   instanceExists + " (what it says of all at once deletes all Nodes, and all their pods); " + fromLostLease,
		Requires: "When the cloud says of most Nodes that their instances do not exist, and the CCM is stopped and started again meanwhile, most Nodes are kept, as if it had not been.",
		Needs:    faultFeatures(conformance.FaultNotFound), Alone: true,
		Bound: 5 * time.Minute, Priority: conformance.Late,
		Run: func(t *conformance.T) { massDeletion(t, 2, 0) },
	}, {
		ID: "lifecycle-mass-deletion-slow", Capability: conformance.CapabilityMassDeletionGuard,
		Source:   instanceExists + " (what it says of all one after the other deletes all Nodes, too)",
		Requires: "When the cloud says of most Nodes that their instances do not exist, and takes half a second for each answer, most Nodes are kept: a limit on how many go in a moment is none.",
		Needs:    faultFeatures(conformance.FaultNotFound), Alone: true,
		Bound: 5 * time.Minute, Priority: conformance.Late,
		Run: func(t *conformance.T) { massDeletion(t, 0, slowAnswer) },
	},
}

// slowAnswer is so long that a round of massNodes takes longer than any guard's window should be short.
const slowAnswer = 500 * time.Millisecond

// longWait is so long that upstream's next try is at least a third as far away: the back-off doubles from 5 ms
// on, so that tries lie at 41 s and 82 s, and later by what each try takes: seconds, on a busy machine.
const longWait = time.Minute

// awaitPromptly waits for what a prompt CCM does within so much time on an idle machine. A busy machine is not held
// against it: the test fails once that time has passed and the CCM has done, from then on, what control begins and
// then checks.
func awaitPromptly(
	t *conformance.T, what string, within time.Duration, check func(context.Context) error,
	control func(*conformance.T) func(context.Context) error,
) {
	over := checkTimePassed(time.Now(), t.ScaleBound(within), "there are %s left")
	var overtaken func(context.Context) error
	t.Await(what, func(ctx context.Context) error {
		err := check(ctx)
		switch {
		case err == nil || ctx.Err() != nil || overtaken == nil && over(ctx) != nil:
		case overtaken == nil:
			overtaken = control(t)
		case overtaken(ctx) == nil:
			t.Fatalf("waited for %s for more than %s, while the CCM did other work: %v", what, within, err)
		}
		return err
	})
}

// joiningNode is a control of awaitPromptly: a Node registers, and is initialised.
func joiningNode(t *conformance.T) func(context.Context) error {
	return checkNodeInitialized(t, t.NewNodeOf(t.NewInstance(t.Name("control")), conformance.NodeSpec{}).Name)
}

// servedService is a control of awaitPromptly: a Service is made, and gets its balancer.
func servedService(t *conformance.T) func(context.Context) error {
	return checkOneBalancer(t, t.NewService())
}

func saysWhyOnce(t *conformance.T) {
	node := t.NewNode(conformance.NodeSpec{Name: t.Name("nobody")})
	awaitWarning(t, node.Name)
	for range 2 { // By then it was tried again several times: at first a back-off is short.
		other := t.NewNodeOf(t.NewInstance(t.Name("control")), conformance.NodeSpec{})
		t.HoldsUntil("it is said once", func(ctx context.Context) error {
			events, err := eventsOn(ctx, t, node.Name, corev1.EventTypeWarning)
			// That it has no route either is another matter, which upstream's route
			// controller tells each time.
			events = slices.DeleteFunc(events, func(e corev1.Event) bool {
				return aboutRoutes.MatchString(e.Reason + " " + e.Message)
			})
			for _, e := range events {
				if e.Count > 1 || e.Series != nil && e.Series.Count > 1 || e.Message != events[0].Message ||
					len(events) > 1 {
					return fmt.Errorf(
						"%d Events, of which one, %s, is there %d times: %s", len(events), e.Reason, e.Count, e.Message,
					)
				}
			}
			return err
		}, "Node "+other.Name+" to be initialised", checkNodeInitialized(t, other.Name))
	}
}

// aboutProviderID matches what an Event may say on a Node that nobody initializes.
var aboutProviderID = regexp.MustCompile(`(?i)provider ?id|initiali[sz]`)

func withoutTaintSaysWhy(t *conformance.T) {
	instance := t.NewInstance(t.Name("no-taint"))
	node := t.NewNode(conformance.NodeSpec{Name: instance.NodeName, Change: withoutCloudTaint})
	t.Await("a Warning on Node "+node.Name+" that it has no provider ID, or the provider ID", eitherHolds(
		checkEventAbout(t, node.Name, corev1.EventTypeWarning, aboutProviderID),
		func(ctx context.Context) error {
			now, err := t.GetNode(ctx, node.Name)
			if err == nil && now.Spec.ProviderID == "" {
				err = errors.New("it has no provider ID")
			}
			return err
		}))
}

func stoppedWhileReadyIsKept(t *conformance.T) {
	w := newWorker(t)
	t.Must(t.Cloud.StopInstance(t.Context(), w.instance.ID), "stopping instance %s", w.instance.ID)
	holdsWhileOthersStop(t, "Node "+w.Name+" is to be kept", w.checkNodeExists)
	w.NotReady()
	t.HoldsUntil("Node "+w.Name+" is to be kept", w.checkNodeExists,
		"Node "+w.Name+" to get the shutdown taint", w.checkShutdownTaint)
}

func endedBeforeInitialized(t *conformance.T) {
	restart := stopCCM(t)
	instance := t.NewInstance(t.Name("ended"))
	w := worker{StandIn: t.NewNode(conformance.NodeSpec{Name: instance.NodeName}), t: t, instance: instance}
	// Creation times are cut to seconds: a CCM can tell only then that the Node was there before the end.
	t.Await("Node "+w.Name+" to be older than a second",
		checkTimePassed(time.Now(), 2*time.Second, "in another %s"))
	w.terminateInstance()
	_, err := t.GetNode(t.Context(), w.Name)
	t.Must(err, "Node %s, while no CCM ran", w.Name)
	restart()
	t.AwaitNoNode(w.Name)
}

// staysAsItIs changes the instance of a Node that is not Ready, and watches that the Node stays as it is, until it
// is Ready again.
func staysAsItIs(t *conformance.T, changing string, change func(id string) error) {
	instance := t.CreateInstance(conformance.InstanceSpec{Name: t.Name("worker"), External: true})
	w := worker{StandIn: t.NewNodeOf(instance, conformance.NodeSpec{}), t: t, instance: instance}
	t.AwaitInitialized(w.Name)
	awaitAddresses(t, w.Name, corev1.NodeInternalIP, instance.InternalIPs)
	awaitAddresses(t, w.Name, corev1.NodeExternalIP, instance.ExternalIPs)
	before, err := t.GetNode(t.Context(), w.Name)
	t.Must(err, "reading Node %s", w.Name)
	w.NotReady()
	t.Must(change(instance.ID), "%s instance %s", changing, instance.ID)

	what := "Node " + w.Name + " is to stay as it is"
	same := func(ctx context.Context) error {
		now, err := t.GetNode(ctx, w.Name)
		if err == nil && (now.UID != before.UID || now.Spec.ProviderID != before.Spec.ProviderID ||
			!slices.Equal(now.Status.Addresses, before.Status.Addresses)) {
			err = fmt.Errorf("its UID, provider ID and addresses are %s, %s and %v, and were %s, %s and %v", now.UID,
				now.Spec.ProviderID, now.Status.Addresses, before.UID, before.Spec.ProviderID, before.Status.Addresses)
		}
		return err
	}
	holdsWhileOthersStop(t, what, allHold(same, w.checkNodeKept))
	w.Ready()
	t.HoldsUntil(what, same, "it to be Ready", func(ctx context.Context) error { return t.NodeReady(ctx, w.Name) })
}

// massNodes is more than the cluster has machines of its own, and so many that no guard may take most of them
// for the few that always come and go.
const massNodes = 40

// forgetInstances stops the CCM, has the cloud say that there are no instances, and sets the Nodes NotReady: a
// CCM that has just started remembers nothing, and must ask.
func (f fleet) forgetInstances(
	t *conformance.T, answer time.Duration,
) (fault conformance.Injection, restart func()) {
	restart = stopCCM(t)
	fault = injectFaultOf(t, "having the cloud forget its instances", conformance.Fault{
		Kind: conformance.FaultNotFound, On: []conformance.Thing{conformance.Instances},
		DelayMilliseconds: int(answer.Milliseconds()),
	})
	for _, w := range f {
		w.NotReady()
	}
	return fault, restart
}

// checkMostKept returns an error when no more than half of the Nodes are left.
func (f fleet) checkMostKept(ctx context.Context) error {
	kept, deleted, unclear := 0, 0, error(nil)
	for _, w := range f {
		switch err := w.checkNodeKept(ctx); {
		case err == nil:
			kept++
		case apierrors.IsNotFound(err):
			deleted++
		default:
			unclear = err
		}
	}
	switch {
	case ctx.Err() != nil || kept > massNodes/2:
		return ctx.Err()
	case unclear != nil:
		return fmt.Errorf("of %d Nodes %d were seen: %w", massNodes, kept, unclear)
	}
	return fmt.Errorf("of %d Nodes that were initialised %d were deleted", massNodes, deleted)
}

// assertMostRecover requires that most Nodes are there once the cloud has come to its senses.
func (f fleet) assertMostRecover(t *conformance.T, fault conformance.Injection) {
	liftFault(t, fault)
	left, deleted := 0, 0
	for _, w := range f { // Those that are let go may still go.
		w.Ready()
	}
	for _, w := range f {
		switch err := t.NodeReady(t.Context(), w.Name); {
		case err == nil:
			left++
		case apierrors.IsNotFound(err):
			deleted++
		}
	}
	assert.Greater(
		t, left, massNodes/2, "Nodes are Ready, of %d that were initialised, when the cloud has come to its senses; %d were deleted",
		massNodes, deleted,
	)
}

// massDeletion has the cloud forget all instances, and take so long over each answer, and restarts the CCM so many
// times meanwhile.
func massDeletion(t *conformance.T, restarts int, answer time.Duration) {
	workers := newFleet(t, massNodes)
	fault, restart := workers.forgetInstances(t, answer)
	// No instance is behind it, so that nobody takes it for a Node whose instance is gone.
	ready := worker{StandIn: t.NewNode(conformance.NodeSpec{Name: t.Name("nobody")}), t: t}
	for i := range restarts + 1 {
		if i > 0 {
			restart = stopCCM(t) // What one restart forgives another need not.
		}
		decided := checkDecidedOnAll(t, fault, ready)
		restart()
		t.HoldsUntil("most Nodes are to be kept", workers.checkMostKept, "the CCM to have decided on each of them", decided)
	}
	workers.assertMostRecover(t, fault)
}

// checkDecidedOnAll returns an error until the CCM's lifecycle controller, which deletes Nodes, has looked at each
// of them since the fault: the second of three rounds had them all before it. That calls have met the fault says
// less: the node controller asks for the addresses of all Nodes as soon as it starts.
func checkDecidedOnAll(t *conformance.T, fault conformance.Injection, ready worker) func(context.Context) error {
	return allHold(checkFaultHits(t, fault, 1), newNodeSweeps(ready).checkSweeps(3))
}

// routeFailed is the reason of upstream's Event on a Node whose route cannot be made
// (k8s.io/cloud-provider controllers/route). It does not say why the Node is not initialised.
const routeFailed = "FailedToCreateRoute"

// awaitWarning waits for a Warning on the Node that is not about a route.
func awaitWarning(t *conformance.T, node string) {
	t.Await("a Warning about Node "+node, func(ctx context.Context) error {
		events, err := eventsOn(ctx, t, node, corev1.EventTypeWarning)
		if err == nil && !slices.ContainsFunc(events, func(e corev1.Event) bool { return e.Reason != routeFailed }) {
			err = errors.New("there is none that is not about a route")
		}
		return err
	})
}

// checkEventAbout returns an error while no Event on the Node matches. They are of one type or, when of is empty,
// of any.
func checkEventAbout(t *conformance.T, node, of string, about *regexp.Regexp) func(context.Context) error {
	return func(ctx context.Context) error {
		events, err := eventsOn(ctx, t, node, of)
		for _, e := range events {
			if about.MatchString(e.Reason + " " + e.Message) {
				return nil
			}
		}
		return errors.Join(err, fmt.Errorf("of its %d %ss none says so", len(events), cmp.Or(of, "Event")))
	}
}

// eventsOn lists the Events on a Node, of one type or, when of is empty, of all.
func eventsOn(ctx context.Context, t *conformance.T, node, of string) ([]corev1.Event, error) {
	about := fields.Set{"involvedObject.kind": "Node", "involvedObject.name": node}
	if of != "" {
		about["type"] = of
	}
	return listEvents(ctx, t, metav1.NamespaceAll, about)
}

// listEvents lists the Events with these fields.
func listEvents(ctx context.Context, t *conformance.T, namespace string, about fields.Set) ([]corev1.Event, error) {
	list, err := t.Kube.CoreV1().Events(namespace).List(ctx, metav1.ListOptions{FieldSelector: about.String()})
	if err != nil {
		return nil, err
	}
	return list.Items, nil
}
