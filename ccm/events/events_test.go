package events

import (
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	cloudprovider "k8s.io/cloud-provider"
	cloudproviderapi "k8s.io/cloud-provider/api"

	"github.com/ccmlab/ccmlab/ccm/contract"
	"github.com/ccmlab/ccmlab/ccm/core"
	"github.com/ccmlab/ccmlab/ccm/ring"
	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
)

// world is an explainer whose Events are recorded.
type world struct {
	*Explainer
	t        *testing.T
	recorder *record.FakeRecorder
}

func newWorld(t *testing.T) *world {
	w := &world{New(), t, record.NewFakeRecorder(1000)}
	w.SetRecorder(w.recorder)
	return w
}

// call is a call of the provider that ends with that error.
func (w *world) call(call ring.Call, err error) error {
	return w.explainCall(w.t.Context(), call, func(context.Context) error { return err })
}

// requireEvents requires that there were so many Events since it was called last, which begin with these texts.
func (w *world) requireEvents(want ...string) {
	w.t.Helper()
	var got []string
	for len(w.recorder.Events) > 0 {
		got = append(got, <-w.recorder.Events)
	}
	require.Len(w.t, got, len(want), "%q", got)
	for n := range want {
		require.True(w.t, strings.HasPrefix(got[n], want[n]), "%q does not begin with %q", got[n], want[n])
	}
}

// causedError is an error with a cause of its own.
type causedError core.Cause

func (e causedError) Error() string     { return "boom" }
func (e causedError) Cause() core.Cause { return core.Cause(e) }

var errPending = cloudproviderapi.NewRetryError("it is being built", 300*time.Millisecond)

// throttled is a refusal with an ID that each request has of its own.
func throttled(requestID int) error {
	return &client.Error{Status: 429, Problem: api.Problem{
		Code: api.RateLimited, Detail: "too many calls", RequestID: fmt.Sprint(requestID),
	}}
}

func node() *corev1.Node {
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "node-1", UID: "u1"}, Spec: corev1.NodeSpec{ProviderID: "fakecloud://i-1"},
	}
}

func waitingNode() *corev1.Node {
	n := node()
	n.Spec.Taints = []corev1.Taint{{Key: cloudproviderapi.TaintExternalCloudProvider}}
	return n
}

func service() *corev1.Service {
	return &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", UID: "s1"}}
}

var ensure = ring.Call{Method: "EnsureLoadBalancer", Object: service()}

func createRoute(node, cidr string) ring.Call {
	return ring.Call{
		Method: "CreateRoute", Route: &cloudprovider.Route{TargetNode: types.NodeName(node), DestinationCIDR: cidr},
	}
}

// withNodes has Nodes looked up among these.
func (w *world) withNodes(nodes ...*corev1.Node) *world {
	indexer := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{})
	for _, n := range nodes {
		require.NoError(w.t, indexer.Add(n))
	}
	w.nodes = corelisters.NewNodeLister(indexer)
	return w
}

// Each call that fails has one Event, however often it is retried with another request ID, until it succeeds.
func TestOneEventPerCause(t *testing.T) {
	const notAsAsked, notDeleted = "The load balancer does not match the Service", "The load balancer is not deleted"
	for name, tc := range map[string]struct {
		method string
		object ring.Object // nil for a route
		// summary begins the Event's message; "" if there is none.
		summary string
		// resolves is whether the call, when it succeeds, means that all is well.
		resolves bool
	}{
		"a Node that waits":     {"InstanceMetadata", waitingNode(), "Node stays uninitialized", true},
		"an initialised Node":   {"InstanceMetadata", node(), "", true},
		"a Node that may go":    {"InstanceExists", waitingNode(), "", true},
		"a balancer":            {"EnsureLoadBalancer", service(), notAsAsked, true},
		"targets":               {"UpdateLoadBalancer", service(), notAsAsked, true},
		"a deletion":            {"EnsureLoadBalancerDeleted", service(), notDeleted, true},
		"what is to be deleted": {"GetLoadBalancer", service(), notDeleted, false},
		"a route":               {"CreateRoute", nil, "Route 10.0.1.0/24 is missing", true},
		"a route that is to go": {"DeleteRoute", nil, "", true},
	} {
		t.Run(name, func(t *testing.T) {
			w, call := newWorld(t).withNodes(node()), ring.Call{Method: tc.method, Object: tc.object}
			if tc.object == nil {
				call.Route = createRoute("node-1", "10.0.1.0/24").Route
			}
			for _, isNews := range []bool{true, tc.resolves} {
				for n := range 3 {
					require.Equal(t, throttled(n), w.call(call, throttled(n)))
				}
				if tc.summary == "" || !isNews {
					w.requireEvents()
				} else {
					w.requireEvents("Warning CloudThrottled " + tc.summary + ": too many calls (rate-limited, request 0); " +
						nextSteps[contract.ReasonCloudThrottled])
				}
				require.NoError(t, w.call(call, nil))
			}
		})
	}
}

