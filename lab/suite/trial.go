package suite

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/ccmlab/ccmlab/lab/conformance"
	"github.com/ccmlab/ccmlab/lab/conformance/profiles"
	"github.com/ccmlab/ccmlab/lab/conformance/program"
	"github.com/ccmlab/ccmlab/lab/lifecycle"
	"github.com/ccmlab/ccmlab/lab/state"
	"github.com/ccmlab/ccmlab/lab/ui"
)

// Trial runs some tests of the conformance suite on a program, in labs that exist only
// for that time.
type Trial struct {
	// Name is the name of the first lab. Labs that an earlier trial of this name has
	// left are taken down first.
	Name string
	// Labs, Program and AwaitProgram are as in Options.
	Labs         int
	Program      *program.CCM
	AwaitProgram func()
	// Tests are to be run, by ID; First are those to begin with.
	Tests, First []string
	// Bound is the longest that any test may take; 0 is what each allows.
	Bound time.Duration
	// Tell is called for each test that ends, with what runs while none does, and with what the first tests wait for
	// that wait for long.
	Tell func(string)
}

// Verdict is what came out of a Trial.
type Verdict struct {
	Passed bool `json:"passed"`
	// Failed are the tests that failed, by ID, without those that were blocked by them.
	Failed []string `json:"failed,omitempty"`
	// Said sums it up, with what each test that failed requires.
	Said string `json:"said"`
}

// Run runs the tests.
func (t Trial) Run(ctx context.Context) (Verdict, error) {
	still := startProgressReminder(t.Tell)
	defer still.stop()
	o := t.suiteOptions(still)
	for _, name := range o.Names(o.SelectTests()) {
		if _, err := state.Open(name); !errors.Is(err, state.ErrNone) {
			if _, err := lifecycle.Down(ctx, name); err != nil {
				return Verdict{}, err
			}
		}
	}
	report, err := Run(ctx, o, ui.Discard())
	if report == nil {
		return Verdict{}, err
	}
	if report.Unfinished != "" {
		return Verdict{}, errors.Join(errors.New(report.Unfinished), err)
	}
	return verdictOf(report), nil // What could not be taken down, the next try will.
}

func (t Trial) suiteOptions(still *progressReminder) Options {
	var quoted []string
	for _, id := range t.Tests {
		quoted = append(quoted, regexp.QuoteMeta(id))
	}
	var claims []conformance.Capability // What is asked for by name is required, be it extended.
	for _, test := range profiles.All() {
		if test.Capability != "" && slices.Contains(t.Tests, test.ID) {
			claims = append(claims, test.Capability)
		}
	}
	ended, early := 0, earlyFindings{tell: t.Tell}
	return Options{
		Name: t.Name, Labs: t.Labs, Program: t.Program, AwaitProgram: t.AwaitProgram, First: t.First,
		Options: conformance.Options{
			Implementation: conformance.Implementation{Claims: claims}, RequiredOnly: true, Bound: t.Bound,
			Overdue: early.add, Focus: regexp.MustCompile("^(" + strings.Join(quoted, "|") + ")$"),
			Observer: func(test conformance.TestReport) {
				still.observeTest(test)
				if test.Result == "" { // It begins.
					return
				}
				ended++
				t.Tell(fmt.Sprintf("%d of %d: %s %s", ended, len(t.Tests), test.ID, test.Result))
			},
		},
	}
}

// verdictOf is a report in a few lines.
func verdictOf(r *conformance.Report) Verdict {
	v, passed := Verdict{Passed: r.Passed()}, 0
	var failed []string
	for _, t := range r.Tests {
		switch t.Result {
		case conformance.Passed:
			passed++
		case conformance.Blocked:
			failed = append(failed, fmt.Sprintf("%s: %s", t.ID, strings.Join(t.Reasons, "; ")))
		case conformance.Failed:
			v.Failed = append(v.Failed, t.ID)
			failed = append(failed, fmt.Sprintf("%s requires: %s%s", t.ID, t.Requires, formatReasons(t.Reasons)))
		}
	}
	lines := append(
		[]string{fmt.Sprintf("%d of %d tests of the conformance suite pass", passed, passed+len(failed))}, failed...,
	)
	for _, c := range r.Crashes {
		lines = append(lines, "the CCM "+c)
	}
	v.Said = strings.Join(lines, "\n")
	return v
}

// In a reason that testify words, traceRE matches where in the suite's sources the failure
// was found, or the stack of a panic, and marginRE what is left of its table.
var (
	traceRE  = regexp.MustCompile(`(?s)^Error Trace:.*?\n\tError: +\t|\ngoroutine \d+ \[.*`)
	marginRE = regexp.MustCompile(`(?m)^\t(Messages:)? +\t`)
)

// formatReasons returns reasons as indented lines, for somebody who does not know the
// suite's sources.
func formatReasons(reasons []string) string {
	var out strings.Builder
	for _, r := range reasons {
		r = marginRE.ReplaceAllString(traceRE.ReplaceAllString(r, ""), "")
		out.WriteString("\n  " + strings.ReplaceAll(r, "\n", "\n  "))
	}
	return out.String()
}

// maxEarlyFindings is how many tests are told about while they wait: the others say much the same.
const maxEarlyFindings = 3

// earlyFindings tells what tests wait for, before there is a verdict.
type earlyFindings struct {
	tell func(string)

	mu    sync.Mutex
	tests []string // by ID
}

func (e *earlyFindings) add(w conformance.Wait) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.tests) == maxEarlyFindings || slices.Contains(e.tests, w.Test.ID) {
		return
	}
	e.tests = append(e.tests, w.Test.ID)
	e.tell(fmt.Sprintf(
		"%s: not yet after %s: %s; instead: %v\n     It requires: %s\n     The test goes on; Ctrl-C ends it.",
		w.Test.ID, w.Took.Round(time.Second), w.For, w.Last, w.Test.Requires,
	))
}

// reminderInterval is how long a suite may be silent before it looks like one that hangs.
const reminderInterval = 20 * time.Second

// progressReminder tells which tests still run when the suite has been silent for a while.
type progressReminder struct {
	mu      sync.Mutex
	running []string // tests, by ID
	since   time.Time
	timer   *time.Timer
	stopped bool
}

func startProgressReminder(tell func(string)) *progressReminder {
	s := &progressReminder{since: time.Now()}
	s.timer = time.AfterFunc(reminderInterval, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.stopped {
			return
		}
		if len(s.running) > 0 {
			others := ""
			if n := len(s.running) - 1; n > 0 {
				others = fmt.Sprintf(" and %d more", n)
			}
			tell(fmt.Sprintf("%s%s: still running (%s)", s.running[0], others, time.Since(s.since).Round(time.Second)))
		}
		s.timer.Reset(reminderInterval)
	})
	return s
}

func (p *progressReminder) stop() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stopped = true
	p.timer.Stop()
}

// observeTest is told of each test that begins or ends.
func (p *progressReminder) observeTest(t conformance.TestReport) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.running = slices.DeleteFunc(p.running, func(id string) bool { return id == t.ID })
	if t.Result == "" {
		p.running = append(p.running, t.ID)
	}
	p.since = time.Now()
	p.timer.Reset(reminderInterval)
}
