package profiles

// What becomes of a Node that is not Ready: does the CCM tell apart an instance
// that is stopped, one that has ended, and one that the cloud gives no clear
// answer about?

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
			stopped := newStopped(t)
			holdsWhileOthersStop(t, "Node "+stopped.Name+" is to be kept and tainted", stopped.checkShutdownTaint)
		},
	}, {
		ID: "lifecycle-started-again", Source: lifecycleController,
		Requires: "A Node that is Ready again after its instance was stopped and started loses the taint node.cloudprovider.kubernetes.io/shutdown.",
		Run: func(t *conformance.T) {
			stopped := newStopped(t)
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
		Needs:    []conformance.Feature{conformance.FeatureMachines}, Alone: true, // Balancers would send traffic to it.
		Bound: 4 * time.Minute,
		Run:   testMachineLifecycle,
	},
}, doubtTests()...)

// bootingIsKept has an instance whose boot takes until the end of the test. Its kubelet is there
// already, as that of a machine which the cloud calls booting until all of it is up.
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
	booting, rounds := worker{StandIn: node, t: t}, newRounds(ready)
	t.HoldsUntil(
		"Node "+name+" is to be kept", booting.checkNodeKept, "the CCM to have gone round its Nodes", rounds.checkSweeps(3),
	)
	liftFault(t, fault)
	t.Await("instance "+name+" to be made", func(context.Context) error { return created() })
}

// beginInstance creates an instance and does not wait until it runs. The error says so as long as it
// does not; after the test it is terminated.
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

func foreignProviderID(t *conformance.T) {
	node := t.NewNode(conformance.NodeSpec{Name: t.Name("foreign"), ProviderID: "othercloud://x/1", Change: func(n *corev1.Node) {
		n.Spec.Taints = slices.DeleteFunc(n.Spec.Taints, func(taint corev1.Taint) bool {
			return taint.Key == cloudproviderapi.TaintExternalCloudProvider
		})
	}})
	node.NotReady()
	holdsWhileOthersStop(t, "Node "+node.Name+" is to be left alone", worker{StandIn: node, t: t}.checkNodeKept)
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

// doubts says what each doubtful answer is.
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
			Capability: capability, Needs: []conformance.Feature{conformance.FaultFeature(kind)}, Alone: true,
			Source: instanceExists +
				": false only if it does not exist \"according to the cloud provider\"; what is no answer is an error",
			Bound: incidentBound,
			Run:   func(t *conformance.T) { testDoubtfulAnswer(t, kind) },
		})
	}
	return tests
}

// chance is what shows that a CCM has had its chance to misbehave under a fault: that
// it has gone round all Nodes, and any of these.
type chance struct {
	calls  int  // so many met the fault that the CCM has asked what it may ask, and has begun to do something else
	rounds int  // or one did, and it went round so often since
	silent bool // or none, and it went round so often all the same: it may know better than to ask
	waits  bool // or, instead of that, one did and has had time to be given up
}

// chanceIn is that of a doubt about instances: the CCM has asked whether one exists
// and whether it is shut down, and its client may send a call several times before
// the CCM hears that it failed. One that holds back when it is refused makes fewer
// calls, and goes round nevertheless. Of calls that are refused a connection, a cloud
// can hardly see all; there are fewer to wait for.
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

