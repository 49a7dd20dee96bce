package lab

import (
	"context"
	"errors"
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
	p := &play{began: began, deeds: map[string]*CallsOf{}, options: IncidentOptions{Show: func(e timeline.Entry) error {
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
		{Change: timeline.Change{Source: timeline.SourceEvent, Subject: "service/a", Detail: "a Warning", Failed: true}},
		{Change: timeline.Change{Source: timeline.SourceCluster, Subject: "pod/a", Detail: "a pod"}},
		{Change: timeline.Change{Source: timeline.SourceCluster, Subject: "node/a", Detail: "a Node"}},
	} {
		e.Time = began.Add(2 * time.Second)
		require.NoError(t, p.saw(e))
	}
	assert.Equal(t, []string{"a read that meets a fault", "a read that fails", "a change", "a Warning", "a Node"}, shown)

	test := conformance.Test{ID: "resilience-a", Incident: &conformance.Incident{Name: "a"}}
	report := &conformance.Report{Tests: []conformance.TestReport{{Result: conformance.Passed, Notes: []string{"ccm: said", "noted"}}}}
	a := p.account(test, report)
	assert.True(t, a.Behaved)
	assert.Empty(t, a.Log)
	assert.Equal(t, Deeds{Warnings: 1, Calls: []CallsOf{
		{Operation: "listThings", Calls: 2, Met: 1}, {Operation: "createThing", Calls: 1}, {Operation: "getThing", Calls: 1, Failed: 1},
	}}, a.Did)
	assert.Len(t, a.Timeline, 5)

	report.Crashes = []string{"panic"}
	a = p.account(test, report)
	assert.False(t, a.Behaved, "it ended by itself")
	assert.Equal(t, []string{"the CCM ended by itself, times: 1"}, a.Reasons)
	assert.Equal(t, []string{"said"}, a.Log)
}

// The suite's steps are in the timeline, each once, however often a test makes
// sure of it.
func TestStepsOfAnIncident(t *testing.T) {
	ctx := t.Context()
	p := &play{ctx: ctx, log: timeline.Log{File: filepath.Join(t.TempDir(), "timeline.jsonl"), Start: time.Now()},
		options: IncidentOptions{Note: func(text string) { t.Error(text) }}}
	cloud, ccm := toldCloud{stubCloud{}, p.tell}, &toldCCM{CCM: stubCCM{}, tell: p.tell}
	fault, err := cloud.Inject(ctx, conformance.Fault{Kind: conformance.FaultLost, On: []conformance.Thing{conformance.Balancers}})
	require.NoError(t, err)
	for range 2 {
		require.NoError(t, ccm.Start(ctx))
	}
	for range 2 {
		require.NoError(t, ccm.Stop(ctx))
		require.NoError(t, fault.Lift(ctx))
	}
	require.NoError(t, cloud.DeleteBalancer(ctx, "lb-1"))
	require.NoError(t, cloud.DeleteBalancer(ctx, "lb-gone"))
	require.NoError(t, cloud.RenameBalancer(ctx, "lb-1", "b"))
	require.Error(t, cloud.ChangeBalancer(ctx, "lb-1", nil, nil))
	entries, err := p.log.Read()
	require.NoError(t, err)
	var told []string
	for _, e := range entries {
		assert.Equal(t, suiteCaller, e.Caller)
		assert.Equal(t, e.What == "changed", e.Failed)
		told = append(told, e.Subject+" "+e.What+" "+e.Detail)
	}
	assert.Equal(t, []string{
		"suite/fault-lost fault-begins what the CCM asks about balancers meets it",
		"suite/ccm started ", "suite/ccm stopped ",
		"suite/fault-lost fault-lifted calls that met it: 3",
		"balancer/lb-1 deleted by the suite, behind the CCM's back",
		"balancer/lb-1 renamed to b, behind the CCM's back",
		"balancer/lb-1 changed behind the CCM's back: not now",
	}, told)
}

type stubCloud struct{ conformance.Cloud }

func (stubCloud) Inject(context.Context, conformance.Fault) (conformance.Injection, error) {
	return stubInjection{}, nil
}

func (stubCloud) Balancer(_ context.Context, id string) (conformance.Balancer, bool, error) {
	return conformance.Balancer{ID: id}, id != "lb-gone", nil
}
func (stubCloud) DeleteBalancer(context.Context, string) error         { return nil }
func (stubCloud) RenameBalancer(context.Context, string, string) error { return nil }
func (stubCloud) ChangeBalancer(context.Context, string, []conformance.Listener, []string) error {
	return errors.New("not now")
}

type stubInjection struct{}

func (stubInjection) Hits(context.Context) (int, error) { return 3, nil }
func (stubInjection) Lift(context.Context) error        { return nil }

type stubCCM struct{ conformance.CCM }

func (stubCCM) Start(context.Context) error { return nil }
func (stubCCM) Stop(context.Context) error  { return nil }
