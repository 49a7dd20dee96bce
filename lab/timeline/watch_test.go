package timeline_test

import (
	"encoding/json"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"github.com/ccmlab/ccmlab/ccm/contract"
	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/lab/timeline"
)

var zero = time.Date(2026, 1, 2, 15, 4, 5, 0, time.UTC)

func at(seconds float64) time.Time { return zero.Add(time.Duration(seconds * float64(time.Second))) }

func entry(seconds float64, source timeline.Source, subject string) timeline.Entry {
	return timeline.Entry{
		Time: at(seconds), Seconds: seconds, Change: timeline.Change{Source: source, Subject: subject},
	}
}

func subjects(entries []timeline.Entry) []string {
	all := []string{}
	for _, e := range entries {
		all = append(all, e.Subject)
	}
	return all
}

func TestMergeWaitsForAllSources(t *testing.T) {
	var m timeline.Merge
	m.Add(at(1.5), entry(1, timeline.SourceCluster, "service"), entry(1.4, timeline.SourceCluster, "address"))
	assert.Equal(t, []string{"service"}, subjects(m.Until(at(1.2))))
	m.Add(at(1.6), entry(1.3, timeline.SourceCall, "balancer"))
	assert.Equal(t, []string{"balancer", "address"}, subjects(m.Until(at(1.5))))
	assert.Empty(t, m.Until(at(9)), "each once")

	m.Add(at(10), entry(2, timeline.SourceCall, "late"))
	assert.Equal(t, []string{"late"}, subjects(m.Until(at(9.8))), "out of its order, and not lost")

	m.Add(at(10), entry(5000, timeline.SourceCloud, "future"))
	assert.Empty(t, m.Until(at(9.9)))
	assert.Equal(t, []string{"future"}, subjects(m.Until(at(10.1))), "a clock that was set holds nothing back for ever")

	m.Add(at(11), entry(6000, timeline.SourceCloud, "b"), entry(10.9, timeline.SourceLab, "a"))
	assert.Equal(t, []string{"a", "b"}, subjects(m.All()))
	assert.Empty(t, m.All())
}

// Whatever comes when, each entry comes out once; those told in time, in order.
func TestMergeLosesNothing(t *testing.T) {
	const settle = 0.2
	rapid.Check(t, func(t *rapid.T) {
		var m timeline.Merge
		var in, out []string
		var times []time.Time
		for round := range rapid.IntRange(1, 20).Draw(t, "rounds") {
			now := float64(round)
			for range rapid.IntRange(0, 5).Draw(t, "entries") {
				happened := rapid.Float64Range(now-1, now).Draw(t, "happened")
				// Told in this round, or, if it is younger than settle, perhaps the next.
				seen := now
				if now-happened < settle && rapid.Bool().Draw(t, "late") {
					seen = now + 1
				}
				in = append(in, "x")
				m.Add(at(seen), entry(happened, timeline.SourceCloud, "x"))
			}
			for _, e := range m.Until(at(now - settle)) {
				out, times = append(out, e.Subject), append(times, e.Time)
			}
		}
		for _, e := range m.All() {
			out, times = append(out, e.Subject), append(times, e.Time)
		}
		assert.Equal(t, in, out)
		assert.True(t, slices.IsSortedFunc(times, time.Time.Compare), "%v", times)
	})
}

// The cloud tells whole milliseconds: what a call did may seem to be before it.
func TestCallsComeBeforeWhatTheyDo(t *testing.T) {
	var m timeline.Merge
	m.Add(
		at(2), entry(1.979, timeline.SourceCloud, "change"), entry(1.9793, timeline.SourceCall, "call"),
		entry(1.98, timeline.SourceCluster, "after"),
	)
	assert.Equal(t, []string{"call", "change", "after"}, subjects(m.All()))
}

func TestCallsHaveTheNamesOfTheirIDs(t *testing.T) {
	var m timeline.Merge
	call := entry(1, timeline.SourceCall, "balancer/lb-1")
	call.ID = "lb-1"
	event := entry(1.1, timeline.SourceCloud, "balancer/web")
	event.ID = "lb-1"
	m.Add(at(2), call, event)
	assert.Equal(t, []string{"balancer/web", "balancer/web"}, subjects(m.All()), "the call that made it, too")
}