// holdsThroughFault watches that something holds, and that no other Node is deleted, until
// the CCM has had its chance: until it has gone round all Nodes and so many calls
// have met the fault, or its work on another Node was done all the same. A CCM that
// does its work remembers what the cloud said before, or asks in another way: it is
// started anew, and then has nothing to remember. Three others are needed.
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
		gone, done := newRounds(ready), stopAndCheckTaints([]worker{other})
		worksOn := func(ctx context.Context) error {
			err := done(ctx)
			works = err == nil
			return err
		}
		fewCalls := gone.checkSweepsSinceHit(checkFaultHits(t, fault, 1), c)
		if c.waits {
			fewCalls = brokenOff(t, fault)
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

// nodeSweeps are how often the CCM has gone round all Nodes, of which two begin and end
// while they are counted: how often it has taken the shutdown taint from one that is
// Ready, of which it need not ask the cloud. Calls that the cloud has seen say neither
// which of a CCM's controllers made them nor that it has the answer: each may ask for
// many Nodes at once.
type nodeSweeps struct {
	ready worker
	gone  int
}

func newRounds(ready worker) *nodeSweeps {
	ready.callShutDown()
	return &nodeSweeps{ready: ready}
}

// checkSweeps returns an error until the CCM has gone round its Nodes so many times.
func (r *nodeSweeps) checkSweeps(want int) func(context.Context) error {
	return func(ctx context.Context) error {
		if r.gone < want {
			if err := r.ready.checkNodeKept(ctx); err != nil {
				return fmt.Errorf(
					"the CCM has gone round %d of %d times: node %s, which is Ready: %w", r.gone, want, r.ready.Name,
					err,
				)
			}
			r.gone++
			r.ready.callShutDown()
		}
		if r.gone < want {
			return fmt.Errorf("the CCM has gone round %d of %d times", r.gone, want)
		}
		return nil
	}
}

// checkSweepsSinceHit returns an error until it has gone round as often as c wants since a call met the
// fault, or in all.
func (r *nodeSweeps) checkSweepsSinceHit(met func(context.Context) error, c chance) func(context.Context) error {
	want, known := c.rounds, c.silent
	return func(ctx context.Context) error {
		if !known {
			if err := met(ctx); err != nil {
				return err
			}
			want, known = r.gone+c.rounds, true
		}
		return r.checkSweeps(want)(ctx)
	}
}

// stopAndCheckTaints stops one after the other, and is an error until all are called shut
// down.
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

// injectFault has the cloud misbehave about some things until the fault is lifted, at the end of the test
// at the latest. what says what is being done, for the case that it cannot be.
func injectFault(
	t *conformance.T, what string, kind conformance.FaultKind, on ...conformance.Thing,
) conformance.Injection {
	fault, err := t.Cloud.InjectFault(t.Context(), conformance.Fault{Kind: kind, On: on})
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
	t.Must(err, "counting the calls that met the fault")
	return func(ctx context.Context) error {
		now, err := fault.Hits(ctx)
		if err == nil && now-before < want {
			err = fmt.Errorf("%d of %d calls met the fault", now-before, want)
		}
		return err
	}
}

// aCall is longer than an ordinary client takes over a call that is not answered:
// three times half a minute, and pauses between.
const aCall = 100 * time.Second

// brokenOff returns an error until so much time has passed since a call met the fault that
// the client has given it up, if it ever does: under a fault that has calls wait, one
// Node costs minutes, and a client without a time-out makes one call. What the CCM
// makes of it shows when the fault is lifted, at the latest.
func brokenOff(t *conformance.T, fault conformance.Injection) func(context.Context) error {
	met := checkFaultHits(t, fault, 1)
	var since time.Time
	return func(ctx context.Context) error {
		if since.IsZero() {
			if err := met(ctx); err != nil {
				return err
			}
			since = time.Now()
		}
		if left := time.Until(since.Add(aCall)); left > 0 {
			return fmt.Errorf("its client may wait for another %s", left.Round(time.Second))
		}
		return nil
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

// worker is a stand-in with its instance.
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

// newStopped is a worker that was stopped and got the taint for that.
func newStopped(t *conformance.T) worker {
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

// callShutDown gives the Node the taint that a CCM gives one that is shut down.
func (w worker) callShutDown() {
	taint := corev1.Taint{Key: cloudproviderapi.TaintNodeShutdown, Effect: corev1.TaintEffectNoSchedule}
	w.t.Must(nodehelpers.AddOrUpdateTaintOnNode(w.t.Kube, w.Name, &taint), "tainting Node %s", w.Name)
}

// checkNodeKept returns an error once the Node is deleted or called shut down.
func (w worker) checkNodeKept(ctx context.Context) error {
	node, err := w.t.GetNode(ctx, w.Name)
	if err == nil && conformance.HasTaint(node, cloudproviderapi.TaintNodeShutdown) {
		err = errors.New("it has the shutdown taint")
	}
	return err
}

// checkShutdownTaint returns an error unless the Node is there and called shut down.
func (w worker) checkShutdownTaint(ctx context.Context) error {
	node, err := w.t.GetNode(ctx, w.Name)
	if err == nil && !conformance.HasTaint(node, cloudproviderapi.TaintNodeShutdown) {
		err = errors.New("it does not have the shutdown taint")
	}
	return err
}

// holdsWhileOthersStop watches that something holds until the CCM has had its
// chance to break it: until two Nodes whose instances were stopped are called
// shut down. The second is stopped when the first is tainted, so that in between
// the CCM has looked at all Nodes anew. None is ended: a CCM may hold on to Nodes
// of which many go at once.
func holdsWhileOthersStop(t *conformance.T, what string, holds func(context.Context) error) {
	for range 2 {
		holdsWhileStopped(what, holds, newWorker(t))
	}
}

// holdsWhileStopped watches that something holds until the CCM has tainted one worker, which is stopped.
func holdsWhileStopped(what string, holds func(context.Context) error, control worker) {
	control.stopInstance()
	control.t.HoldsUntil(what, holds, "Node "+control.Name+" to get the shutdown taint", control.checkShutdownTaint)
}
