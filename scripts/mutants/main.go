// mutants proves that the conformance suite can fail: it builds our CCM with one
// mistake at a time, each as an overlay over the sources, and runs the suite on it.
// `make mutants` calls it, from the root of a clone. It fails if a test passes that is meant to
// catch the mistake, or if another test fails and the mutant's declaration does not give a reason
// for that.
//
// The mutants are declared in lab/conformance/mutants. Begin with run, and with
// compareWithDeclaration.
package main

import (
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
	"github.com/ccmlab/ccmlab/lab/process"
	"github.com/ccmlab/ccmlab/lab/ui"
)

// outDir has a folder for each mutant, with its sources, the suite's reports and its output.
const outDir = "bin/mutants"

func main() {
	o := options{}
	flag.BoolVar(&o.quick, "quick", false, "run only the tests meant for each mutant, not the whole suite")
	flag.BoolVar(
		&o.withCore, "beside", false, "run the tests meant for each mutant, and the core tests of their profiles",
	)
	flag.StringVar(
		&o.cluster, "cluster", "", "judge the mutants whose mistake shows in this kind of cluster only, and there",
	)
	flag.IntVar(&o.parallel, "parallel", 2, "how many mutants are judged at a time, each in a lab of its own")
	flag.BoolVar(&o.rings, "rings", false, "judge our CCM without each of its rings, with all core tests, and write "+
		"the table in "+ringsFile)
	build := flag.String("build", "", "build the mutant of this name, and print the program's path")
	flag.Usage = func() {
		fmt.Fprintln(
			os.Stderr,
			"mutants [-quick|-beside] [-cluster KIND] [-parallel N] [NAME…] has the conformance suite judge our CCM "+
				"with a mistake in it; with each mutant's without a name.",
		)
		flag.PrintDefaults()
	}
	flag.Parse()
	if o.parallel < 1 || o.quick && o.withCore || o.rings && (o.quick || o.withCore) {
		flag.Usage()
		os.Exit(2)
	}
	if *build != "" {
		if err := printBuilt(*build); err != nil {
			fmt.Fprintln(os.Stderr, "mutants:", err)
			os.Exit(1)
		}
		return
	}
	if err := run(flag.Args(), o); err != nil {
		fmt.Fprintln(os.Stderr, "mutants:", err)
		os.Exit(1)
	}
}

// printBuilt builds the mutant, and prints the path of its program.
func printBuilt(name string) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	chosen, err := mutants.Choose(name)
	if err != nil {
		return err
	}
	var program string
	err = ui.New(os.Stderr, false).Do(stepTitle(name), func(note func(string)) (string, error) {
		program, err = chosen[0].Build(ctx, ".", mutantDir(name), note)
		return "built", err
	})
	if err == nil {
		fmt.Println(program)
	}
	return err
}

// options say which mutants are judged, where, and by which tests.
type options struct {
	quick, withCore, rings bool
	cluster                string
	parallel               int
}

// chooseMutants returns the named mutants, or all, of the chosen kind of cluster.
func (o options) chooseMutants(names ...string) ([]mutants.Mutant, error) {
	all, err := mutants.Choose(names...)
	if o.rings && len(names) == 0 {
		all, err = mutants.Rings()
	}
	var chosen []mutants.Mutant
	for _, m := range all {
		if m.Cluster == o.cluster {
			chosen = append(chosen, m)
		} else if len(names) > 0 {
			err = errors.Join(err, fmt.Errorf("%s is judged with -cluster %q, not %q", m.Name, m.Cluster, o.cluster))
		}
	}
	if err == nil && len(chosen) == 0 {
		err = fmt.Errorf("no mutant is for -cluster %q", o.cluster)
	}
	return chosen, err
}

// focusPattern returns a regular expression that matches the tests to run on these mutants; "" is all tests.
func (o options) focusPattern(all []conformance.Test, chosen ...mutants.Mutant) string {
	if !o.quick && !o.withCore && !o.rings {
		return ""
	}
	meant := map[string]bool{}
	for _, m := range chosen {
		for _, id := range m.CaughtBy {
			meant[id] = true
		}
	}
	hasMeantTest := map[conformance.Profile]bool{}
	for _, t := range all {
		hasMeantTest[t.Profile] = hasMeantTest[t.Profile] || meant[t.ID]
	}
	var ids []string
	for _, t := range all {
		isBeside := o.rings || o.withCore && hasMeantTest[t.Profile]
		if meant[t.ID] || isBeside && t.Level == conformance.Core {
			ids = append(ids, t.ID)
		}
	}
	return "^(" + strings.Join(ids, "|") + ")$"
}

