package suite

import (
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/lab/conformance"
	"github.com/ccmlab/ccmlab/lab/timeline"
)

// What a person sees of an incident is what the CCM does, and what becomes of it;
// what it reads without meeting a fault only counts.
func TestWhatIsShownOfAnIncident(t *testing.T) {
	began := time.Now()
	var shown []string
	p := &incidentRun{began: began, callsByOperation: map[string]*OperationCalls{}, options: IncidentOptions{Show: func(e timeline.Entry) error {
		shown = append(shown, e.Detail)
		assert.InDelta(t, 2, e.Seconds, 0.001, "since the incident began")
		return nil
	}}}
	call := func(caller, operation, method, fault, detail string, failed bool) timeline.Entry {
		return timeline.Entry{Change: timeline.Change{Source: timeline.SourceCall, Caller: caller, What: operation, Detail: detail, Failed: failed,
			Call: &timeline.Call{Method: method, Fault: fault}}}
	}
	for _, e := range []timeline.Entry{
		call("ccm", "listThings", "GET", "", "a read", false),
		call("ccm", "listThings", "GET", "f-1", "a read that meets a fault", false),
		call("ccm", "getThing", "GET", "", "a read that fails", true),
		call("ccm", "createThing", "POST", "", "a change", false),
		call("operator", "createFault", "POST", "", "the suite's own", false),
		{Change: timeline.Change{
			Source: timeline.SourceEvent, Subject: "service/a", Detail: "a Warning", Failed: true,
		}},
		{Change: timeline.Change{Source: timeline.SourceCluster, Subject: "pod/a", Detail: "a pod"}},
		{Change: timeline.Change{Source: timeline.SourceCluster, Subject: "node/a", Detail: "a Node"}},
	} {
		e.Time = began.Add(2 * time.Second)
		require.NoError(t, p.countAndShow(e))
	}
	assert.Equal(
		t, []string{"a read that meets a fault", "a read that fails", "a change", "a Warning", "a Node"}, shown,
	)

	test := conformance.Test{ID: "resilience-a", Incident: &conformance.Incident{Name: "a"}}
	report := &conformance.Report{
		Tests: []conformance.TestReport{{Result: conformance.Passed, Notes: []string{"ccm: said", "noted"}}},
	}
	a := p.reportOf(test, report)
	assert.True(t, a.Behaved)
	assert.Empty(t, a.Log)
	assert.Equal(t, CCMActivity{Warnings: 1, Calls: []OperationCalls{
		{Operation: "listThings", Calls: 2, Met: 1}, {Operation: "createThing", Calls: 1},
		{Operation: "getThing", Calls: 1, Failed: 1},
	}}, a.Did)
	assert.Len(t, a.Timeline, 5)

	report.Crashes = []string{"panic"}
	a = p.reportOf(test, report)
	assert.False(t, a.Behaved, "it ended by itself")
	assert.Equal(t, []string{"the CCM ended by itself, times: 1"}, a.Reasons)
	assert.Equal(t, []string{"said"}, a.Log)
}

// The suite's steps are in the timeline, among all else that happens.
func TestStepsOfAnIncident(t *testing.T) {
	p := &incidentRun{ctx: t.Context(), log: timeline.Log{
		File: filepath.Join(t.TempDir(), "timeline.jsonl"), Start: time.Now(),
	},
		options: IncidentOptions{Note: func(text string) { t.Error(text) }}}
	p.recordStep("injecting fault lost on balancers", false)
	p.recordStep("changing balancer lb-1: not now", true)
	entries, err := p.log.Read()
	require.NoError(t, err)
	var told []string
	for _, e := range entries {
		assert.Equal(t, suiteCaller, e.Caller)
		assert.True(t, isWorthShowing(e))
		told = append(told, fmt.Sprintf("%s %s %s %t", e.Subject, e.What, e.Detail, e.Failed))
	}
	assert.Equal(t, []string{
		"suite/incident step injecting fault lost on balancers false",
		"suite/incident step changing balancer lb-1: not now true",
	}, told)
}

// With credentials that were renewed the CCM calls under another name.
func TestWhoIsTheCCM(t *testing.T) {
	for caller, is := range map[string]bool{
		"ccm": true, "ccm-renewed-abc": true, "operator": false, "lab": false, "ccm2": false,
	} {
		assert.Equal(t, is, isCCM(caller), caller)
	}
}
