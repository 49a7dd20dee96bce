package profiles

// The CCM goes on when the cloud fails. Upstream's own code ends, and its Deployment starts it again; but
// each start costs a lease, and what was remembered.

import (
	"context"
	"fmt"

	"github.com/ccmlab/ccmlab/lab/conformance"
)

// fromAppExit cites where upstream's own start-up code ends the program.
const fromAppExit = "k8s.io/cloud-provider app/controllermanager.go: klog.Fatalf, klog.FlushAndExit " +
	"(what a CCM may do better)"

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
