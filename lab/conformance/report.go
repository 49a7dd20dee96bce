package conformance

// What came out of a run, in the manner of Gateway API's conformance reports:
// https://gateway-api.sigs.k8s.io (GEP-1709).

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/ccmlab/ccmlab/lab/conformance/record"
)

// Result of a test.
type Result string

// Results.
const (
	Passed  Result = "passed"
	Failed  Result = "failed"
	Skipped Result = "skipped"
	// Blocked is the result of a test that was not run, since what it builds on has failed; or that proved nothing,
	// since a fault that it injected met nothing. It has not passed.
	Blocked Result = "blocked"
)

// Verdict on a profile's core or extended tests.
type Verdict string

// Verdicts.
const (
	Success Verdict = "success" // all that is required passed
	Failure Verdict = "failure" // something required failed
	Partial Verdict = "partial" // nothing failed, but something was skipped
)

// Report is a run's outcome.
type Report struct {
	APIVersion     string    `json:"apiVersion"`
	Kind           string    `json:"kind"`
	Date           time.Time `json:"date"`
	Seconds        float64   `json:"seconds"`
	Implementation Identity  `json:"implementation"`
	Cluster        Identity  `json:"cluster"`
	Suite          Identity  `json:"suite"`
	// Command judges the CCM again, once its files are there.
	Command string `json:"command,omitempty"`
	// Claims are the capabilities whose tests are required; Unsupported are
	// features and capabilities declared missing, and why.
	Claims      []Capability    `json:"claims,omitempty"`
	Unsupported Unsupported     `json:"unsupported,omitempty"`
	Profiles    []ProfileReport `json:"profiles"`
	// Crashes are the ends that the CCM came to by itself, without a fault that could excuse it.
	Crashes []string `json:"crashes,omitempty"`
	// ExitsUnderFault is how often it ended by itself while the suite made the cloud misbehave, or before it had
	// worked again since, or because it lost its Lease on a machine that stood still. They fail nothing: exiting on
	// a bad start is upstream's idiom.
	ExitsUnderFault int          `json:"exitsUnderFault,omitempty"`
	Tests           []TestReport `json:"tests"`
	// Budget is what the CCM's work cost in calls of the cloud's API.
	Budget []Spent `json:"budget,omitempty"`
	// Unfinished says why the run ended before all tests had run: then the
	// report is no verdict.
	Unfinished string `json:"unfinished,omitempty"`
	// Focus says that only some tests were asked for: then the report is about
	// these, and no profile is whole.
	Focus string `json:"focus,omitempty"`
	// BoundsFactor is how many times as long as they say the tests could take; 0 for once.
	BoundsFactor float64 `json:"boundsFactor,omitempty"`
	// Recordings are pages on which the labs move as they did in the run, as the report's page links them.
	Recordings []string `json:"-"`
	// Timelines are the tests', by ID. They are for people, on the HTML page.
	Timelines map[string]*record.Timeline `json:"-"`

	began time.Time // to the nanosecond, where Date is for people
}

// Identity is a name and a version.
type Identity struct {
	Name    string `json:"name"`
	Version string `json:"version,omitempty"`
}

// ProfileReport sums a profile up.
type ProfileReport struct {
	Name     Profile  `json:"name"`
	Core     *Summary `json:"core,omitempty"`
	Extended *Summary `json:"extended,omitempty"`
}

// Summary of a profile's tests of one level.
type Summary struct {
	Result     Verdict    `json:"result"`
	Statistics Statistics `json:"statistics"`
	// FailedTests count for the verdict; NotRequired failed too, but are about
	// what the CCM does not claim.
	FailedTests []string `json:"failedTests,omitempty"`
	NotRequired []string `json:"notRequiredFailedTests,omitempty"`
	// BlockedTests were not run, since what they build on has failed, or have proved nothing. Those that are required
	// have not passed.
	BlockedTests []string `json:"blockedTests,omitempty"`
	SkippedTests []string `json:"skippedTests,omitempty"`
	// SkippedReasons say why, by ID.
	SkippedReasons map[string]string `json:"skippedReasons,omitempty"`
}

// Statistics counts results.
type Statistics struct {
	Passed  int `json:"passed"`
	Failed  int `json:"failed"`
	Skipped int `json:"skipped"`
	Blocked int `json:"blocked,omitempty"`
}

// Asked is how many tests were to say something: a blocked one has not passed.
func (s Statistics) Asked() int { return s.Passed + s.Failed + s.Blocked }