func TestFilter(t *testing.T) {
	call := func(method string, failed bool) timeline.Entry {
		e := entry(10, timeline.SourceCall, "instance/node-4")
		e.Caller, e.Failed, e.Call = "ccm", failed, &timeline.Call{Method: method}
		return e
	}
	node, service := entry(1, timeline.SourceCluster, "node/node-4"), entry(
		2, timeline.SourceEvent, "service/kube-system/dns",
	)
	service.Caller, service.Failed = "service-controller", true
	for name, tc := range map[string]struct {
		filter timeline.Filter
		entry  timeline.Entry
		want   bool
	}{
		"everything else":        {timeline.Filter{}, node, true},
		"a call that changes":    {timeline.Filter{}, call("POST", false), true},
		"a read":                 {timeline.Filter{}, call("GET", false), false},
		"a read that fails":      {timeline.Filter{}, call("GET", true), true},
		"all calls":              {timeline.Filter{Calls: timeline.CallsAll}, call("GET", false), true},
		"no calls":               {timeline.Filter{Calls: timeline.CallsNone}, call("POST", true), false},
		"no calls, but the rest": {timeline.Filter{Calls: timeline.CallsNone}, node, true},
		"a source":               {timeline.Filter{Sources: []timeline.Source{timeline.SourceCluster}}, node, true},
		"another source": {
			timeline.Filter{Sources: []timeline.Source{timeline.SourceCloud, timeline.SourceLab}}, node, false,
		},
		"a subject":                {timeline.Filter{Subjects: []string{"x", "node/node-4"}}, node, true},
		"another subject":          {timeline.Filter{Subjects: []string{"node/node-1"}}, node, false},
		"a pattern":                {timeline.Filter{Subjects: []string{"*/node-4"}}, call("POST", false), true},
		"a pattern across a slash": {timeline.Filter{Subjects: []string{"service/*"}}, service, true},
		"a pattern is the whole":   {timeline.Filter{Subjects: []string{"node"}}, node, false},
		"a caller":                 {timeline.Filter{Callers: []string{"ccm"}}, call("POST", false), true},
		"who tells an Event":       {timeline.Filter{Callers: []string{"service-*"}}, service, true},
		"another caller":           {timeline.Filter{Callers: []string{"lab"}}, call("POST", false), false},
		"what nobody called":       {timeline.Filter{Callers: []string{"ccm"}}, node, false},
		"what failed":              {timeline.Filter{Failed: true}, service, true},
		"what did not fail":        {timeline.Filter{Failed: true}, node, false},
		"since then":               {timeline.Filter{Since: at(1)}, node, true},
		"before then":              {timeline.Filter{Since: at(1.5)}, node, false},
		"all must match":           {timeline.Filter{Failed: true, Callers: []string{"ccm"}}, service, false},
		"a failed read of another kind": {
			timeline.Filter{Failed: true, Calls: timeline.CallsNone}, call("GET", true), false,
		},
		"a pattern that is none": {timeline.Filter{Subjects: []string{"[", "node/*"}}, node, true},
	} {
		t.Run(name, func(t *testing.T) { assert.Equal(t, tc.want, tc.filter.Match(tc.entry)) })
	}
	require.ErrorContains(t, timeline.Filter{Subjects: []string{"["}}.Check(), `"["`)
	require.NoError(t, timeline.Filter{Callers: []string{"c*"}}.Check())
	assert.True(t, timeline.Filter{}.WantsCalls())
	assert.False(t, timeline.Filter{Calls: timeline.CallsNone}.WantsCalls())
	assert.False(t, timeline.Filter{Sources: []timeline.Source{timeline.SourceLab}}.WantsCalls())
}

func TestCall(t *testing.T) {
	id, code, fault := "lb-1", "unavailable", "f-1"
	log := timeline.Log{Start: zero}
	made := log.Call(api.AuditEntry{
		Time: at(5), Token: "ccm", Operation: "createLoadBalancer", Resource: id, Status: 202,
		DurationMilliseconds: 10, RequestID: "r", UserAgent: "ccm/v1",
	})
	assert.Equal(t, timeline.Entry{Time: at(4.99), Seconds: 4.99, Change: timeline.Change{
		Source: timeline.SourceCall, Subject: "balancer/lb-1", What: "createLoadBalancer",
		Detail: "POST /v1/load-balancers → 202", Caller: "ccm", ID: "lb-1",
		Call: &timeline.Call{
			Method: "POST", Path: "/v1/load-balancers", Status: 202, Milliseconds: 10, RequestID: "r", UserAgent: "ccm/v1",
		},
	}}, made, "before what it did")

	read := log.Call(api.AuditEntry{
		Time: at(5), Operation: "getInstance", Resource: id, Status: 503, Code: code, Fault: fault,
		DurationMilliseconds: 10,
	})
	assert.Equal(t, "GET /v1/instances/lb-1 → 503 unavailable by fault f-1", read.Detail)
	assert.Equal(t, at(5), read.Time)
	assert.True(t, read.Failed && read.Call.Reads())

	list := log.Call(api.AuditEntry{Operation: "listRoutes"})
	assert.Equal(t, "GET /v1/routes → broken off", list.Detail)
	assert.Equal(t, "cloud/routes", list.Subject)
	assert.True(t, list.Failed)

	unknown := log.Call(api.AuditEntry{Operation: "somethingNew", Status: 200, Token: "ccm"})
	assert.Equal(t, "cloud/api", unknown.Subject, "of a newer cloud")
}