// Of what others do, what is not done yet, and what is about no object there is nothing to tell.
func TestErrorsWithoutAnEvent(t *testing.T) {
	w := newWorld(t)
	for _, method := range []string{"EnsureLoadBalancer", "UpdateLoadBalancer", "EnsureLoadBalancerDeleted"} {
		call := ring.Call{Method: method, Object: service()}
		require.Equal(t, cloudprovider.ImplementedElsewhere, w.call(call, cloudprovider.ImplementedElsewhere))
		require.True(t, core.IsPending(w.call(call, errPending)))
	}
	require.Error(t, w.call(createRoute("node-1", "10.0.1.0/24"), throttled(1)), "nobody knows Nodes yet")
	w.withNodes()
	require.Error(t, w.call(createRoute("node-1", "10.0.1.0/24"), throttled(1)))
	require.Error(t, w.call(ring.Call{Method: "ListRoutes"}, throttled(1)))
	w.requireEvents()
}

// A storm, in which each retry fails in another way, is one Event for each way. They are news again when all was well
// in between, not when the work was merely going on.
func TestCausesThatTakeTurns(t *testing.T) {
	w := newWorld(t)
	storm := []error{throttled(1), errors.New("down"), causedError{"Why", "a"}, causedError{"Why", "b"}, errPending}
	for range 2 {
		for range 5 {
			for _, err := range storm {
				require.Error(t, w.call(ensure, err))
			}
		}
		w.requireEvents("Warning CloudThrottled", "Warning CloudUnavailable", "Warning Why", "Warning Why")
		require.NoError(t, w.call(ensure, nil))
	}
}

// What is remembered of a topic has an end, whatever the causes are.
func TestManyCauses(t *testing.T) {
	w := newWorld(t)
	for n := range 500 {
		w.WarnOnce(node(), "topic", "Why", fmt.Sprint(n), "it is not so")
	}
	assert.Len(t, w.reported[objectTopic{"u1", "topic"}], maxReportedCauses)
}

// Of an initialised Node, a --node-ip that is wrong is told once, however often the cloud cannot be asked meanwhile.
func TestNodeIPMismatch(t *testing.T) {
	w := newWorld(t)
	metadata := ring.Call{Method: "InstanceMetadata", Object: node()}
	for range 2 {
		for range 3 {
			require.Error(t, w.call(metadata, causedError{Reason: contract.ReasonProvidedNodeIP}))
			require.Error(t, w.call(metadata, context.DeadlineExceeded))
		}
		w.requireEvents("Warning ProvidedNodeIPMismatch Node's addresses are not updated: boom; start the kubelet")
		require.NoError(t, w.call(metadata, nil))
	}
}

// A Node of two ranges has two routes, and is told of each.
func TestRoutesByDestination(t *testing.T) {
	w, full := newWorld(t).withNodes(node()), causedError{Reason: contract.ReasonQuotaExceeded}
	first, second := createRoute("node-1", "10.0.1.0/24"), createRoute("node-1", "10.0.2.0/24")
	failBoth := func() {
		require.Error(t, w.call(first, full))
		require.Error(t, w.call(second, full))
	}
	failBoth()
	failBoth()
	w.requireEvents("Warning QuotaExceeded Route 10.0.1.0/24", "Warning QuotaExceeded Route 10.0.2.0/24")
	require.NoError(t, w.call(first, nil))
	failBoth()
	w.requireEvents("Warning QuotaExceeded Route 10.0.1.0/24")
}