// TestReport is one test's outcome.
type TestReport struct {
	ID         string     `json:"id"`
	Profile    Profile    `json:"profile"`
	Level      Level      `json:"level"`
	Capability Capability `json:"capability,omitempty"`
	// Required is false for an extended test whose capability is not claimed.
	Required bool    `json:"required"`
	Requires string  `json:"requires"`
	Source   string  `json:"source"`
	Result   Result  `json:"result"`
	Seconds  float64 `json:"seconds"`
	// BlockedBy is the test that has failed, and on which a blocked one builds; "" if it ran and proved nothing.
	BlockedBy string `json:"blockedBy,omitempty"`
	// Reasons say why it failed, was skipped or blocked; Notes help to find out more.
	Reasons []string `json:"reasons,omitempty"`
	Notes   []string `json:"notes,omitempty"`
}

// WhyBlocked says in a few words why the test has neither passed nor failed.
func (t TestReport) WhyBlocked() string {
	if t.BlockedBy == "" {
		return "by a fault that was not made"
	}
	return "by " + t.BlockedBy
}

// Passed tells whether everything required passed and the CCM never crashed. A
// run without a single passed test proves nothing, and has not passed, nor has
// one that was not finished.
func (r *Report) Passed() bool {
	some := false
	if r.Unfinished != "" {
		return false
	}
	for _, t := range r.Tests {
		if t.Required && (t.Result == Failed || t.Result == Blocked) {
			return false
		}
		some = some || t.Result == Passed
	}
	return some && len(r.Crashes) == 0
}

// Verdict says what came out, in words that follow the CCM's name, and what that
// does not cover.
func (r *Report) Verdict() string {
	verdict := "has not passed"
	switch {
	case r.Unfinished != "":
		verdict = "has no verdict: the run was not finished"
	case r.Passed():
		verdict = "has passed"
	}
	var but []string
	if r.Focus != "" {
		but = append(but, fmt.Sprintf("of what %q matches", r.Focus))
	}
	skipped := 0
	for _, p := range r.Profiles {
		if p.Core != nil {
			skipped += p.Core.Statistics.Skipped
		}
	}
	if skipped > 0 {
		but = append(but, fmt.Sprintf("core tests skipped: %d", skipped))
	}
	if r.BoundsFactor > 1 {
		but = append(but, fmt.Sprintf("with %g times the time", r.BoundsFactor))
	}
	if len(but) > 0 {
		verdict += " (" + strings.Join(but, "; ") + ")"
	}
	return verdict
}

// Summarize fills Profiles from Tests.
func (r *Report) Summarize() {
	r.Profiles = nil
	for _, name := range Profiles {
		p := ProfileReport{Name: name}
		for _, level := range []Level{Core, Extended} {
			tests := slices.DeleteFunc(slices.Clone(r.Tests), func(t TestReport) bool {
				return t.Profile != name || t.Level != level
			})
			if len(tests) == 0 {
				continue
			}
			s := summaryOf(tests)
			if level == Core {
				p.Core = s
			} else {
				p.Extended = s
			}
		}
		if p.Core != nil || p.Extended != nil {
			r.Profiles = append(r.Profiles, p)
		}
	}
}

func summaryOf(tests []TestReport) *Summary {
	s, blocked := &Summary{Result: Success}, false
	for _, t := range tests {
		switch {
		case t.Result == Passed:
			s.Statistics.Passed++
		case t.Result == Skipped:
			s.Statistics.Skipped++
			s.SkippedTests = append(s.SkippedTests, t.ID)
			if s.SkippedReasons == nil {
				s.SkippedReasons = map[string]string{}
			}
			s.SkippedReasons[t.ID] = strings.Join(t.Reasons, "\n")
		case t.Result == Blocked:
			s.Statistics.Blocked++
			s.BlockedTests = append(s.BlockedTests, t.ID)
			blocked = blocked || t.Required
		case t.Required:
			s.Statistics.Failed++
			s.FailedTests = append(s.FailedTests, t.ID)
		default:
			s.Statistics.Failed++
			s.NotRequired = append(s.NotRequired, t.ID)
		}
	}
	switch {
	case len(s.FailedTests) > 0 || blocked:
		s.Result = Failure
	case len(s.SkippedTests)+len(s.NotRequired)+len(s.BlockedTests) > 0:
		s.Result = Partial
	}
	return s
}
