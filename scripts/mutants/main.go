// mutants proves that the conformance suite can fail: it builds our CCM with one
// mistake at a time, each as an overlay over the sources, and has the suite
// judge it. `make mutants` calls it, from the root of a clone. It fails if a
// mistake goes unseen by the tests meant for it, or if what else fails is not
// what the mutant's declaration says, with the reason.
package main

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"text/tabwriter"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/ccmlab/ccmlab/lab/conformance"
	"github.com/ccmlab/ccmlab/lab/conformance/mutants"
	"github.com/ccmlab/ccmlab/lab/conformance/profiles"
	"github.com/ccmlab/ccmlab/lab/ui"
)

// out has a folder for each mutant, with its sources, the suite's reports and
// what was said.
const out = "bin/mutants"

func main() {
	o := options{}
	flag.BoolVar(&o.quick, "quick", false, "run only the tests meant for each mutant, not the whole suite")
	flag.BoolVar(&o.beside, "beside", false, "run the tests meant for each mutant, and the core tests of their profiles")
	flag.IntVar(&o.parallel, "parallel", 2, "how many mutants are judged at a time, each in a lab of its own")
	flag.Usage = func() {
		fmt.Fprintln(os.Stderr, "mutants [-quick|-beside] [-parallel N] [NAME…] has the conformance suite judge our CCM with a mistake in it; with each mutant's without a name.")
		flag.PrintDefaults()
	}
	flag.Parse()
	if o.parallel < 1 || o.quick && o.beside {
		flag.Usage()
		os.Exit(2)
	}
	if err := run(flag.Args(), o); err != nil {
		fmt.Fprintln(os.Stderr, "mutants:", err)
		os.Exit(1)
	}
}

// options say how much is run.
type options struct {
	quick, beside bool
	parallel      int
}

// focus matches the tests that are run on these mutants; "" is all.
func (o options) focus(all []conformance.Test, on ...mutants.Mutant) string {
	if !o.quick && !o.beside {
		return ""
	}
	meant := map[string]bool{}
	for _, m := range on {
		for _, id := range m.CaughtBy {
			meant[id] = true
		}
	}
	about := map[conformance.Profile]bool{}
	for _, t := range all {
		about[t.Profile] = about[t.Profile] || meant[t.ID]
	}
	var ids []string
	for _, t := range all {
		if meant[t.ID] || o.beside && t.Level == conformance.Core && about[t.Profile] {
			ids = append(ids, t.ID)
		}
	}
	return "^(" + strings.Join(ids, "|") + ")$"
}

// outcome is what came of one mutant.
type outcome struct {
	caught, also []string
	took         time.Duration
	err          error // also where it is not as declared
}

// run goes on with the next mutant when one cannot be judged: each takes
// minutes.
func run(names []string, o options) error {
	chosen, err := mutants.Choose(names...)
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	j := &judge{options: o, tests: profiles.All()}
	steps, began := ui.New(os.Stderr, false), time.Now()
	if err := steps.Do(title("unmutated"), func(note func(string)) (string, error) { return j.control(ctx, chosen, note) }); err != nil {
		return err
	}
	outcomes := make([]outcome, len(chosen))
	slots := make(chan struct{}, o.parallel)
	var running sync.WaitGroup
	for n, m := range chosen {
		slots <- struct{}{}
		if ctx.Err() != nil {
			outcomes = outcomes[:n]
			break
		}
		running.Go(func() {
			defer func() { <-slots }()
			began := time.Now()
			outcomes[n].err = steps.Do(title(m.Name), func(note func(string)) (string, error) {
				var err error
				outcomes[n].caught, outcomes[n].also, err = j.judge(ctx, m, note)
				return "caught by " + strings.Join(outcomes[n].caught, ", "), err
			})
			outcomes[n].took = time.Since(began)
		})
	}
	running.Wait()
	show(os.Stdout, chosen, outcomes, time.Since(began))
	var problems []error
	for n, out := range outcomes {
		if out.err != nil && ctx.Err() == nil {
			problems = append(problems, fmt.Errorf("%s: %w\nmore in %s", chosen[n].Name, out.err, folder(chosen[n].Name)))
		}
	}
	if ctx.Err() != nil {
		problems = append(problems, errors.New("interrupted"))
	}
	return errors.Join(problems...)
}

func title(name string) string { return fmt.Sprintf("%-32s", name) }

func folder(name string) string { return filepath.Join(out, name) }

// show prints the table, and what it comes to.
func show(w io.Writer, judged []mutants.Mutant, outcomes []outcome, took time.Duration) {
	results := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(results, "\nMUTANT\tCAUGHT BY\tSECONDS\tALSO FAILED")
	caught, asDeclared := 0, 0
	for n, o := range outcomes {
		if len(o.caught) == len(judged[n].CaughtBy) {
			caught++
		}
		if o.err == nil {
			asDeclared++
		}
		_, _ = fmt.Fprintf(results, "%s\t%s\t%.0f\t%s\n", judged[n].Name, cmp.Or(strings.Join(o.caught, ", "), "nothing meant for it"),
			o.took.Seconds(), strings.Join(o.also, "\n\t\t\t"))
	}
	_ = results.Flush()
	_, _ = fmt.Fprintf(w, "\n%d mutants judged in %s: %d caught by all tests meant for them, %d as declared in all that was run\n",
		len(outcomes), took.Round(time.Second), caught, asDeclared)
}

