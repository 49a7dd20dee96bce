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

	"github.com/ccmlab/ccmlab/ccm/ring"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	cloudprovider "k8s.io/cloud-provider"
	cloudproviderapi "k8s.io/cloud-provider/api"

	"github.com/ccmlab/ccmlab/ccm/contract"
	"github.com/ccmlab/ccmlab/ccm/core"
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

// call makes a call of the provider that gives those notices and ends with that error.
func (w *world) call(call ring.Call, err error, notices ...core.Cause) error {
	return w.explainCall(w.t.Context(), call, func(ctx context.Context) error {
		for _, cause := range notices {
			core.Notify(ctx, core.Notice{Cause: cause, Message: "It is so"})
		}
		return err
	})
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

func newNode(taints ...corev1.Taint) *corev1.Node {
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "node-1", UID: "u1"},
		Spec:       corev1.NodeSpec{ProviderID: "fakecloud://i-1", Taints: taints},
	}
}

var (
	node     = newNode()
	waiting  = newNode(corev1.Taint{Key: cloudproviderapi.TaintExternalCloudProvider})
	service  = &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", UID: "s1"}}
	ensure   = ring.Call{Method: "EnsureLoadBalancer", Object: service}
	exists   = ring.Call{Method: "InstanceExists", Object: node}
	metadata = ring.Call{Method: "InstanceMetadata", Object: node}
)

func route(method, cidr string) ring.Call {
	return ring.Call{Method: method, Route: &cloudprovider.Route{TargetNode: "node-1", DestinationCIDR: cidr}}
}

// follow has Nodes and Services looked up in a cluster that has one of each.
func (w *world) follow() *fake.Clientset {
	kube := fake.NewClientset(node, service)
	shared := informers.NewSharedInformerFactory(kube, 0)
	w.Follow(shared)
	ctx, stop := context.WithCancel(context.Background())
	w.t.Cleanup(func() { stop(); shared.Shutdown() })
	shared.StartWithContext(ctx)
	shared.WaitForCacheSyncWithContext(ctx)
	return kube
}

// Each call that fails has one Event, however often it is retried with another request ID, until it succeeds.
func TestOneEventPerCause(t *testing.T) {
	for _, tc := range []struct {
		call    ring.Call
		summary string // begins the Event's message; "" if there is none
	}{
		{ring.Call{Method: "InstanceMetadata", Object: waiting}, "Node stays uninitialized"},
		{metadata, ""},
		{ring.Call{Method: "InstanceExists", Object: waiting}, ""},
		{ensure, doesNotMatch},
		{ring.Call{Method: "UpdateLoadBalancer", Object: service}, doesNotMatch},
		{ring.Call{Method: "EnsureLoadBalancerDeleted", Object: service}, notDeleted},
		{ring.Call{Method: "GetLoadBalancer", Object: service}, notDeleted},
		{ring.Call{Method: "ListRoutes"}, ""},
		{route("CreateRoute", "10.0.1.0/24"), "Route 10.0.1.0/24 is missing"},
		{route("DeleteRoute", "10.0.1.0/24"), ""},
		{ring.Call{Method: "CreateRoute", Route: &cloudprovider.Route{TargetNode: "unknown"}}, ""},
	} {
		t.Run(tc.call.Method+" "+tc.summary, func(t *testing.T) {
			w := newWorld(t)
			require.Error(t, w.call(route("CreateRoute", "10.0.1.0/24"), throttled(0)), "nobody knows Nodes yet")
			w.follow()
			for _, resolves := range []bool{false, tc.call.Method == "GetLoadBalancer"} { // which deletes nothing yet
				for n := range 3 {
					require.Equal(t, throttled(n), w.call(tc.call, throttled(n)))
				}
				require.Equal(t, cloudprovider.ImplementedElsewhere, w.call(tc.call, cloudprovider.ImplementedElsewhere))
				if tc.summary == "" || resolves {
					w.requireEvents()
				} else {
					w.requireEvents("Warning CloudThrottled " + tc.summary + ": too many calls (rate-limited, request 0); " +
						nextSteps[contract.ReasonCloudThrottled])
				}
				require.NoError(t, w.call(tc.call, nil))
			}
		})
	}
}