// The longer a Service waits, the longer is the pause until the next retry, as upstream writes two Events at each.
func TestPendingCallsSlowDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		requireRetry := func(want time.Duration) {
			t.Helper()
			var retry *cloudproviderapi.RetryError
			err := w.call(ensure, errPending)
			require.True(t, core.IsPending(err))
			require.ErrorAs(t, err, &retry)
			require.Equal(t, want, retry.RetryAfter())
		}
		for _, end := range []error{nil, errors.New("down")} {
			requireRetry(300 * time.Millisecond)
			time.Sleep(4 * time.Second)
			requireRetry(time.Second)
			time.Sleep(time.Hour)
			requireRetry(maxProvisioningRetry)
			require.Equal(t, end, w.call(ensure, end))
		}
		requireRetry(300 * time.Millisecond)
	})
}

// A notice is told once, until a call about its topic finds nothing wrong. What was done is told each time.
func TestNotices(t *testing.T) {
	w := newWorld(t).withNodes(node())
	about := func(method string, obj ring.Object) ring.Call { return ring.Call{Method: method, Object: obj} }
	exists, metadata := about("InstanceExists", node()), about("InstanceMetadata", node())
	deletion, route := about("EnsureLoadBalancerDeleted", service()), createRoute("node-1", "fd00::/64")
	const (
		stopped  = "Warning InstanceStopped It is so; start it"
		skipped  = "Warning NodeLabelSkipped It is so; change the tag"
		degraded = "Warning LoadBalancerDegraded It is so"
		ofRoute  = "Warning RouteNotSupported It is so; give the cluster"
	)
	for _, step := range []struct {
		call    ring.Call
		reasons string
		want    []string
	}{
		{exists, "InstanceStopped", []string{stopped}},
		{metadata, "InstanceStopped NodeLabelSkipped", []string{skipped}},
		{exists, "", nil},
		{metadata, "InstanceStopped NodeLabelSkipped", []string{stopped}},
		{metadata, "InstanceInError", []string{"Warning InstanceInError It is so; repair or replace"}},
		{metadata, "NodeLabelSkipped", []string{skipped}},
		{ensure, "LoadBalancerDegraded NoTargets", []string{degraded, "Warning NoTargets It is so; check the Events"}},
		{ensure, "", nil},
		{ensure, "LoadBalancerDegraded", []string{degraded}},
		{deletion, "LoadBalancerKept", []string{"Normal LoadBalancerKept It is so", "Normal LoadBalancerKept It is so"}},
		{ensure, "LoadBalancerDegraded", []string{degraded}},
		{route, "RouteNotSupported", []string{ofRoute}},
		{route, "", nil},
		{route, "RouteNotSupported", []string{ofRoute}},
	} {
		for range 2 {
			require.NoError(t, w.explainCall(t.Context(), step.call, func(ctx context.Context) error {
				for _, reason := range strings.Fields(step.reasons) {
					core.Notify(ctx, core.Notice{Cause: core.Cause{Reason: reason}, Message: "It is so"})
				}
				return nil
			}))
		}
		w.requireEvents(step.want...)
	}
}

// That the guard holds a Node is told once for each trip, until its instance exists after all.
func TestNoticesOfTheGuard(t *testing.T) {
	w := newWorld(t)
	exists := ring.Call{Method: "InstanceExists", Object: node()}
	for _, trip := range []string{"1", "2", "1"} {
		for range 2 {
			require.Error(t, w.explainCall(t.Context(), exists, func(ctx context.Context) error {
				core.Notify(ctx, core.Notice{
					Cause: core.Cause{Reason: contract.ReasonMassDeletionHeld, Detail: trip}, Message: "kept, trip " + trip,
				})
				return errPending
			}))
		}
		w.requireEvents("Warning MassDeletionHeld kept, trip " + trip)
		if trip == "2" {
			require.NoError(t, w.call(exists, nil))
		}
	}
}

