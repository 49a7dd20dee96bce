package lab

// Which program is a lab's CCM.

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/ccmlab/ccmlab/lab/cluster"
	"github.com/ccmlab/ccmlab/lab/cluster/local"
	"github.com/ccmlab/ccmlab/lab/conformance"
	"github.com/ccmlab/ccmlab/lab/conformance/profiles"
	"github.com/ccmlab/ccmlab/lab/state"
	"github.com/ccmlab/ccmlab/lab/ui"
)

// UseCCM has a program on this machine be the lab's CCM, in place of its own, from
// now on. Its arguments are templates, as the conformance suite has them; without any
// it is given those of the lab's own. A CCM that runs is replaced.
func (l *Lab) UseCCM(ctx context.Context, path string, args []string) error {
	host, command, err := l.replaceable()
	if err != nil {
		return err
	}
	p := &conformance.Program{Path: path, Args: args, Values: l.ccmValues(command)}
	if err := p.Check(); err != nil {
		return err
	}
	line, err := p.CommandLine()
	if err != nil {
		return err
	}
	if len(args) == 0 {
		line = command.Args
	}
	return l.replaceCCM(ctx, host, &cluster.Program{Path: path, Args: line})
}

// ccmValues are what the templates of a CCM's command line can name in this lab.
func (l *Lab) ccmValues(command cluster.CCMCommand) conformance.Values {
	cloud := l.Cluster.Cloud()
	return conformance.Values{
		Kubeconfig: l.Cluster.Kubeconfig(), CloudConfig: command.CloudConfig, ClusterName: l.State.Name, ClusterCIDR: command.ClusterCIDR,
		CloudURL: cloud.URL, TokenFile: cloud.TokenFile(cluster.CallerCCM), Project: l.State.Name, CAFile: cloud.CAFile,
		Address: command.Address, Port: command.Port,
	}
}

// UseOwnCCM has the lab's own CCM run again.
func (l *Lab) UseOwnCCM(ctx context.Context) error {
	host, _, err := l.replaceable()
	if err != nil {
		return err
	}
	return l.replaceCCM(ctx, host, nil)
}

func (l *Lab) replaceable() (cluster.Replaceable, cluster.CCMCommand, error) {
	host, replaceable := l.Cluster.(cluster.Replaceable)
	process, ok := l.Cluster.(cluster.LocalCCM)
	if !replaceable || !ok {
		return nil, cluster.CCMCommand{}, fmt.Errorf("the CCM of a cluster of kind %s is no process of this machine; change its Deployment", l.State.Cluster)
	}
	return host, process.CCMCommand(), l.wantsCCM()
}

// OwnCCM tells whether the lab's own CCM is the one that runs if any does.
func (l *Lab) OwnCCM() (bool, error) {
	if _, here := l.Cluster.(cluster.LocalCCM); !here {
		return true, nil
	}
	used, err := local.Site{Lab: l.State}.ProgramInUse()
	return used == nil, err
}

// CCMWanted tells whether the lab keeps a CCM running: not so after `lab ccm stop`.
func (l *Lab) CCMWanted() bool { return local.Site{Lab: l.State}.CCMWanted() }

// replaceCCM ends the one that runs, so that what comes after it is the other.
func (l *Lab) replaceCCM(ctx context.Context, host cluster.Replaceable, p *cluster.Program) error {
	wanted := l.CCMWanted()
	if wanted {
		if err := l.Cluster.StopCCM(ctx); err != nil {
			return err
		}
	}
	if err := host.UseCCM(p); err != nil || !wanted {
		return err
	}
	return l.StartCCM(ctx)
}

// Trial has the conformance suite run some tests on a program, in labs that are there for
// as long as that takes.
type Trial struct {
	// Name is the first lab's. What an earlier trial of this name has left goes first.
	Name string
	// Labs is as in ConformanceOptions.
	Labs    int
	Program *conformance.Program
	// Tests are to be run, by ID.
	Tests []string
	// Bound is the longest that any test may take; 0 is what each allows.
	Bound time.Duration
	// Tell is told of each test that ends, and what runs while none does.
	Tell func(string)
}

