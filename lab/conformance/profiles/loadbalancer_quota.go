package profiles

// What a CCM does for Services that the cloud has no room for.

import (
	"regexp"
	"time"

	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"

	"github.com/ccmlab/ccmlab/lab/conformance"
)

var balancerQuotaTests = []conformance.Test{
	{
		ID: "lb-quota-says-why", Capability: conformance.CapabilityExplains, Source: fromDebugging,
		Requires: "While the quota of balancers is used up, a Warning Event on each Service that waits says so, and a Service that has a balancer gets its changes; those that wait get theirs when there is room.",
		Needs:    []conformance.Feature{conformance.FeatureBalancerQuota},
		Alone:    true, // Nobody else gets a balancer, either.
		Run: func(t *conformance.T) {
			served, before := newServiceWithListeners(t)
			waiting, lift := newWaitingServices(t)
			changePortAndAwait(t, served, sameBalancer(before))
			lift()
			for _, svc := range waiting {
				touchService(t, svc, "there is room")
			}
			for _, svc := range waiting {
				t.AwaitBalancer(svc, listensFor(t, svc))
			}
		},
	}, {
		ID: "budget-waiting-services", Capability: conformance.CapabilityCallBudget, Source: fromBudget,
		Requires: "Services that wait for the quota of balancers cost few calls: from a minute after they have begun to wait, no more than five each in a minute.",
		Needs:    []conformance.Feature{conformance.FeatureBalancerQuota, conformance.FeatureCalls},
		Alone:    true,
		Bound:    conformance.DefaultBound + 2*waitingPeriod,
		Run: func(t *conformance.T) {
			began := time.Now()
			newWaitingServices(t)
			// Upstream tries after 5 s, then after twice as long each time: 5, 15, 35, 75 and 155 s after the first.
			t.Await("the first tries to be over", checkTimePassed(began, waitingPeriod, "that is in %s"))
			before := awaitSettledCalls(t)
			t.Await("a minute to pass", checkTimePassed(time.Now(), waitingPeriod, "that is in %s"))
			calls := awaitSettledCalls(t).Since(before).Of[conformance.Balancers]
			t.Logf("%d Services: %d calls about balancers in %s", waitingServices, calls.Reads+calls.Writes, waitingPeriod)
			assert.LessOrEqual(t, calls.Reads+calls.Writes, maxWaitingCalls*waitingServices)
		},
	},
}

const (
	waitingServices = 10
	waitingPeriod   = time.Minute
	// maxWaitingCalls are two tries of a list and a create, as upstream's back-off has it, and one more call.
	maxWaitingCalls = 5
)

// aboutQuota matches an Event that tells of a quota.
var aboutQuota = regexp.MustCompile(`(?i)quota|limit|exhaust|exceed|too many|no more`)

// newWaitingServices makes Services that the cloud refuses to make balancers for until lift is called, and waits for
// each to be told so.
func newWaitingServices(t *conformance.T) (waiting []*corev1.Service, lift func()) {
	undo, err := t.Cloud.LimitBalancers(t.Context())
	t.Must(err, "having the cloud refuse balancers")
	t.Cleanup(undo.Lift)
	for range waitingServices {
		waiting = append(waiting, t.NewService())
	}
	for _, svc := range waiting {
		t.Await("a Warning on Service "+svc.Name+" about the quota", checkWarning(t, svc, aboutQuota))
	}
	return waiting, func() { t.Must(undo.Lift(t.Context()), "having the cloud make balancers again") }
}