func TestPodChanges(t *testing.T) {
	pod := func(change ...func(*corev1.Pod)) *corev1.Pod {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "ns"}}
		for _, c := range change {
			c(p)
		}
		return p
	}
	scheduled := func(p *corev1.Pod) { p.Spec.NodeName = "node-1" }
	ready := func(p *corev1.Pod) {
		p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	}
	restarted := func(p *corev1.Pod) {
		p.Status.ContainerStatuses = []corev1.ContainerStatus{{
			Name: "c", RestartCount: 2,
			LastTerminationState: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 3}},
		}}
	}
	ending := func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: zero} }
	for name, tc := range map[string]struct {
		before, after *corev1.Pod
		want          []string
		failed        bool
	}{
		"a Pending one is told by its Events": {nil, pod(), nil, false},
		"is scheduled":                        {pod(), pod(scheduled), []string{"scheduled"}, false},
		"becomes ready":                       {pod(scheduled), pod(scheduled, ready), []string{"ready"}, false},
		"fails its probe":                     {pod(ready), pod(), []string{"not-ready"}, true},
		"restarts":                            {pod(), pod(restarted), []string{"restarted"}, true},
		"restarted before":                    {pod(restarted), pod(restarted), nil, false},
		"is to end":                           {pod(ready), pod(ready, ending), []string{"terminating"}, false},
		"ends":                                {pod(ready, ending), pod(ending), []string{"not-ready"}, false},
		"is gone":                             {pod(ending), nil, []string{"gone"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			changes := timeline.Pod(tc.before, tc.after)
			assert.Equal(t, tc.want, whats(changes))
			for _, c := range changes {
				assert.Equal(t, "pod/ns/p", c.Subject)
				assert.Equal(t, tc.failed, c.Failed)
			}
		})
	}
	assert.Equal(
		t, "container c, 2 times so far; its last exit code was 3", timeline.Pod(pod(), pod(restarted))[0].Detail,
	)
	assert.Equal(t, "container c, once so far; its last exit code was 3", timeline.Pod(
		pod(), pod(restarted, func(p *corev1.Pod) { p.Status.ContainerStatuses[0].RestartCount = 1 }),
	)[0].Detail)
}

func TestKubernetesEvents(t *testing.T) {
	event := func(kind, reason, typ string, count int32) *corev1.Event {
		return &corev1.Event{
			ObjectMeta:     metav1.ObjectMeta{UID: types.UID("u")},
			InvolvedObject: corev1.ObjectReference{Kind: kind, Name: "x", Namespace: "default"},
			Reason:         reason, Type: typ, Message: "a\n b", Count: count,
			Source: corev1.EventSource{Component: "old"},
		}
	}
	failed := event("Service", "SyncLoadBalancerFailed", corev1.EventTypeWarning, 1)
	assert.Equal(t, []timeline.Change{{
		Source: timeline.SourceEvent, Subject: "service/x", What: "SyncLoadBalancerFailed", Detail: "a b",
		Caller: "old", Failed: true, EventKey: "u/1",
	}}, timeline.Event(nil, failed))
	assert.Empty(t, timeline.Event(failed, failed.DeepCopy()), "a relist is no news")
	again := event("Service", "SyncLoadBalancerFailed", corev1.EventTypeWarning, 2)
	require.Len(t, timeline.Event(failed, again), 1)
	assert.Equal(t, "a b (2 times)", timeline.Event(failed, again)[0].Detail)
	assert.Empty(t, timeline.Event(again, nil), "its expiry is no news")

	series := event("Pod", "FailedScheduling", corev1.EventTypeWarning, 0)
	series.Series, series.ReportingController = &corev1.EventSeries{Count: 3}, "default-scheduler"
	got := timeline.Event(nil, series)
	require.Len(t, got, 1)
	assert.Equal(t, "u/3", got[0].EventKey)
	assert.Equal(t, "default-scheduler", got[0].Caller)

	assert.Len(t, timeline.Event(nil, event("Service", "EnsuredLoadBalancer", corev1.EventTypeNormal, 1)), 1)
	assert.Len(t, timeline.Event(nil, event("Pod", "TaintManagerEviction", corev1.EventTypeNormal, 1)), 1)
	assert.Len(t, timeline.Event(nil, event("Node", contract.ReasonNodeRemoved, corev1.EventTypeNormal, 1)), 1)
	assert.Empty(
		t, timeline.Event(nil, event("Node", "NodeHasSufficientMemory", corev1.EventTypeNormal, 1)),
		"the watch of Nodes says what matters",
	)
	assert.Empty(t, timeline.Event(nil, event("Pod", "Pulled", corev1.EventTypeNormal, 1)))
}

// What `lab watch -o json` promises.
func TestEntrySchema(t *testing.T) {
	log := timeline.Log{File: filepath.Join(t.TempDir(), "t.jsonl"), Start: zero}
	require.NoError(t, log.AddAt(
		at(1.5),
		timeline.Change{Source: timeline.SourceCloud, Subject: "instance/a", What: "running", ID: "i-1", CloudSeq: 7},
	))
	entries, err := log.Read()
	require.NoError(t, err)
	data, err := json.Marshal(entries[0])
	require.NoError(t, err)
	assert.JSONEq(
		t,
		`{"time":"2026-01-02T15:04:06.5Z","seconds":1.5,"source":"cloud","subject":"instance/a","what":"running","id":"i-1","cloudSeq":7}`,
		string(data),
	)
}
