package profiles

// The flag --controllers: somebody else does what it switches off, and a CCM that goes on doing it by other
// means interferes.

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ccmlab/ccmlab/lab/conformance"
)

const fromControllersFlag = "k8s.io/controller-manager app: IsControllerEnabled (--controllers)"

// repairTime is more than a CCM that repairs at all takes to notice, where nothing else is to do.
const repairTime = 10 * time.Second

var takesFlags = []conformance.Feature{conformance.FeatureFlags}

var controllersFlagTests = []conformance.Test{
	{
		ID: "lifecycle-controller-switched-off", Capability: conformance.CapabilityControllersFlag,
		Source:   fromControllersFlag + "; " + lifecycleController,
		Requires: "With --controllers=*,-cloud-node-lifecycle-controller no Node is deleted, though its instance has ended, and other Nodes are initialised; without it, the Node goes.",
		Needs:    takesFlags, Alone: true,
		Run: func(t *conformance.T) {
			workers := fleet{newWorker(t), newWorker(t)}
			t.RestartCCM("--controllers=*,-cloud-node-lifecycle-controller")
			notReady := endInstancesLeftToOthers(t, workers)
			t.RestartCCM()
			t.AwaitNoNode(notReady.Name)
		},
	}, {
		ID: "lb-controller-switched-off", Capability: conformance.CapabilityControllersFlag,
		Source:   fromControllersFlag + "; " + fromEnsure,
		Requires: "With --controllers=*,-service-lb-controller no balancer is made or repaired, and Nodes are initialised; without it, Services get their balancers.",
		Needs:    takesFlags, Alone: true,
		Run: lbControllerSwitchedOff,
	},
}

// endInstancesLeftToOthers ends the instances of two workers, of which it returns the one that is not Ready, and
// checks that the CCM leaves their Nodes to others, while it does what else there is.
func endInstancesLeftToOthers(t *conformance.T, workers fleet, also ...func(context.Context) error) (notReady worker) {
	t.AwaitInitialized(newWaitingNode(t)) // It runs, and leads.
	for _, w := range workers {
		t.Must(t.Cloud.TerminateInstance(t.Context(), w.instance.ID), "terminating instance %s", w.instance.ID)
	}
	notReady = workers[1]
	notReady.NotReady()
	awaitOthersWork(t, "Nodes are to be left alone", allHold(append(also, workers.checkNodesExist)...))
	return notReady
}

// awaitOthersWork has the CCM initialise a few Nodes, one after the other, while something is to stay
// as it is: so it runs, leads, and had the time to do what it must not.
func awaitOthersWork(t *conformance.T, what string, holds func(context.Context) error) {
	const others = 5
	for range others {
		name := newWaitingNode(t)
		t.HoldsUntil(what, holds, "Node "+name+" to be initialised", checkNodeInitialized(t, name))
	}
	t.HoldsUntil(what, holds, "as much time as a repair takes",
		checkTimePassed(time.Now(), repairTime, "there are %s left"))
}

func lbControllerSwitchedOff(t *conformance.T) {
	deleted, before := newServiceWithBalancer(t)
	t.RestartCCM("--controllers=*,-service-lb-controller")
	t.AwaitInitialized(newWaitingNode(t)) // It runs, and leads.
	t.Must(t.Cloud.DeleteBalancer(t.Context(), before.ID), "deleting balancer %s", before.ID)
	created := t.NewService()
	awaitOthersWork(t, "no balancer is to be made", func(ctx context.Context) error {
		made, err1 := t.BalancersOf(ctx, created)
		again, err2 := t.BalancersOf(ctx, deleted)
		if len(made)+len(again) > 0 {
			return fmt.Errorf("there are %d of the new Service, and %d of the one whose balancer was deleted",
				len(made), len(again))
		}
		return errors.Join(err1, err2)
	})
	t.RestartCCM()
	t.AwaitBalancer(created)
}