// outcome is the result of one mutant.
type outcome struct {
	caught, also []string // tests that failed: those meant for it, and others as declared
	took         time.Duration
	err          error // also where the result is not as declared
}

// run judges the named mutants, or all, and prints a table. Because each takes minutes, it goes on
// with the next mutant when one cannot be judged.
func run(names []string, o options) error {
	chosen, err := o.chooseMutants(names...)
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	j := &judge{options: o, tests: profiles.All()}
	steps, began := ui.New(os.Stderr, false), time.Now()
	if err := steps.Do(
		stepTitle("unmutated"), func(note func(string)) (string, error) { return j.judgeUnmutated(ctx, chosen, note) },
	); err != nil {
		return err
	}
	outcomes := make([]outcome, len(chosen))
	outcomes = outcomes[:judgeParallel(ctx, o.parallel, len(chosen), func(n int) {
		began := time.Now()
		outcomes[n].err = steps.Do(stepTitle(chosen[n].Name), func(note func(string)) (string, error) {
			var err error
			outcomes[n].caught, outcomes[n].also, err = j.judgeMutant(ctx, chosen[n], note)
			return "caught by " + strings.Join(outcomes[n].caught, ", "), err
		})
		outcomes[n].took = time.Since(began)
	})]
	printResults(os.Stdout, chosen, outcomes, time.Since(began))
	if o.rings {
		err = writeRings(chosen, outcomes, j.tests)
	}
	problems := []error{err}
	for n, out := range outcomes {
		if out.err != nil && ctx.Err() == nil {
			problems = append(
				problems, fmt.Errorf("%s: %w\nmore in %s", chosen[n].Name, out.err, mutantDir(chosen[n].Name)),
			)
		}
	}
	if ctx.Err() != nil {
		problems = append(problems, errors.New("interrupted"))
	}
	return errors.Join(problems...)
}

// judgeParallel calls judge for each of count mutants, parallel at a time. It begins no more when ctx has
// ended, and returns how many it began.
func judgeParallel(ctx context.Context, parallel, count int, judge func(n int)) (begun int) {
	slots := make(chan struct{}, parallel)
	var running sync.WaitGroup
	defer running.Wait()
	for n := range count {
		slots <- struct{}{}
		if ctx.Err() != nil {
			return n
		}
		running.Go(func() {
			defer func() { <-slots }()
			judge(n)
		})
	}
	return count
}

func stepTitle(name string) string { return fmt.Sprintf("%-32s", name) }

func mutantDir(name string) string { return filepath.Join(outDir, name) }

// printResults prints the table, and a summary.
func printResults(w io.Writer, judged []mutants.Mutant, outcomes []outcome, took time.Duration) {
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
		_, _ = fmt.Fprintf(results, "%s\t%s\t%.0f\t%s\n", judged[n].Name, cmp.Or(
			strings.Join(o.caught, ", "), "nothing meant for it",
		),
			o.took.Seconds(), strings.Join(o.also, "\n\t\t\t"))
	}
	_ = results.Flush()
	_, _ = fmt.Fprintf(w, "\n%d mutants judged in %s: %d caught by all tests meant for them, %d as declared in all that was run\n",
		len(outcomes), took.Round(time.Second), caught, asDeclared)
}

// judge judges mutants, and has what those of a run have in common.
type judge struct {
	options
	tests []conformance.Test
	// building is held while a mutant is compiled: two at the same time would
	// compile the same packages twice.
	building sync.Mutex
	// seconds is how long each test took on our CCM without a mistake, by the test's ID.
	seconds map[string]float64
}

// judgeMutant builds the mutant, runs the suite on it and compares the report with its
// declaration.
func (j *judge) judgeMutant(
	ctx context.Context,
	m mutants.Mutant,
	note func(string),
) (caught, also []string, err error) {
	ccm, err := j.buildMutant(ctx, m, note)
	if err != nil {
		return nil, nil, err
	}
	defer func() { _ = os.Remove(ccm) }() // The program is large, and quickly built again.
	focus := j.focusPattern(j.tests, m)
	args := []string{"--ccm-build", ccm, "--bound", j.testBound(focus).String()}
	if !j.needsMachines(focus) {
		args = append(args, "--without-machines") // That is quicker, and leaves more CPU to the other labs.
	}
	if focus != "" {
		args = append(args, "--run-blocked") // Each of the few is to fail by itself.
	}
	for _, feature := range slices.Sorted(maps.Keys(m.Unsupported)) {
		args = append(args, "--unsupported", feature+"="+m.Unsupported[feature])
	}
	report, err := j.runSuite(ctx, mutantDir(m.Name), focus, note, args...)
	if err != nil {
		return nil, nil, err
	}
	caught, also, wrong := compareWithDeclaration(m, report, focus != "")
	return caught, also, errors.Join(wrong...)
}