// Each step is made five times, and has its Events once.
func TestTopics(t *testing.T) {
	type causes = []core.Cause
	type step struct {
		call    ring.Call
		errs    []error // in turn; nil for none
		notices causes
		want    []string
	}
	of := func(reasons ...string) (all causes) {
		for _, reason := range reasons {
			all = append(all, core.Cause{Reason: reason})
		}
		return all
	}
	const (
		stopped  = "Warning InstanceStopped It is so; start it"
		skipped  = "Warning NodeLabelSkipped It is so; change the tag"
		degraded = "Warning LoadBalancerDegraded It is so"
		kept     = "Normal LoadBalancerKept It is so"
		held     = "Warning MassDeletionHeld It is so"
		noIPv6   = "Warning RouteNotSupported It is so; give the cluster"
	)
	storm := []error{throttled(1), errors.New("down"), causedError{"Why", "a"}, causedError{"Why", "b"}, errPending}
	stormTold := []string{"Warning CloudThrottled", "Warning CloudUnavailable", "Warning Why", "Warning Why"}
	mismatch := []error{causedError{Reason: contract.ReasonProvidedNodeIP}, context.DeadlineExceeded}
	full := []error{causedError{Reason: contract.ReasonQuotaExceeded}}
	first, second := route("CreateRoute", "10.0.1.0/24"), route("CreateRoute", "fd00::/64")
	deletion := ring.Call{Method: "EnsureLoadBalancerDeleted", Object: service}
	trip := func(n string) causes { return causes{{Reason: contract.ReasonMassDeletionHeld, Detail: n}} }
	for name, steps := range map[string][]step{
		"a storm, in which each retry fails in another way": {
			{ensure, []error{errPending}, nil, nil},
			{ensure, storm, nil, stormTold},
			{ensure, []error{errPending}, nil, nil},
			{ensure, storm, nil, nil},
			{ensure, nil, nil, nil},
			{ensure, storm, nil, stormTold},
		},
		"a wrong --node-ip, also while the cloud cannot be asked": {
			{metadata, mismatch, nil, []string{"Warning ProvidedNodeIPMismatch Node's addresses are not updated: boom; start"}},
			{metadata, nil, nil, nil},
			{metadata, mismatch, nil, []string{"Warning ProvidedNodeIPMismatch Node's addresses are not updated: boom; start"}},
		},
		"a Node of two ranges has two routes": {
			{first, full, nil, []string{"Warning QuotaExceeded Route 10.0.1.0/24"}},
			{second, full, nil, []string{"Warning QuotaExceeded Route fd00::/64"}},
			{first, nil, nil, nil},
			{second, full, nil, nil},
			{first, full, nil, []string{"Warning QuotaExceeded Route 10.0.1.0/24"}},
			{second, nil, of(contract.ReasonRouteNotSupported), []string{noIPv6}},
			{second, nil, nil, nil},
			{second, nil, of(contract.ReasonRouteNotSupported), []string{noIPv6}},
		},
		"notices, until a call about their topic finds nothing wrong": {
			{exists, nil, of("InstanceStopped"), []string{stopped}},
			{metadata, nil, of("InstanceStopped", "NodeLabelSkipped"), []string{skipped}},
			{exists, nil, nil, nil},
			{metadata, nil, of("InstanceStopped", "NodeLabelSkipped"), []string{stopped}},
			{metadata, nil, of("InstanceInError"), []string{"Warning InstanceInError It is so; repair or replace"}},
			{metadata, nil, of("NodeLabelSkipped"), []string{skipped}},
		},
		"what was done is told each time": {
			{ensure, nil, of("LoadBalancerDegraded", "NoTargets"), []string{degraded, "Warning NoTargets It is so; check"}},
			{ensure, nil, nil, nil},
			{ensure, nil, of("LoadBalancerDegraded"), []string{degraded}},
			{deletion, nil, of("LoadBalancerKept"), []string{kept, kept, kept, kept, kept}},
			{ensure, nil, of("LoadBalancerDegraded"), []string{degraded}},
		},
		"the guard holds a Node, once for each trip, until its instance exists after all": {
			{exists, []error{errPending}, trip("1"), []string{held}},
			{exists, []error{errPending}, trip("2"), []string{held}},
			{exists, []error{errPending}, trip("1"), nil},
			{exists, nil, nil, nil},
			{exists, []error{errPending}, trip("1"), []string{held}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.follow()
			for _, s := range steps {
				for range 5 {
					for _, err := range append(s.errs, make([]error, max(0, 1-len(s.errs)))...) {
						require.Equal(t, err == nil, w.call(s.call, err, s.notices...) == nil)
					}
				}
				w.requireEvents(s.want...)
			}
		})
	}
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

// Other rings have topics of their own, and objects that no call is about. Before there is a recorder nothing is told,
// nor taken for told.
func TestEventsOfOtherRings(t *testing.T) {
	w := &world{New(), t, record.NewFakeRecorder(9)}
	record := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{UID: "c1"}}
	tell := func() {
		w.WarnOnce(record, "stopped", contract.ReasonMassDeletionStopped, "1", "Trip 1")
		w.WarnOnce(node, "ignored", contract.ReasonForeignProviderID, "x", "Node is ignored")
		w.Note(node, contract.ReasonNodeRemoved, "Node is removed: 100%")
	}
	tell()
	w.SetRecorder(w.recorder)
	const ignored = "Warning ForeignProviderID Node is ignored; the CCM ignores Nodes of other clouds"
	const removed = "Normal NodeRemoved Node is removed: 100%"
	tell()
	w.requireEvents("Warning MassDeletionStopped Trip 1", ignored, removed)
	w.Resolve(node, "stopped")
	w.Resolve(record, "ignored")
	tell()
	w.requireEvents(removed)
	w.Resolve(node, "ignored")
	tell()
	w.requireEvents(ignored, removed)
}

// What is remembered of an object goes with it, and is little before.
func TestMemoryHasAnEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		kube := w.follow()
		for n := range 500 {
			w.WarnOnce(node, "topic", "Why", fmt.Sprint(n), "it is not so")
		}
		assert.Len(t, w.reported[objectTopic{"u1", "topic"}], maxReportedCauses)
		require.Error(t, w.call(ensure, throttled(1)))
		require.Error(t, w.call(ensure, errPending))
		require.Len(t, w.pendingSince, 1)
		require.NoError(t, kube.CoreV1().Nodes().Delete(t.Context(), "node-1", metav1.DeleteOptions{}))
		synctest.Wait()
		assert.Len(t, w.reported, 1)
		require.NoError(t, kube.CoreV1().Services("default").Delete(t.Context(), "web", metav1.DeleteOptions{}))
		synctest.Wait()
		assert.Empty(t, w.reported)
		assert.Empty(t, w.pendingSince)
		uid, _ := ring.DeletedUID(cache.DeletedFinalStateUnknown{Key: "node-1", Obj: node})
		assert.Equal(t, node.UID, uid)
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
		w.WarnOnce(node, "topic", reason, "", "It is not so")
		assert.Equal(t, want, <-w.recorder.Events)
	}
}
