package ccm

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/record"
	cloudprovider "k8s.io/cloud-provider"

	"github.com/ccmlab/ccmlab/ccm/contract"
	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
)

// The exact reason of each error, however deep it is wrapped.
func TestCauseOf(t *testing.T) {
	_, foreign := parseProviderID("aws:///eu/i-1")
	swapped := definite(&fakeAPI{t: t, project: othersToken}, "lab")
	_, otherProject := definite(&fakeAPI{
		t: t, getInstance: failsWith(problem(404, api.NotFound, "p-other")),
	}, "lab").GetInstance(t.Context(), "i-1")
	ids := newAmbiguousError("n", []api.Instance{{ID: "i-2"}, {ID: "i-1"}})
	nodeIP := &nodeIPError{provided: "10.0.0.9", instance: "i-1", err: errors.New("boom")}
	for name, tc := range map[string]struct {
		err  error
		want cause
	}{
		"an ended instance":                 {goneError("it ended"), cause{reason: "InstanceNotFound"}},
		"gone":                              {cloudprovider.InstanceNotFound, cause{reason: "InstanceNotFound"}},
		"no instance of that name":          {errNoSuchName, cause{reason: "InstanceNotFound"}},
		"two of that name":                  {ids, cause{"InstanceAmbiguous", "i-1 i-2"}},
		"another cloud's provider ID":       {foreign, cause{"ForeignProviderID", "aws:///eu/i-1"}},
		"a node IP that the instance lacks": {nodeIP, cause{"ProvidedNodeIPMismatch", "10.0.0.9[]"}},
		"a token of another project":        {swapped.CheckToken(t.Context()), cause{reason: "WrongProject"}},
		"not found, in another project":     {otherProject, cause{reason: "WrongProject"}},
		"a route in the way":                {&routeConflictError{have: route()}, cause{"RouteConflict", "r-1"}},
		"a route in the way that is out of sight": {
			problem(409, api.RouteConflict, ourProject), cause{reason: "RouteConflict"},
		},
		"quota": {
			problem(409, api.QuotaExceeded, ourProject), cause{reason: "QuotaExceeded"},
		},
		"no address left": {
			problem(409, api.AddressPoolExhausted, ourProject), cause{reason: "AddressPoolExhausted"},
		},
		"throttled": {
			problem(429, api.RateLimited, ourProject), cause{reason: "CloudThrottled"},
		},
		"throttled by something on the way": {&client.Error{Status: 429}, cause{reason: "CloudThrottled"}},
		"a bad token": {
			problem(401, api.Unauthenticated, ""), cause{reason: "CloudAccessDenied"},
		},
		"a role too small": {
			problem(403, api.Forbidden, ourProject), cause{reason: "CloudAccessDenied"},
		},
		"the cloud fails": {
			problem(500, api.Internal, ourProject), cause{reason: "CloudUnavailable"},
		},
		"something on the way fails": {&client.Error{Status: 502}, cause{reason: "CloudUnavailable"}},
		"timeout":                    {context.DeadlineExceeded, cause{reason: "CloudUnavailable"}},
		"refused": {
			&net.OpError{Op: "dial", Err: errors.New("connection refused")}, cause{reason: "CloudUnavailable"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			require.Error(t, tc.err)
			assert.Equal(t, tc.want, causeOf(fmt.Errorf("a: %w", fmt.Errorf("b: %w", tc.err))))
		})
	}
}

// The detail of a cause is the same at every retry: a new request ID is no news.
func TestOneEventPerCauseNotPerRequest(t *testing.T) {
	e := newExplainer()
	recorder := record.NewFakeRecorder(9)
	e.setRecorder(recorder)
	for n := range 5 {
		e.explainInitialization(node(""), &client.Error{
			Status:  429,
			Problem: api.Problem{Code: api.RateLimited, Detail: "too many calls", RequestID: fmt.Sprint(n)},
		})
	}
	require.Len(t, recorder.Events, 1)
	assert.Equal(t, "Warning CloudThrottled Node stays uninitialized: too many calls (rate-limited, request 0); "+
		nextStep("CloudThrottled"), <-recorder.Events)
}

// A storm, in which each retry fails in another way, is one Event for each way;
// the one that was met last is known; and when all was well they are news again.
func TestCausesThatTakeTurns(t *testing.T) {
	e := newExplainer()
	recorder := record.NewFakeRecorder(100)
	e.setRecorder(recorder)
	waiting := node("")
	storm := []error{problem(429, api.RateLimited, ourProject), problem(503, api.Internal, ourProject), errNoSuchName}
	for range 5 {
		for _, err := range storm {
			e.explainInitialization(waiting, err)
			assert.True(t, e.hasUnresolved(waiting, topicInitialization))
			assert.True(t, e.isLastReason(waiting, topicInitialization, causeOf(err).reason))
		}
		assert.Len(t, recorder.Events, 3)
	}
	e.explainInitialization(waiting, nil)
	assert.False(t, e.hasUnresolved(waiting, topicInitialization))
	assert.False(t, e.isLastReason(waiting, topicInitialization, contract.ReasonInstanceNotFound))
	e.explainInitialization(waiting, storm[0])
	assert.Len(t, recorder.Events, 4)
}