// judge is a run's: what all mutants have in common.
type judge struct {
	options
	tests []conformance.Test
	// building is held by the one that is being compiled: two at once would
	// compile the same packages twice.
	building sync.Mutex
	// seconds each test took that our CCM as it is passed.
	seconds map[string]float64
}

// judge builds the mutant, runs the suite on it and holds the report against its
// declaration.
func (j *judge) judge(ctx context.Context, m mutants.Mutant, note func(string)) (caught, also []string, err error) {
	ccm, err := j.build(ctx, m, note)
	if err != nil {
		return nil, nil, err
	}
	defer func() { _ = os.Remove(ccm) }() // It is large, and quickly built again.
	focus := j.focus(j.tests, m)
	args := []string{"--ccm-build", ccm, "--bound", j.bound(focus).String()}
	if !j.needsMachines(focus) {
		args = append(args, "--without-machines") // Quicker, and it leaves others more.
	}
	for _, feature := range slices.Sorted(maps.Keys(m.Unsupported)) {
		args = append(args, "--unsupported", feature+"="+m.Unsupported[feature])
	}
	report, err := suite(ctx, folder(m.Name), focus, note, args...)
	if err != nil {
		return nil, nil, err
	}
	caught, also, wrong := verdict(m, report, focus != "")
	return caught, also, errors.Join(wrong...)
}

// build makes the mutant's program.
func (j *judge) build(ctx context.Context, m mutants.Mutant, note func(string)) (ccm string, err error) {
	j.building.Lock()
	defer j.building.Unlock()
	dir := folder(m.Name)
	if err := os.RemoveAll(dir); err != nil { // A report of before would be believed.
		return "", err
	}
	return m.Build(ctx, ".", dir, note)
}

// control has the suite judge our CCM as it is, once for all mutants: a test
// that fails on that, too, has caught nothing.
func (j *judge) control(ctx context.Context, on []mutants.Mutant, note func(string)) (string, error) {
	dir := folder("unmutated")
	if err := errors.Join(os.RemoveAll(dir), os.MkdirAll(dir, 0o755)); err != nil {
		return "", err
	}
	report, err := suite(ctx, dir, j.focus(j.tests, on...), note)
	if err != nil {
		return "", err
	}
	if !report.Passed() {
		return "", fmt.Errorf("our CCM as it is does not pass; %s says why", filepath.Join(dir, "report.yaml"))
	}
	j.seconds = map[string]float64{}
	for _, t := range report.Tests {
		j.seconds[t.ID] = t.Seconds
	}
	return fmt.Sprintf("passes %d tests", len(report.Tests)), nil
}

// What is spent on a test that fails is bounded by what the slowest of those run
// takes when it passes, several times over: labs beside each other are slow.
const (
	leastBound = 45 * time.Second
	mostBound  = 2 * time.Minute
	timesOver  = 3
)

// bound is how long a test may take of those that focus matches.
func (j *judge) bound(focus string) time.Duration {
	matches := regexp.MustCompile(focus)
	slowest := 0.0
	for id, took := range j.seconds {
		if matches.MatchString(id) {
			slowest = max(slowest, took)
		}
	}
	return min(max(time.Duration(timesOver*slowest*float64(time.Second)), leastBound), mostBound).Round(time.Second)
}

// needsMachines tells whether a test that focus matches would be skipped without.
func (j *judge) needsMachines(focus string) bool {
	matches := regexp.MustCompile(focus)
	return slices.ContainsFunc(j.tests, func(t conformance.Test) bool {
		return matches.MatchString(t.ID) && (slices.Contains(t.Needs, conformance.FeatureMachines) || slices.Contains(t.Needs, conformance.FeatureTraffic))
	})
}

// suite runs the tests that focus matches, all if it is "".
func suite(ctx context.Context, dir, focus string, note func(string), args ...string) (*conformance.Report, error) {
	args = append([]string{"conformance", "--report-dir", dir}, args...)
	if focus != "" {
		args = append(args, "--focus", focus)
	}
	failed := lab(ctx, args, filepath.Join(dir, "output.log"), note)
	data, err := os.ReadFile(filepath.Join(dir, "report.yaml"))
	if err != nil {
		return nil, fmt.Errorf("the suite could not be run: %w", cmp.Or(failed, err))
	}
	report := &conformance.Report{}
	return report, yaml.Unmarshal(data, report)
}

// downBound is how long an interrupted suite may take to take its lab down.
const downBound = time.Minute

// lab runs the lab's command. What that says goes to a file, too.
func lab(ctx context.Context, args []string, log string, note func(string)) error {
	f, err := os.Create(log)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	cmd := exec.CommandContext(ctx, filepath.Join("bin", "lab"), args...)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = downBound
	cmd.Stdout = f
	stderr, err := cmd.StderrPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	for lines := bufio.NewReader(io.TeeReader(stderr, f)); ; {
		line, err := lines.ReadString('\n')
		if err != nil {
			return cmd.Wait()
		}
		if !strings.HasPrefix(line, "    ") { // Why a test failed is for the report.
			note(fmt.Sprintf("%.70s", strings.Join(strings.Fields(line), " ")))
		}
	}
}
