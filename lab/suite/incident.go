package suite

// An incident is a test of the conformance suite that runs alone on a lab of its own.
// The lab's timeline shows what the test does to the cloud and the CCM, among all other
// entries. An account summarizes what the CCM did.

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/ccmlab/ccmlab/lab"
	"github.com/ccmlab/ccmlab/lab/cluster"
	"github.com/ccmlab/ccmlab/lab/conformance"
	"github.com/ccmlab/ccmlab/lab/conformance/profiles"
	"github.com/ccmlab/ccmlab/lab/timeline"
	"github.com/ccmlab/ccmlab/lab/ui"
	"github.com/ccmlab/ccmlab/lab/watch"
)

// Incidents are the tests that play an incident.
func Incidents() []conformance.Test {
	return slices.DeleteFunc(profiles.All(), func(t conformance.Test) bool { return t.Incident == nil })
}

// IncidentOptions of PlayIncident.
type IncidentOptions struct {
	// Options are those of the suite; Focus is set.
	Options
	// Show is called for each entry as it happens, ordered by time, in seconds since
	// the incident began.
	Show func(timeline.Entry) error
	// Note is called with what keeps the entries from being complete.
	Note func(string)
}

// IncidentReport is what became of an incident.
type IncidentReport struct {
	Incident string `json:"incident"`
	IncidentFacts
	CCM      conformance.Identity `json:"ccm"`
	Cluster  conformance.Identity `json:"cluster"`
	Requires string               `json:"requires"`
	Source   string               `json:"source"`
	Behaved  bool                 `json:"behaved"`
	Seconds  float64              `json:"seconds"`
	Reasons  []string             `json:"reasons,omitempty"`
	Did      CCMActivity          `json:"did"`
	Timeline []timeline.Entry     `json:"timeline"`
	Log      []string             `json:"log,omitempty"` // the CCM's last lines, if it did not behave
}

// IncidentFacts are what is known of an incident before it is played.
type IncidentFacts struct {
	Title      string                 `json:"title"`
	Test       string                 `json:"test"`
	Profile    conformance.Profile    `json:"profile"`
	Level      conformance.Level      `json:"level"`
	Capability conformance.Capability `json:"capability,omitempty"`
	Happened   string                 `json:"happened"`
	Danger     string                 `json:"danger"`
	Watch      string                 `json:"watch"`
	Right      string                 `json:"right"`
	Known      []string               `json:"known,omitempty"`
}

// FactsOf gives the facts of a test that is an incident.
func FactsOf(t conformance.Test) IncidentFacts {
	i := t.Incident
	return IncidentFacts{
		i.Title, t.ID, t.Profile, t.Level, t.Capability, i.Happened, i.Danger, i.Watch, i.Right, i.Known,
	}
}

// CCMActivity is what the CCM was seen to do.
type CCMActivity struct {
	// Calls are those of the cloud's API, the most frequent first.
	Calls []OperationCalls `json:"calls"`
	// Warnings is how many Events of type Warning came meanwhile.
	Warnings int `json:"warnings"`
	// Crashes is how often it ended by itself.
	Crashes int `json:"crashes"`
}

// OperationCalls counts the CCM's calls of one operation.
type OperationCalls struct {
	Operation string `json:"operation"`
	Calls     int    `json:"calls"`
	// Met is how many of them met a fault; Failed how many did not succeed.
	Met    int `json:"met"`
	Failed int `json:"failed"`
}

// PlayIncident brings a lab up, plays the incident on it, and takes it down unless it
// is to be kept. The account says how the CCM behaved; an error means that the incident
// could not be played to its end.
func PlayIncident(
	ctx context.Context,
	test conformance.Test,
	o IncidentOptions,
	steps *ui.Steps,
) (*IncidentReport, error) {
	o.Focus, o.Profiles = regexp.MustCompile("^"+regexp.QuoteMeta(test.ID)+"$"), []conformance.Profile{test.Profile}
	p := &incidentRun{ctx: ctx, options: o}
	o.watchLab, o.Step = p.watchLab, p.recordStep
	report, err := Run(ctx, o.Options, steps)
	if report == nil || report.Unfinished != "" {
		return nil, err
	}
	if len(report.Tests) != 1 {
		return nil, errors.Join(err, fmt.Errorf("incident %s was not played", test.Incident.Name))
	}
	result := report.Tests[0]
	if result.Result == conformance.Skipped {
		return nil, errors.Join(
			err,
			fmt.Errorf("incident %s cannot be played here: %s", test.Incident.Name, strings.Join(result.Reasons, "; ")),
		)
	}
	return p.reportOf(test, report), err
}

// incidentRun is an incident while it is played.
type incidentRun struct {
	ctx     context.Context
	options IncidentOptions

	mu               sync.Mutex
	log              timeline.Log
	began            time.Time
	shown            []timeline.Entry
	callsByOperation map[string]*OperationCalls
	warnings         int
}