// What is remembered of a topic has an end, whatever the causes are.
func TestManyCauses(t *testing.T) {
	e := newExplainer()
	e.setRecorder(record.NewFakeRecorder(1000))
	for n := range 500 {
		e.warnOnce(
			node(""), topicInitialization, cause{reason: contract.ReasonInstanceAmbiguous, detail: fmt.Sprint(n)},
			"why",
		)
	}
	assert.Len(t, e.reported[objectTopic{"u1", topicInitialization}], maxReportedCauses)
}

// A kubelet's --node-ip that is wrong is told once, however often the cloud
// cannot be asked meanwhile.
func TestAHiccupDoesNotResolveAMismatch(t *testing.T) {
	e := newExplainer()
	recorder := record.NewFakeRecorder(10)
	e.setRecorder(recorder)
	initialised := node(byID)
	for range 3 {
		e.explainInitialization(
			initialised, &nodeIPError{provided: "10.0.0.9", instance: "i-1", err: errors.New("no match")},
		)
		e.explainInitialization(initialised, context.DeadlineExceeded)
		assert.True(t, e.hasUnresolved(initialised, topicInitialization))
	}
	assert.Len(t, recorder.Events, 1)
	e.explainInitialization(initialised, nil)
	assert.False(t, e.hasUnresolved(initialised, topicInitialization))
}

// Of a Node that is initialised, a cloud that is down is no news.
func TestInitialisedNodesHaveNothingToTell(t *testing.T) {
	e := newExplainer()
	e.setRecorder(record.NewFakeRecorder(0)) // It would block.
	initialised := node(byID)
	e.explainInitialization(initialised, errors.New("boom"))
	assert.False(t, e.hasUnresolved(initialised, topicInitialization))
}

// Of a Node that nobody will initialize there is one Event, whatever its kind; of one that waits, or is
// ours, there is none.
func TestNodesThatAreLeftAloneAreExplained(t *testing.T) {
	foreign, bare, waiting := node("onprem://edge1"), node(""), node("")
	bare.Spec.Taints = nil
	for reason, n := range map[string]*corev1.Node{
		contract.ReasonForeignProviderID: foreign, contract.ReasonProviderIDMissing: bare, "": waiting, "none": node(byID),
	} {
		w := newWatchWorld(t, n)
		w.prompting, w.removing = true, false
		for range 2 {
			require.NoError(t, w.syncNode(t.Context(), n.Name))
		}
		events := w.takeEvents()
		if n == foreign || n == bare {
			require.Len(t, events, 1, reason)
			assert.Contains(t, events[0], "Warning "+reason+" Node is ignored: ")
		} else {
			assert.Empty(t, events)
		}
	}
}

// Each reason has its next step, or is known to need none, and the Event has it.
// What tells of something that the CCM did has no next step.
func TestEachReasonHasANextStep(t *testing.T) {
	needsNone := []string{
		contract.ReasonLoadBalancerNameTaken, contract.ReasonAddressNotAvailable, contract.ReasonLoadBalancerDegraded,
		contract.ReasonLoadBalancerReplaced, contract.ReasonIPv4Only,
		contract.ReasonMassDeletionHeld, contract.ReasonMassDeletionStopped, contract.ReasonMassDeletionGuardFailed,
	}
	done := []string{
		contract.ReasonMassDeletionConfirmed, contract.ReasonNodeRemoved, contract.ReasonLoadBalancerRepaired,
		contract.ReasonLoadBalancerKept,
	}
	source, err := os.ReadFile("contract/contract.go")
	require.NoError(t, err)
	reasons := regexp.MustCompile(`(?m)^\tReason\w+\s+= "(\w+)"`).FindAllStringSubmatch(string(source), -1)
	require.GreaterOrEqual(t, len(reasons), 26)
	for _, r := range reasons {
		reason := r[1]
		step, has := nextSteps[reason]
		if slices.Contains(done, reason) {
			assert.False(t, has, reason)
			continue
		}
		assert.True(t, has, reason)
		assert.Equal(t, slices.Contains(needsNone, reason), step == "", reason)
		assert.False(t, strings.HasSuffix(step, "."), reason)

		e, recorder := newExplainer(), record.NewFakeRecorder(1)
		e.setRecorder(recorder)
		require.Error(t, (&loadBalancers{explain: e}).reportOutcome(
			serviceWithAddress(), "It is not so", nil, newReasonError(reason, "why"),
		))
		want := "Warning " + reason + " It is not so: why"
		if step != "" {
			want += "; " + step
		}
		assert.Equal(t, want, <-recorder.Events)
	}
}
