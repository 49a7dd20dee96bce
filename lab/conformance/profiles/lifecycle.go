package profiles

// Nodes that are not Ready: the CCM must tell apart an instance that is stopped, one that has ended, and one
// about which the cloud gives no clear answer.

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	cloudproviderapi "k8s.io/cloud-provider/api"
	nodehelpers "k8s.io/cloud-provider/node/helpers"

	"github.com/ccmlab/ccmlab/lab/conformance"
	"github.com/ccmlab/ccmlab/lab/conformance/faultproxy"
	"github.com/ccmlab/ccmlab/lab/kubediff"
)

const (
	instanceExists      = "k8s.io/cloud-provider cloud.go: InstancesV2.InstanceExists"
	instanceShutdown    = "k8s.io/cloud-provider cloud.go: InstancesV2.InstanceShutdown"
	lifecycleController = "k8s.io/cloud-provider controllers/nodelifecycle"
)

var lifecycleTests = append([]conformance.Test{
	{
		ID: "lifecycle-stopped-is-kept-and-tainted", Source: instanceShutdown + "; " + wellKnown,
		Requires: "A Node that is not Ready and whose instance is stopped is kept, and gets the taint node.cloudprovider.kubernetes.io/shutdown.",
		Run: func(t *conformance.T) {
			stopped := newStoppedWorker(t)
			holdsWhileOthersStop(t, "Node "+stopped.Name+" is to be kept and tainted", stopped.checkShutdownTaint)
		},
	}, {
		ID: "lifecycle-started-again", Source: lifecycleController,
		Requires: "A Node that is Ready again after its instance was stopped and started loses the taint node.cloudprovider.kubernetes.io/shutdown.",
		Run: func(t *conformance.T) {
			stopped := newStoppedWorker(t)
			t.Must(t.Cloud.StartInstance(t.Context(), stopped.instance.ID), "starting instance %s", stopped.instance.ID)
			stopped.Ready()
			t.AwaitTaint(stopped.Name, cloudproviderapi.TaintNodeShutdown, false)
		},
	}, {
		ID: "lifecycle-terminated-is-deleted", Source: instanceExists + "; " + lifecycleController,
		Requires: "A Node that is not Ready and whose instance has ended is deleted.",
		Run: func(t *conformance.T) {
			w := newWorker(t)
			w.terminateInstance()
			t.AwaitNoNode(w.Name)
		},
	}, {
		ID:       "lifecycle-ended-before-initialized",
		Source:   instanceExists + " (\"Use the node.name or node.spec.providerID field\"); " + lifecycleController,
		Requires: "A Node that is not Ready, registered with its instance's provider ID and was not initialized before the instance ended is deleted.",
		Run: func(t *conformance.T) {
			instance := t.NewInstance(t.Name("ended"))
			t.Must(t.Cloud.TerminateInstance(t.Context(), instance.ID), "terminating instance %s", instance.ID)
			node := t.NewNode(conformance.NodeSpec{Name: instance.NodeName, ProviderID: instance.ProviderID})
			node.NotReady()
			t.AwaitNoNode(node.Name)
		},
	}, {
		ID: "lifecycle-not-ready-is-kept", Source: instanceExists + "; " + instanceShutdown,
		Requires: "A Node that is not Ready and whose instance runs is neither deleted nor called shut down.",
		Run: func(t *conformance.T) {
			w := newWorker(t)
			w.NotReady()
			holdsWhileOthersStop(t, "Node "+w.Name+" is to be kept", w.checkNodeKept)
		},
	}, {
		ID:       "lifecycle-booting-is-kept",
		Source:   instanceExists + "; " + instanceShutdown + ": true \"if the instance is shutdown\", which one that boots is not",
		Requires: "A Node that is not Ready and whose instance boots is neither deleted nor called shut down.",
		Needs:    []conformance.Feature{conformance.FaultFeature(conformance.FaultStuck), conformance.FeatureNodeNames},
		Alone:    true, // No other instance gets done either.
		Run:      bootingIsKept,
	}, {
		ID: "lifecycle-reappears", Source: metadata,
		Requires: "A Node that registers again, for a new instance of a name whose Node was deleted, gets the new instance's provider ID.",
		Needs:    []conformance.Feature{conformance.FeatureNodeNames},
		Run: func(t *conformance.T) {
			before := newWorker(t)
			before.terminateInstance()
			t.AwaitNoNode(before.Name)
			after, _ := t.NewWorker(conformance.NodeSpec{Name: before.Name})
			node, err := t.GetNode(t.Context(), before.Name)
			t.Must(err, "reading Node %s", before.Name)
			assert.Equal(t, after.ProviderID, node.Spec.ProviderID)
			assert.NotEqual(t, before.instance.ProviderID, node.Spec.ProviderID)
		},
	}, {
		ID: "lifecycle-deleted-while-ccm-down", Source: lifecycleController,
		Requires: "A Node whose instance ended while no CCM ran is deleted once one runs.",
		Alone:    true,
		Run: func(t *conformance.T) {
			w := newWorker(t)
			restart := stopCCM(t)
			w.terminateInstance()
			t.Must(w.checkNodeKept(t.Context()), "Node %s, while no CCM ran", w.Name)
			restart()
			t.AwaitNoNode(w.Name)
		},
	}, {
		ID: "lifecycle-foreign-provider-id", Capability: conformance.CapabilityForeignNodes,
		Source:   instanceExists + " (this cloud cannot say that it does not exist)",
		Requires: "A Node with another cloud's provider ID is neither deleted nor called shut down when it is not Ready.",
		Run:      foreignProviderID,
	}, {
		ID: "lifecycle-machine", Source: "KEP-2392 Cloud Controller Manager; " + lifecycleController,
		Requires: "The Node of a machine is initialised when the machine joins, gets the shutdown taint when it is stopped, loses it when it runs again, and goes when it is terminated.",
		Needs:    []conformance.Feature{conformance.FeatureMachines}, Bound: 4 * time.Minute,
		Alone: true, // Balancers would send traffic to it.
		Run:   testMachineLifecycle,
	},
}, doubtTests()...)