// watchLab starts to watch the lab. leave returns when all entries are shown.
func (i *incidentRun) watchLab(l *lab.Lab) (leave func()) {
	i.log, i.began, i.callsByOperation = l.Timeline(), time.Now(), map[string]*OperationCalls{}
	ctx, cancel := context.WithCancel(i.ctx)
	over, ended := make(chan struct{}), make(chan struct{})
	last := sync.OnceFunc(func() { close(over) })
	go func() {
		defer close(ended)
		err := watch.Watch(ctx, l, watch.Options{
			Follow: true, Filter: timeline.Filter{Since: i.began, Calls: timeline.CallsAll},
		}, func(e timeline.Entry) error {
			if e.Caller == suiteCaller && e.Detail == stepOver {
				last()
			}
			return i.countAndShow(e)
		}, i.options.Note)
		if err != nil && ctx.Err() == nil {
			i.options.Note(fmt.Sprintf("what happens cannot be shown: %v", err))
		}
	}()
	i.recordStep(stepBegins, false)
	return func() {
		i.recordStep(stepOver, false)
		select {
		case <-over:
		case <-ended:
		case <-ctx.Done():
		case <-time.After(lastEntryBound): // Too busy to be told it all.
		}
		cancel()
		<-ended
	}
}

// lastEntryBound is how long the last entry of an incident may take to be shown.
const lastEntryBound = 3 * time.Second

// Steps of the suite in the timeline.
const (
	suiteCaller          = "suite"
	stepBegins, stepOver = "the incident begins", "the incident is over"
)

// recordStep puts a step of the suite into the timeline.
func (i *incidentRun) recordStep(what string, failed bool) {
	err := i.log.Add(timeline.Change{
		Source: timeline.SourceLab, Subject: "suite/incident", What: "step", Detail: what, Caller: suiteCaller,
		Failed: failed,
	})
	if err != nil && i.ctx.Err() == nil {
		i.options.Note(fmt.Sprintf("a step of the suite is not in the timeline: %v", err))
	}
}

// countAndShow counts an entry, and shows it if a person is to see it.
func (i *incidentRun) countAndShow(e timeline.Entry) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	if e.Call != nil && isCCM(e.Caller) {
		d := i.callsByOperation[e.What]
		if d == nil {
			d = &OperationCalls{Operation: e.What}
			i.callsByOperation[e.What] = d
		}
		d.Calls++
		if e.Call.Fault != "" {
			d.Met++
		}
		if e.Failed {
			d.Failed++
		}
	}
	if e.Source == timeline.SourceEvent && e.Failed {
		i.warnings++
	}
	if !isWorthShowing(e) {
		return nil
	}
	e.Seconds = e.Time.Sub(i.began).Round(10 * time.Millisecond).Seconds()
	i.shown = append(i.shown, e)
	return i.options.Show(e)
}

// isWorthShowing leaves out the suite's own calls of the cloud, which its steps
// describe, and the CCM's reads that meet no fault.
func isWorthShowing(e timeline.Entry) bool {
	if e.Call == nil {
		return !strings.HasPrefix(e.Subject, "pod/")
	}
	return isCCM(e.Caller) && (e.Failed || e.Call.Fault != "" || !e.Call.Reads())
}

// reportOf sums up.
func (i *incidentRun) reportOf(test conformance.Test, report *conformance.Report) *IncidentReport {
	i.mu.Lock()
	defer i.mu.Unlock()
	played, result := test.Incident, report.Tests[0]
	a := &IncidentReport{
		Incident: played.Name, IncidentFacts: FactsOf(test), CCM: report.Implementation, Cluster: report.Cluster,
		Requires: test.Requires, Source: test.Source,
		// One that ends by itself without a fault does not behave, however it comes out.
		Behaved: result.Result == conformance.Passed && len(report.Crashes) == 0,
		Seconds: result.Seconds, Reasons: result.Reasons,
		Did:      CCMActivity{Calls: []OperationCalls{}, Warnings: i.warnings, Crashes: len(report.Crashes) + report.ExitsUnderFault},
		Timeline: i.shown,
	}
	for _, d := range i.callsByOperation {
		a.Did.Calls = append(a.Did.Calls, *d)
	}
	slices.SortFunc(a.Did.Calls, func(a, b OperationCalls) int {
		return cmp.Or(cmp.Compare(b.Calls, a.Calls), cmp.Compare(a.Operation, b.Operation))
	})
	if len(report.Crashes) > 0 {
		a.Reasons = append(
			slices.Clone(a.Reasons), fmt.Sprintf("the CCM ended by itself, times: %d", len(report.Crashes)),
		)
	}
	if !a.Behaved {
		for _, note := range result.Notes {
			if line, said := strings.CutPrefix(note, "ccm: "); said {
				a.Log = append(a.Log, line)
			}
		}
	}
	return a
}

// isCCM tells whether the caller is the CCM: with credentials that the suite has
// renewed it has another name (onfakecloud).
func isCCM(caller string) bool {
	return caller == cluster.CallerCCM || strings.HasPrefix(caller, cluster.CallerCCM+"-renewed-")
}