// buildMutant makes the mutant's program.
func (j *judge) buildMutant(ctx context.Context, m mutants.Mutant, note func(string)) (ccm string, err error) {
	j.building.Lock()
	defer j.building.Unlock()
	dir := mutantDir(m.Name)
	if err := os.RemoveAll(dir); err != nil { // An earlier report would be taken for the new one.
		return "", err
	}
	return m.Build(ctx, ".", dir, note)
}

// judgeUnmutated runs the suite on our CCM without a mistake, once for all mutants: a test that
// fails there, too, catches nothing. It also measures how long the tests take.
func (j *judge) judgeUnmutated(ctx context.Context, chosen []mutants.Mutant, note func(string)) (string, error) {
	dir := mutantDir("unmutated")
	if err := errors.Join(os.RemoveAll(dir), os.MkdirAll(dir, 0o755)); err != nil {
		return "", err
	}
	report, err := j.runSuite(ctx, dir, j.focusPattern(j.tests, chosen...), note)
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

// A test that fails may take slowFactor times as long as the slowest of the tests that are run
// takes when it passes, within these bounds. The factor is there because labs beside each other
// are slow.
const (
	minTestBound = 45 * time.Second
	maxTestBound = 2 * time.Minute
	slowFactor   = 3
)

// testBound returns how long each of the tests that focus matches may take.
func (j *judge) testBound(focus string) time.Duration {
	matches := regexp.MustCompile(focus)
	slowest := 0.0
	for id, took := range j.seconds {
		if matches.MatchString(id) {
			slowest = max(slowest, took)
		}
	}
	bound := time.Duration(slowFactor * slowest * float64(time.Second))
	return min(max(bound, minTestBound), maxTestBound).Round(time.Second)
}

// needsMachines tells whether a test that focus matches would be skipped without machines.
func (j *judge) needsMachines(focus string) bool {
	matches := regexp.MustCompile(focus)
	return slices.ContainsFunc(j.tests, func(t conformance.Test) bool {
		return matches.MatchString(t.ID) && (slices.Contains(t.Needs, conformance.FeatureMachines) ||
			slices.Contains(t.Needs, conformance.FeatureTraffic))
	})
}

// runSuite runs the tests that focus matches, or all if it is "", and reads the report. It returns
// the report also when tests fail.
func (o options) runSuite(
	ctx context.Context,
	dir, focus string,
	note func(string),
	args ...string,
) (*conformance.Report, error) {
	args = append([]string{"conformance", "--report-dir", dir}, args...)
	if o.cluster != "" {
		args = append(args, "--cluster", o.cluster)
	}
	if focus != "" {
		args = append(args, "--focus", focus)
	}
	failed := runLab(ctx, args, filepath.Join(dir, "output.log"), note)
	data, err := os.ReadFile(filepath.Join(dir, "report.yaml"))
	if err != nil {
		return nil, fmt.Errorf("the suite could not be run: %w", cmp.Or(failed, err))
	}
	report := &conformance.Report{}
	return report, yaml.Unmarshal(data, report)
}

// downBound is how long an interrupted suite may take to take its lab down.
const downBound = time.Minute

// runLab runs the lab's command. Its output goes to the file log, and the lines of its stderr
// also to note.
func runLab(ctx context.Context, args []string, log string, note func(string)) error {
	f, err := os.Create(log)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	cmd := exec.CommandContext(ctx, filepath.Join("bin", "lab"), args...)
	// A terminal and timeout(1) signal the whole group. The lab is told once: a second signal ends its cleanup.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = downBound
	cmd.Stdout = f
	cmd.Stderr = io.MultiWriter(f, &process.LineWriter{Tell: func(line string) error {
		if !strings.HasPrefix(line, "    ") { // Indented lines say why a test failed, as the report does.
			note(fmt.Sprintf("%.70s", strings.Join(strings.Fields(line), " ")))
		}
		return nil
	}})
	return cmd.Run()
}
