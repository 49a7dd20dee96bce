package profiles

// The cost of the CCM's work in calls of the cloud's API: clouds count calls and throttle whoever makes too
// many.

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/ccmlab/ccmlab/lab/conformance"
)

// fromBudget cites where it was seen, and what SIG Cloud Provider found.
const fromBudget = "kubernetes/kubernetes#75016 (a thousand calls at once for a thousand Nodes, throttled); " +
	"kubernetes/cloud-provider#14 (one call per Node uses up what users may have)"

// A large budget takes longer than any other test: it is begun before the incidents, which other labs can play
// meanwhile.
var (
	budgetTests      = budgetTestsOf(conformance.BudgetSizes[:2])
	largeBudgetTests = budgetTestsOf(conformance.BudgetSizes[2:])
)

func budgetTestsOf(sizes []int) (tests []conformance.Test) {
	for _, nodes := range sizes {
		tests = append(tests, conformance.Test{
			ID: fmt.Sprintf("budget-%d-nodes", nodes),
			Requires: fmt.Sprintf(
				"With %d Nodes, what each of them and each Service costs in calls of the cloud's API stays within the limits.",
				nodes,
			),
			Capability: conformance.CapabilityCallBudget, Source: fromBudget,
			Needs: []conformance.Feature{conformance.FeatureCalls}, Alone: true,
			// A CCM may be slow, at upstream's defaults: it is asked to be frugal.
			Bound: 4*time.Minute + time.Duration(nodes)*300*time.Millisecond,
			Run:   func(t *conformance.T) { testCallBudget(t, nodes) },
		})
	}
	return tests
}

func testCallBudget(t *conformance.T, nodes int) {
	began := time.Now()
	crowd := t.NewNodeFleet(nodes)
	t.Logf("%d instances: %.1f s", nodes, time.Since(began).Seconds())
	countCalls(t, crowd, conformance.PhaseInitialize, nodes, crowd.Initialize)
	countCallsAtRest(t, crowd)
	countServiceCalls(t, crowd)
}

// countCalls records what a phase costs each of units, Nodes or Services.
func countCalls(t *conformance.T, crowd *conformance.NodeFleet, phase conformance.Phase, units int, do func()) {
	crowd.MarkLostReady()
	before, losses, began := awaitSettledCalls(t), crowd.LostCount(), time.Now()
	do()
	spent, took := awaitSettledCalls(t).Since(before), time.Since(began)
	t.Logf("%s: %.1f s", phase, took.Seconds())
	recordCalls(t, t.Budget(len(crowd.Names), phase, units, took, spent), crowd.LostCount()-losses)
}

// recordCalls puts the calls into the report. lost is how many Nodes were lost meanwhile.
func recordCalls(t *conformance.T, spent []conformance.Spent, lost int) {
	t.Record(spent)
	if lost > 0 && !conformance.Within(spent) {
		t.Errorf(
			"that may be this machine's fault: it is so busy that Nodes were taken for lost, times: %d, and a CCM rightly asks for the instances of those",
			lost,
		)
	}
}

// looksAtRest is how many periods of the CCM's look at its Nodes are counted while nothing happens.
const looksAtRest = 3

// restAtLeast returns how long calls are counted while nothing happens: longer than a CCM under test should
// wait between its looks at all addresses, and longer with many Nodes, each of which takes time.
func restAtLeast(nodes int) time.Duration {
	return 15*time.Second + time.Duration(nodes)*5*time.Millisecond
}

// countCallsAtRest counts the calls while nothing happens. What came before is over when the
// CCM has looked at all its Nodes again: an event may have had it refresh what it
// remembers.
func countCallsAtRest(t *conformance.T, crowd *conformance.NodeFleet) {
	// Routes come one by one, long after their Nodes. Only a CCM that has asked for routes makes any.
	calls := awaitSettledCalls(t)
	if calls.Of[conformance.Routes].Reads > 0 && t.HasFeature(conformance.FeatureRoutes) {
		crowd.AwaitRoutes()
	}
	crowd.AwaitNodeSweeps(looksAtRest)
	countCalls(t, crowd, conformance.PhaseRest, len(crowd.Names), func() {
		over := checkTimePassed(time.Now(), restAtLeast(len(crowd.Names)), "that is in %s")
		crowd.AwaitNodeSweeps(looksAtRest)
		t.Await("what the CCM does now and then to have its turn", over)
	})
}

// countServiceCalls counts the calls while a few Services are created, changed and deleted, each all at once.
func countServiceCalls(t *conformance.T, crowd *conformance.NodeFleet) {
	var services []*corev1.Service
	counted := func(phase conformance.Phase, do func()) { countCalls(t, crowd, phase, conformance.BudgetServices, do) }
	each := func(do func(*corev1.Service)) {
		for _, svc := range services {
			do(svc)
		}
	}
	counted(conformance.PhaseCreated, func() {
		for range conformance.BudgetServices {
			services = append(services, t.NewService())
		}
		each(func(svc *corev1.Service) { t.AwaitBalancer(svc, listensFor(t, svc)) })
	})
	counted(conformance.PhaseChanged, func() {
		each(func(svc *corev1.Service) { changePort(t, svc) })
		each(func(svc *corev1.Service) { t.AwaitBalancer(svc, listensFor(t, svc)) })
	})
	counted(conformance.PhaseDeleted, func() {
		each(t.DeleteService)
		each(t.AwaitGone)
	})
}

// maxCallCounts bounds how often awaitSettledCalls counts: a CCM that asks again and again has no end.
const maxCallCounts = 20

// awaitSettledCalls counts the calls after those under way have ended: a cloud may count a call when
// it is answered, a moment after its effect can be seen.
func awaitSettledCalls(t *conformance.T) conformance.Calls {
	var now conformance.Calls
	looks := 0
	t.Await("the calls under way to end", func(ctx context.Context) error {
		before := now
		var err error
		if now, err = t.Cloud.CountCalls(ctx); err != nil {
			return err
		}
		if looks++; looks > 1 && now.Count == before.Count || looks == maxCallCounts {
			return nil
		}
		return errors.New("there are more")
	})
	return now
}