// Run returns what it came to: said has a line for each test that failed.
func (t Trial) Run(ctx context.Context) (passed bool, said string, err error) {
	still := newSilence(t.Tell)
	defer still.end()
	o := t.options(still)
	for _, name := range o.Names(o.Tests()) {
		if _, err := state.Open(name); !errors.Is(err, state.ErrNone) {
			if _, err := Down(ctx, name); err != nil {
				return false, "", err
			}
		}
	}
	report, err := Conformance(ctx, o, ui.Discard())
	if report == nil {
		return false, "", err
	}
	if report.Unfinished != "" {
		return false, "", errors.Join(errors.New(report.Unfinished), err)
	}
	return report.Passed(), summed(report), nil // What could not be taken down, the next try will.
}

func (t Trial) options(still *silence) ConformanceOptions {
	var quoted []string
	for _, id := range t.Tests {
		quoted = append(quoted, regexp.QuoteMeta(id))
	}
	var claims []conformance.Feature // What is asked for by name is required, be it extended.
	for _, test := range profiles.All() {
		if test.Capability != "" && slices.Contains(t.Tests, test.ID) {
			claims = append(claims, test.Capability)
		}
	}
	ended := 0
	return ConformanceOptions{
		Name: t.Name, Labs: t.Labs, Program: t.Program, Claims: claims, RequiredOnly: true, Bound: t.Bound,
		Focus: regexp.MustCompile("^(" + strings.Join(quoted, "|") + ")$"),
		Observer: func(test conformance.TestReport) {
			still.observe(test)
			if test.Result == "" { // It begins.
				return
			}
			ended++
			t.Tell(fmt.Sprintf("%d of %d: %s %s", ended, len(t.Tests), test.ID, test.Result))
		},
	}
}

// longSilence is when a suite that says nothing would look like one that hangs.
const longSilence = 20 * time.Second

// silence breaks a suite's that lasts.
type silence struct {
	mu      sync.Mutex
	running []string // tests, by ID
	since   time.Time
	timer   *time.Timer
	over    bool
}

func newSilence(tell func(string)) *silence {
	s := &silence{since: time.Now()}
	s.timer = time.AfterFunc(longSilence, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.over {
			return
		}
		if len(s.running) > 0 {
			others := ""
			if n := len(s.running) - 1; n > 0 {
				others = fmt.Sprintf(" and %d more", n)
			}
			tell(fmt.Sprintf("%s%s: still running (%s)", s.running[0], others, time.Since(s.since).Round(time.Second)))
		}
		s.timer.Reset(longSilence)
	})
	return s
}

func (s *silence) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.over = true
	s.timer.Stop()
}

// observe is told of each test that begins or ends.
func (s *silence) observe(t conformance.TestReport) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.running = slices.DeleteFunc(s.running, func(id string) bool { return id == t.ID })
	if t.Result == "" {
		s.running = append(s.running, t.ID)
	}
	s.since = time.Now()
	s.timer.Reset(longSilence)
}

// summed is a report in a few lines.
func summed(r *conformance.Report) string {
	passed := 0
	var failed []string
	for _, t := range r.Tests {
		switch t.Result {
		case conformance.Passed:
			passed++
		case conformance.Failed:
			failed = append(failed, fmt.Sprintf("%s: %s\n  it requires: %s", t.ID, strings.Join(t.Reasons, "; "), t.Requires))
		}
	}
	lines := append([]string{fmt.Sprintf("%d of %d tests of the conformance suite pass", passed, passed+len(failed))}, failed...)
	for _, c := range r.Crashes {
		lines = append(lines, "the CCM "+c)
	}
	return strings.Join(lines, "\n")
}