// Other rings have topics of their own, and objects that no call is about.
func TestEventsOfOtherRings(t *testing.T) {
	w := newWorld(t)
	record := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{UID: "c1"}}
	ignore := func() { w.WarnOnce(node(), "ignored", contract.ReasonForeignProviderID, "x", "Node is ignored") }
	const ignored = "Warning ForeignProviderID Node is ignored; the CCM ignores Nodes of other clouds"
	for range 2 {
		w.WarnOnce(record, "stopped", contract.ReasonMassDeletionStopped, "1", "Trip 1")
		w.WarnOnce(record, "stopped", contract.ReasonMassDeletionStopped, "2", "Trip 2")
		ignore()
	}
	w.requireEvents("Warning MassDeletionStopped Trip 1", "Warning MassDeletionStopped Trip 2", ignored)
	w.Resolve(node(), "stopped")
	w.Resolve(record, "ignored")
	ignore()
	w.requireEvents()
	w.Resolve(node(), "ignored")
	ignore()
	w.Note(node(), contract.ReasonNodeRemoved, "Node is removed: 100%")
	w.requireEvents(ignored, "Normal NodeRemoved Node is removed: 100%")
}

// Before there is a recorder nothing is told, nor taken for told.
func TestNoRecorderYet(t *testing.T) {
	w := &world{New(), t, record.NewFakeRecorder(9)}
	for _, want := range [][]string{nil, {"Warning Why", "Normal Done"}} {
		w.WarnOnce(node(), "topic", "Why", "", "it is not so")
		w.Note(node(), "Done", "it is so")
		w.requireEvents(want...)
		w.SetRecorder(w.recorder)
	}
}

// What is remembered of an object goes with it.
func TestFollow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, kube := newWorld(t), fake.NewClientset(node(), service())
		shared := informers.NewSharedInformerFactory(kube, 0)
		w.Follow(shared)
		ctx, stop := context.WithCancel(t.Context())
		defer shared.Shutdown()
		defer stop()
		shared.Start(ctx.Done())
		synctest.Wait()
		require.Error(t, w.call(createRoute("node-1", "10.0.1.0/24"), throttled(1)))
		require.Error(t, w.call(ensure, throttled(1)))
		require.Error(t, w.call(ensure, errPending))
		w.requireEvents("Warning CloudThrottled Route", "Warning CloudThrottled The load balancer")
		require.Len(t, w.pendingSince, 1)

		require.NoError(t, kube.CoreV1().Nodes().Delete(ctx, "node-1", metav1.DeleteOptions{}))
		require.NoError(t, kube.CoreV1().Services("default").Delete(ctx, "web", metav1.DeleteOptions{}))
		synctest.Wait()
		assert.Empty(t, w.reported)
		assert.Empty(t, w.pendingSince)

		w.WarnOnce(node(), "topic", "Why", "", "it is not so")
		uid, ok := ring.DeletedUID(cache.DeletedFinalStateUnknown{Key: "node-1", Obj: node()})
		require.True(t, ok)
		w.forget(uid)
		assert.Empty(t, w.reported)
	})
}

// Each reason has its next step, or is known to need none, and the Event has it. What tells of something that the CCM
// did has no next step.
func TestEachReasonHasANextStep(t *testing.T) {
	needsNone := []string{
		// Their messages say what to do.
		contract.ReasonLoadBalancerNameTaken, contract.ReasonAddressNotAvailable, contract.ReasonLoadBalancerDegraded,
		contract.ReasonMassDeletionHeld, contract.ReasonMassDeletionStopped, contract.ReasonMassDeletionGuardFailed,
		// There is nothing to do.
		contract.ReasonLoadBalancerReplaced, contract.ReasonIPv4Only, contract.ReasonMassDeletionConfirmed,
		contract.ReasonNodeRemoved, contract.ReasonLoadBalancerRepaired, contract.ReasonLoadBalancerKept,
	}
	source, err := os.ReadFile("../contract/contract.go")
	require.NoError(t, err)
	reasons := regexp.MustCompile(`(?m)^\tReason\w+\s+= "(\w+)"`).FindAllStringSubmatch(string(source), -1)
	require.GreaterOrEqual(t, len(reasons), 26)
	for _, r := range reasons {
		reason := r[1]
		step := nextSteps[reason]
		assert.Equal(t, slices.Contains(needsNone, reason), step == "", reason)
		assert.False(t, strings.HasSuffix(step, "."), reason)
		w, want := newWorld(t), "Warning "+reason+" It is not so"
		if step != "" {
			want += "; " + step
		}
		w.WarnOnce(node(), "topic", reason, "", "It is not so")
		assert.Equal(t, want, <-w.recorder.Events)
	}
}