// bootingIsKept makes an instance that boots until the end of the test. Its kubelet runs already, as on a
// machine that the cloud calls booting until all of it is up.
func bootingIsKept(t *conformance.T) {
	ready := newWorker(t)
	fault, err := t.Cloud.InjectFault(t.Context(), conformance.Fault{
		Kind: conformance.FaultStuck, On: []conformance.Thing{conformance.Instances},
	})
	t.Must(err, "having instances boot for long")
	name := t.Name("booting")
	created := beginInstance(t, name)
	t.Cleanup(fault.Lift) // Before the instance is terminated, which it has to be done for.
	node := t.NewNode(conformance.NodeSpec{Name: name})
	t.AwaitInitialized(name)
	node.NotReady()
	booting, rounds := worker{StandIn: node, t: t}, newNodeSweeps(ready)
	t.HoldsUntil("Node "+name+" is to be kept", booting.checkNodeKept,
		"the CCM to have gone round its Nodes", rounds.checkSweeps(3))
	liftFault(t, fault)
	t.Await("instance "+name+" to be made", func(context.Context) error { return created() })
}

// beginInstance creates an instance without waiting for it to run. created returns an error until it runs; the
// instance is terminated after the test.
func beginInstance(t *conformance.T, name string) (created func() error) {
	type result struct {
		instance conformance.Instance
		err      error
	}
	done := make(chan result, 1)
	var made *result
	created = func() error {
		select {
		case r := <-done:
			made = &r
		default:
		}
		if made == nil {
			return errors.New("it does not run yet")
		}
		return made.err
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	t.Cleanup(func(bound context.Context) error {
		defer cancel()
		if made == nil {
			select {
			case r := <-done:
				made = &r
			case <-bound.Done():
				return fmt.Errorf("instance %s still boots: %w", name, context.Cause(bound))
			}
		}
		if made.err != nil {
			return made.err
		}
		return t.Cloud.TerminateInstance(bound, made.instance.ID)
	})
	go func() {
		instance, err := t.Cloud.CreateInstance(ctx, conformance.InstanceSpec{Name: name})
		done <- result{instance, err}
	}()
	return created
}

// withoutCloudTaint has a Node register as a kubelet without --cloud-provider=external does.
func withoutCloudTaint(n *corev1.Node) {
	n.Spec.Taints = slices.DeleteFunc(n.Spec.Taints, func(taint corev1.Taint) bool {
		return taint.Key == cloudproviderapi.TaintExternalCloudProvider
	})
}

func foreignProviderID(t *conformance.T) {
	foreign := newForeignNode(t)
	foreign.NotReady()
	holdsWhileOthersStop(t, "Node "+foreign.Name+" is to be left alone", foreign.checkNodeKept)
}

// newForeignNode returns a Node with another cloud's provider ID, initialised by the CCM there.
func newForeignNode(t *conformance.T) worker {
	return worker{t: t, StandIn: t.NewNode(conformance.NodeSpec{
		Name: t.Name("foreign"), ProviderID: "othercloud://x/1", Change: withoutCloudTaint,
	})}
}

func testMachineLifecycle(t *conformance.T) {
	ctx := t.Context()
	instance := t.CreateInstance(conformance.InstanceSpec{Name: t.Name("machine"), Machine: true})
	name := instance.NodeName
	t.Cleanup(func(ctx context.Context) error { // By force: the CCM may not have done it.
		err := t.Kube.CoreV1().Nodes().Delete(ctx, name, metav1.DeleteOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return err
	})

	t.Await("machine "+name+" to join", func(ctx context.Context) error { return t.NodeReady(ctx, name) })
	assert.Equal(t, instance.ProviderID, t.AwaitInitialized(name).Spec.ProviderID)

	t.Must(t.Cloud.StopInstance(ctx, instance.ID), "stopping machine %s", name)
	t.AwaitTaint(name, cloudproviderapi.TaintNodeShutdown, true)

	t.Must(t.Cloud.StartInstance(ctx, instance.ID), "starting machine %s", name)
	t.Await("machine "+name+" to be back", func(ctx context.Context) error { return t.NodeReady(ctx, name) })
	t.AwaitTaint(name, cloudproviderapi.TaintNodeShutdown, false)

	t.Must(t.Cloud.TerminateInstance(ctx, instance.ID), "terminating machine %s", name)
	t.AwaitNoNode(name)
}

// doubts completes what the test of each doubtful answer requires: "while the cloud's answer is …".
var doubts = map[conformance.FaultKind]string{
	conformance.FaultUnauthorized:    "that the CCM's credentials are not accepted (401)",
	conformance.FaultForbidden:       "that the CCM's credentials do not suffice (403)",
	conformance.FaultForeignNotFound: "that the instance is not found in another project or account than the CCM's (404)",
	conformance.FaultThrottled:       "that there are too many calls (429)",
	conformance.FaultServerError:     "that it failed (500)",
	conformance.FaultUnavailable:     "that it is not there for the moment (503)",
	conformance.FaultTimeout:         "none that comes in time",
	conformance.FaultReset:           "a broken connection",
	conformance.FaultRefused:         "a refused connection",
	conformance.FaultGarbage:         "success with a body that makes no sense",
	conformance.FaultEmptyList:       "success with lists that have nothing in them",
}

func doubtTests() []conformance.Test {
	var tests []conformance.Test
	for _, kind := range conformance.FaultKinds {
		var capability conformance.Capability // None: the test is core.
		switch kind {                         // The cloud's word, though a false one, and another's.
		case conformance.FaultEmptyList:
			capability = conformance.CapabilityDoubtfulInstances
		case conformance.FaultForeignNotFound:
			capability = conformance.CapabilityOwnProject
		}
		tests = append(tests, conformance.Test{
			ID: "lifecycle-doubt-" + string(kind),
			Requires: "A Node that is not Ready is neither deleted nor called shut down while the cloud's answer is " +
				doubts[kind] + ", nor afterwards; nor is one deleted whose instance is stopped.",
			Capability: capability, Needs: faultFeatures(kind), Alone: true,
			Source: instanceExists +
				": false only if it does not exist \"according to the cloud provider\"; what is no answer is an error",
			Bound: incidentBound,
			Run:   func(t *conformance.T) { testDoubtfulAnswer(t, kind) },
		})
	}
	return tests
}

// chance says what shows that a CCM has had its chance to misbehave under a fault: it has gone round all Nodes,
// and one of these holds.
type chance struct {
	calls  int  // so many calls met the fault: the CCM has asked what it may ask, and begun something else
	rounds int  // one call met the fault, and the CCM has gone round so often since
	silent bool // no call met it, and the CCM has gone round that often all the same: it may know not to ask
	waits  bool // instead of rounds: one call met the fault, and has had time to be given up
}

// chanceIn returns the chance for a doubtful answer about instances. A CCM asks whether an instance exists and
// whether it is shut down, and its client may send each call several times before the CCM hears that it failed.
// A CCM that holds back when it is refused makes fewer calls, and goes round its Nodes all the same. A cloud
// can hardly see all calls that are refused a connection, so fewer of those are waited for.
func chanceIn(kind conformance.FaultKind, attempts int) chance {
	c := chance{calls: 2*attempts + 1, rounds: 8, waits: kind == conformance.FaultTimeout}
	if kind == conformance.FaultRefused {
		c.calls = attempts + 1
	}
	return c
}

func testDoubtfulAnswer(t *conformance.T, kind conformance.FaultKind) {
	w, others := newWorker(t), fleet{newWorker(t), newWorker(t), newWorker(t)}
	fault := injectOnInstances(t, kind)
	w.NotReady()
	holdsThroughFault(
		t, fault, chanceIn(kind, t.Attempts), others, "Node "+w.Name+" is to be kept in doubt", w.checkNodeKept,
	)
	liftFault(t, fault)
	holdsWhileOthersStop(t, "Node "+w.Name+" is to be kept after the doubt", w.checkNodeKept)
}

// holdsThroughFault watches that something holds, and that no other Node is deleted, until the CCM has had its
// chance: it has gone round all Nodes and enough calls have met the fault, or it has done its work on another
// Node all the same. A CCM that does its work remembers what the cloud said before, or asks in another way: it
// is restarted, so that it has nothing to remember. others are at least three workers.
func holdsThroughFault(
	t *conformance.T,
	fault conformance.Injection,
	c chance,
	others fleet,
	what string,
	holds func(context.Context) error,
) {
	ready, first, second := others[0], others[1], others[2]
	kept := allHold(others.checkNodesExist, holds) // Whichever of the others it asks for first.
	keptUntilAsked := func(other worker) (works bool) {
		gone, done := newNodeSweeps(ready), stopAndCheckTaints([]worker{other})
		worksOn := func(ctx context.Context) error {
			err := done(ctx)
			works = err == nil
			return err
		}
		fewCalls := gone.checkSweepsSinceHit(checkFaultHits(t, fault, 1), c)
		if c.waits {
			fewCalls = checkCallGivenUp(t, fault)
		}
		asked := eitherHolds(
			allHold(gone.checkSweeps(2), eitherHolds(checkFaultHits(t, fault, c.calls), worksOn)),
			allHold(gone.checkSweeps(1), checkFaultHits(t, fault, 3*c.calls)),
		)
		t.HoldsUntil(what, kept, "the CCM to have asked for its instance", eitherHolds(asked, fewCalls))
		return works
	}
	if keptUntilAsked(first) {
		restart := stopCCM(t)
		first.Ready()
		restart()
		keptUntilAsked(second)
	}
}

// nodeSweeps counts how often the CCM has gone round all Nodes: how often it has taken the shutdown taint from
// a Node that is Ready, for which it need not ask the cloud. The calls that the cloud has seen do not say that:
// they tell neither which of the CCM's controllers made them nor whether it has the answer, and a controller
// may ask for many Nodes at once. A sweep that began before counting did counts, too.
type nodeSweeps struct {
	ready worker
	gone  int
}

func newNodeSweeps(ready worker) *nodeSweeps {
	ready.callShutDown()
	return &nodeSweeps{ready: ready}
}

// checkSweeps returns an error until the CCM has gone round its Nodes so many times.
func (n *nodeSweeps) checkSweeps(want int) func(context.Context) error {
	return func(ctx context.Context) error {
		if n.gone < want {
			if err := n.ready.checkNodeKept(ctx); err != nil {
				return fmt.Errorf(
					"the CCM has gone round %d of %d times: node %s, which is Ready: %w", n.gone, want, n.ready.Name,
					err,
				)
			}
			n.gone++
			n.ready.callShutDown()
		}
		if n.gone < want {
			return fmt.Errorf("the CCM has gone round %d of %d times", n.gone, want)
		}
		return nil
	}
}

// checkSweepsSinceHit returns an error until the CCM has gone round c.rounds times since met returned none, or,
// if c.silent, since the beginning.
func (n *nodeSweeps) checkSweepsSinceHit(met func(context.Context) error, c chance) func(context.Context) error {
	want, known := c.rounds, c.silent
	return func(ctx context.Context) error {
		if !known {
			if err := met(ctx); err != nil {
				return err
			}
			want, known = n.gone+c.rounds, true
		}
		return n.checkSweeps(want)(ctx)
	}
}

// stopAndCheckTaints stops the workers one after the other, each when the one before has the shutdown taint,
// and returns an error until all have it.
func stopAndCheckTaints(workers []worker) func(context.Context) error {
	var stops []func()
	for _, w := range workers {
		stops = append(stops, sync.OnceFunc(w.stopInstance))
	}
	return func(ctx context.Context) error {
		for i, w := range workers {
			stops[i]()
			if err := w.checkShutdownTaint(ctx); err != nil {
				return err
			}
		}
		return nil
	}
}

// injectFault has the cloud misbehave about some things until the fault is lifted, at the end of the test at
// the latest. what is for the message if the fault cannot be injected.
func injectFault(
	t *conformance.T, what string, kind conformance.FaultKind, on ...conformance.Thing,
) conformance.Injection {
	return injectFaultOf(t, what, conformance.Fault{Kind: kind, On: on})
}

func injectFaultOf(t *conformance.T, what string, f conformance.Fault) conformance.Injection {
	fault, err := t.Cloud.InjectFault(t.Context(), f)
	t.Must(err, "%s", what)
	t.Cleanup(fault.Lift)
	return fault
}

func liftFault(t *conformance.T, fault conformance.Injection) {
	t.Must(fault.Lift(t.Context()), "lifting the fault")
}

// checkFaultHits returns an error until so many more calls have met the fault.
func checkFaultHits(t *conformance.T, fault conformance.Injection, want int) func(context.Context) error {
	before, err := fault.Hits(t.Context())
	if !faultproxy.IsUnchanged(err) { // An answer without what is left out, such as an empty list, is no hit.
		t.Must(err, "counting the calls that met the fault")
	}
	return func(ctx context.Context) error {
		now, err := fault.Hits(ctx)
		if err == nil && now-before < want {
			err = fmt.Errorf("%d of %d calls met the fault", now-before, want)
		}
		return err
	}
}

// callPatience is longer than an ordinary client takes over a call that is not answered: three times half a
// minute, and pauses between.
const callPatience = 100 * time.Second

// checkCallGivenUp returns an error until callPatience has passed since a call met the fault: the client has
// given the call up, if it ever does. Under a fault that makes calls wait, one Node costs minutes, and a client
// without a time-out makes one call. What the CCM makes of it shows when the fault is lifted, at the latest.
func checkCallGivenUp(t *conformance.T, fault conformance.Injection) func(context.Context) error {
	met := checkFaultHits(t, fault, 1)
	var since time.Time
	return func(ctx context.Context) error {
		if since.IsZero() {
			if err := met(ctx); err != nil {
				return err
			}
			since = time.Now()
		}
		return checkTimePassed(since, callPatience, "its client may wait for another %s")(ctx)
	}
}

// eitherHolds returns an error while each of the checks does. It makes all of them each time.
func eitherHolds(checks ...func(context.Context) error) func(context.Context) error {
	return func(ctx context.Context) error {
		var failed []error
		for _, check := range checks {
			if err := check(ctx); err != nil {
				failed = append(failed, err)
			}
		}
		if len(failed) < len(checks) {
			return nil
		}
		return errors.Join(failed...)
	}
}

// worker is an instance and the stand-in for its kubelet.
type worker struct {
	*conformance.StandIn
	t        *conformance.T
	instance conformance.Instance
	off      bool // its instance is stopped, and its kubelet has not said so
}

func newWorker(t *conformance.T) worker {
	instance, node := t.NewWorker(conformance.NodeSpec{})
	return worker{StandIn: node, t: t, instance: instance}
}

// newStoppedWorker returns a worker that was stopped and has the shutdown taint.
func newStoppedWorker(t *conformance.T) worker {
	w := newWorker(t)
	w.stopInstance()
	t.HoldsUntil("Node "+w.Name+" is to be kept", w.checkNodeExists,
		"Node "+w.Name+" to get the shutdown taint", w.checkShutdownTaint)
	return w
}

// stopInstance stops the instance and sets the Node NotReady, as a machine that shuts down does.
func (w worker) stopInstance() {
	if !w.off {
		w.t.Must(w.t.Cloud.StopInstance(w.t.Context(), w.instance.ID), "stopping instance %s", w.instance.ID)
	}
	w.NotReady()
}

// terminateInstance terminates the instance and sets the Node NotReady, as the end of a machine does.
func (w worker) terminateInstance() {
	w.t.Must(w.t.Cloud.TerminateInstance(w.t.Context(), w.instance.ID), "terminating instance %s", w.instance.ID)
	w.NotReady()
}

// callShutDown gives the Node the taint that a CCM gives to Nodes that are shut down.
func (w worker) callShutDown() {
	taint := corev1.Taint{Key: cloudproviderapi.TaintNodeShutdown, Effect: corev1.TaintEffectNoSchedule}
	w.t.Must(nodehelpers.AddOrUpdateTaintOnNode(w.t.Kube, w.Name, &taint), "tainting Node %s", w.Name)
}

// checkNodeKept returns an error once the Node is deleted or has the shutdown taint.
func (w worker) checkNodeKept(ctx context.Context) error {
	node, err := w.t.GetNode(ctx, w.Name)
	if err == nil && kubediff.HasTaint(node, cloudproviderapi.TaintNodeShutdown) {
		err = errors.New("it has the shutdown taint")
	}
	return err
}

// checkShutdownTaint returns an error unless the Node exists and has the shutdown taint.
func (w worker) checkShutdownTaint(ctx context.Context) error {
	node, err := w.t.GetNode(ctx, w.Name)
	if err == nil && !kubediff.HasTaint(node, cloudproviderapi.TaintNodeShutdown) {
		err = errors.New("it does not have the shutdown taint")
	}
	return err
}

// holdsWhileOthersStop watches that something holds until the CCM has had its chance to break it: until two
// other Nodes whose instances were stopped have the shutdown taint. The second is stopped when the first has
// it, so that the CCM has looked at all Nodes in between. No instance is terminated: a CCM may hold on to Nodes
// of which many go at once.
func holdsWhileOthersStop(t *conformance.T, what string, holds func(context.Context) error) {
	for range 2 {
		holdsWhileStopped(what, holds, newWorker(t))
	}
}

// holdsWhileStopped stops control, and watches that something holds until the CCM has tainted its Node.
func holdsWhileStopped(what string, holds func(context.Context) error, control worker) {
	control.stopInstance()
	control.t.HoldsUntil(what, holds, "Node "+control.Name+" to get the shutdown taint", control.checkShutdownTaint)
}

// fromAppExit cites where upstream's own start-up code ends the program.
const fromAppExit = "k8s.io/cloud-provider app/controllermanager.go: klog.Fatalf, klog.FlushAndExit " +
	"(what a CCM may do better)"

// exitTests say that the CCM goes on when the cloud fails. Upstream's own code ends, and its Deployment starts it
// again; but each start costs a lease, and what was remembered.
var exitTests = []conformance.Test{
	{
		ID: "lifecycle-survives-bad-start", Capability: conformance.CapabilityStaysUp, Source: fromAppExit,
		Requires: "A CCM that starts while the cloud is not available does not end by itself, and initialises a waiting Node when the cloud is.",
		Needs:    faultFeatures(conformance.FaultUnavailable), Alone: true,
		Bound: incidentBound,
		Run:   func(t *conformance.T) { survivesStart(t, conformance.FaultUnavailable) },
	}, {
		ID: "lifecycle-survives-missing-field", Capability: conformance.CapabilityStaysUp, Source: fromAppExit,
		Requires: "A CCM that starts while the cloud's answers leave a field out does not end by itself, and initialises a waiting Node when they are whole.",
		Needs:    faultFeatures(conformance.FaultMissingField), Alone: true,
		Bound: incidentBound,
		Run:   func(t *conformance.T) { survivesStart(t, conformance.FaultMissingField) },
	},
}

func survivesStart(t *conformance.T, kind conformance.FaultKind) {
	ready := newWorker(t)
	restart := stopCCM(t)
	fault := injectFault(t, "injecting "+string(kind), kind, conformance.Instances, conformance.Balancers)
	// Calls met the fault while its controllers went round, or, where those wait for the cloud, so many
	// that it has begun anew.
	asked := eitherHolds(
		allHold(checkFaultHits(t, fault, 1), newNodeSweeps(ready).checkSweeps(8)),
		checkFaultHits(t, fault, 8*(t.Attempts+1)),
	)
	before := t.Exits()
	lives := func(context.Context) error {
		if n := t.Exits() - before; n > 0 {
			return fmt.Errorf("it has, times: %d", n)
		}
		return nil
	}
	waiting := newJoiningWorker(t)
	restart()
	const what = "the CCM is not to end by itself"
	t.HoldsUntil(what, lives, "it to have asked the cloud", eitherHolds(asked, waiting.checkInitialized))
	liftFault(t, fault)
	t.HoldsUntil(what, lives, "Node "+waiting.Name+" to be initialised", waiting.checkInitialized)
}
