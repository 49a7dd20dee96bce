package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/ccmlab/ccmlab/lab/conformance"
	"github.com/ccmlab/ccmlab/lab/conformance/mutants"
	"github.com/ccmlab/ccmlab/lab/conformance/mutants/mutation"
	"github.com/ccmlab/ccmlab/lab/conformance/profiles"
	"github.com/ccmlab/ccmlab/lab/ui"
)

// generatedOptions say which of the mutants made mechanically are judged, and by which tests.
type generatedOptions struct {
	list      bool
	sample    int
	seed      uint64
	survivors bool
	profiles  string
	machines  bool
}

// ownProfiles are the profiles that test an interface: they are run first on a mutant of its methods.
var ownProfiles = map[string][]conformance.Profile{
	"InstancesV2":  {conformance.Node, conformance.Lifecycle},
	"LoadBalancer": {conformance.LoadBalancer},
	"Routes":       {conformance.Routing},
}

// generatedJudge judges mutants that are all in one program.
type generatedJudge struct {
	generatedOptions
	dir      string // what is kept of these sources
	program  string
	profiles []conformance.Profile
	baseline map[conformance.Profile]baseline
	results  *resultFile
}

// runGenerated judges the mutants whose IDs match the patterns, or all, and prints a summary. What was
// judged before, of the same sources, is not judged again.
func runGenerated(patterns []string, o options) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	set, err := mutants.Generate(ctx, ".")
	if err != nil {
		return err
	}
	equivalents, err := mutants.LoadEquivalents()
	if err != nil {
		return err
	}
	if stale := equivalents.Stale(set.Mutants); len(stale) > 0 {
		return fmt.Errorf("equivalent.yaml names what is no mutant any more: %s", strings.Join(stale, ", "))
	}
	chosen, err := o.generated.choose(set.Mutants, patterns)
	if err != nil {
		return err
	}
	if o.generated.list {
		return printMutants(os.Stdout, chosen, equivalents)
	}
	j := &generatedJudge{
		generatedOptions: o.generated, dir: filepath.Join(outDir, "generated-"+set.Fingerprint),
		baseline: map[conformance.Profile]baseline{},
	}
	if j.profiles, err = chosenProfiles(o.generated.profiles); err != nil {
		return err
	}
	if j.results, err = openResults(filepath.Join(j.dir, "results.jsonl")); err != nil {
		return err
	}
	defer func() { _ = j.results.close() }()
	err = j.judgeAll(ctx, set, chosen, equivalents, o.parallel)
	problems := summarize(os.Stdout, set, chosen, j.results.last, equivalents)
	for _, p := range j.profiles {
		for _, id := range j.baseline[p].Failed {
			problems = append(problems, fmt.Errorf("our CCM as it is does not pass %s, which was left out", id))
		}
	}
	if ctx.Err() != nil {
		problems = append(problems, errors.New("interrupted; the same command goes on where this one was"))
	}
	return errors.Join(append(problems, err)...)
}

// choose chooses by patterns, and a random sample of these. The same seed chooses the same ones.
func (o generatedOptions) choose(all []mutation.Mutant, patterns []string) ([]mutation.Mutant, error) {
	for _, pattern := range patterns {
		if !slices.ContainsFunc(all, func(m mutation.Mutant) bool { return mutants.Matches(pattern, m.ID) }) {
			return nil, fmt.Errorf("no mutant is called %q: -list prints them all", pattern)
		}
	}
	chosen := slices.DeleteFunc(slices.Clone(all), func(m mutation.Mutant) bool {
		return len(patterns) > 0 &&
			!slices.ContainsFunc(patterns, func(pattern string) bool { return mutants.Matches(pattern, m.ID) })
	})
	if o.sample > 0 && o.sample < len(chosen) {
		random := rand.New(rand.NewPCG(o.seed, 0)) //nolint:gosec // It is to be the same each time.
		random.Shuffle(len(chosen), func(a, b int) { chosen[a], chosen[b] = chosen[b], chosen[a] })
		chosen = chosen[:o.sample]
	}
	return chosen, nil
}

func chosenProfiles(names string) ([]conformance.Profile, error) {
	if names == "" {
		return conformance.Profiles, nil
	}
	var chosen []conformance.Profile
	for _, name := range strings.Split(names, ",") {
		p, err := conformance.ProfileNamed(name)
		if err != nil {
			return nil, err
		}
		chosen = append(chosen, p)
	}
	return chosen, nil
}

// judgeAll builds the program, runs the suite on it without a mistake, and judges the mutants side by
// side.
func (j *generatedJudge) judgeAll(
	ctx context.Context, set *mutation.Set, chosen []mutation.Mutant, equivalents mutants.Equivalents, parallel int,
) error {
	steps := ui.New(os.Stderr, false)
	waiting := slices.DeleteFunc(slices.Clone(chosen), func(m mutation.Mutant) bool {
		last, isDone := j.results.last[m.ID]
		if j.survivors { // Those that survived are judged once more, and no others.
			isDone = !isDone || last.Result == resultCaught
		}
		return isDone || equivalents.ReasonFor(m.ID) != ""
	})
	if len(waiting) == 0 {
		return nil
	}
	if err := steps.Do(stepTitle("build"), func(note func(string)) (summary string, err error) {
		j.program, err = mutants.BuildGenerated(ctx, set, ".", j.dir, note)
		return fmt.Sprintf("%d mutants in one program", len(set.Mutants)), err
	}); err != nil {
		return err
	}
	for _, p := range j.profiles {
		if err := steps.Do(stepTitle("unmutated, "+string(p)), func(note func(string)) (string, error) {
			return j.measureBaseline(ctx, set, p, note)
		}); err != nil {
			return err
		}
	}
	errs := make([]error, len(waiting))
	judgeParallel(ctx, parallel, len(waiting), func(n int) {
		title := fmt.Sprintf("%d/%d %s", n+1, len(waiting), waiting[n].ID)
		errs[n] = steps.Do(title, func(note func(string)) (string, error) { return j.judge(ctx, waiting[n], note) })
	})
	return errors.Join(errs...)
}

// baseline is the result of our CCM without a mistake in a profile.
type baseline struct {
	Tests   []string `json:"tests"` // IDs of all that there are
	Failed  []string `json:"failed,omitempty"`
	Slowest float64  `json:"slowest"`
	// Reached are the IDs of mutants that would have made a difference.
	Reached map[string]bool `json:"reached"`
}

// measureBaseline runs a profile on the program without a mistake, unless that was done before with the
// same tests. It finds out which mutants the profile reaches: the others cannot fail it. Tests that fail
// are left out from then on: they would catch everything.
func (j *generatedJudge) measureBaseline(
	ctx context.Context, set *mutation.Set, p conformance.Profile, note func(string),
) (string, error) {
	dir := filepath.Join(j.dir, "unmutated", string(p))
	file, b := filepath.Join(dir, "baseline.json"), baseline{}
	tests := testIDs(p)
	if data, err := os.ReadFile(file); err == nil && json.Unmarshal(data, &b) == nil &&
		slices.Equal(b.Tests, tests) && len(b.Failed) == 0 {
		j.baseline[p] = b
		return "as before", nil
	}
	reached, err := filepath.Abs(filepath.Join(dir, "reached"))
	if err != nil {
		return "", err
	}
	if err := errors.Join(os.RemoveAll(dir), os.MkdirAll(dir, 0o755)); err != nil {
		return "", err
	}
	report, err := j.runTests(ctx, dir, tests, note, mutation.ReachedVariable+"="+reached)
	if err != nil {
		return "", err
	}
	if report.Unfinished != "" {
		return "", fmt.Errorf("the suite did not come to an end: %s", report.Unfinished)
	}
	b = baseline{Tests: tests}
	if b.Reached, err = set.ReadReached(reached); err != nil {
		return "", err
	}
	for _, t := range report.Tests {
		b.Slowest = max(b.Slowest, t.Seconds)
		if t.Required && t.Result == conformance.Failed {
			b.Failed = append(b.Failed, t.ID)
		}
	}
	j.baseline[p] = b
	data, err := json.Marshal(b)
	err = errors.Join(err, os.WriteFile(file, data, 0o644))
	return fmt.Sprintf("%d tests, %d fail", len(report.Tests), len(b.Failed)), err
}

func testIDs(p conformance.Profile) (ids []string) {
	for _, t := range conformance.Select(profiles.All(), []conformance.Profile{p}, nil) {
		ids = append(ids, t.ID)
	}
	return ids
}

// judge runs the profiles that reach the mutant, those that are about it first, until a required test
// fails.
func (j *generatedJudge) judge(ctx context.Context, m mutation.Mutant, note func(string)) (string, error) {
	began := time.Now()
	r := result{ID: m.ID, Line: m.Line, What: m.What, Result: resultUnreached}
	for stage, chosen := range j.stages(m) {
		dir := filepath.Join(j.dir, "judged", strconv.Itoa(m.Number), strconv.Itoa(stage))
		by, err := j.findFailure(ctx, m, dir, chosen, note)
		if err != nil {
			return "", err
		}
		r.Result, r.By = resultSurvived, by
		if by != "" {
			r.Result = resultCaught
			break
		}
	}
	r.Seconds = time.Since(began).Round(time.Second).Seconds()
	return strings.TrimSpace(r.Result + " " + r.By), j.results.add(r)
}

// crashed stands for a test where the CCM has ended by itself and no test has failed.
const crashed = "a crash"

// findFailure finds a test of these profiles that the mutant fails, twice: on a busy machine any test
// may fail once, and one that does counts no more. It is "" if there is none.
func (j *generatedJudge) findFailure(
	ctx context.Context, m mutation.Mutant, dir string, chosen []conformance.Profile, note func(string),
) (string, error) {
	if err := os.RemoveAll(dir); err != nil {
		return "", err
	}
	run := func(name string, ids []string) (string, error) {
		sub := filepath.Join(dir, name)
		if err := os.MkdirAll(sub, 0o755); err != nil {
			return "", err
		}
		report, err := j.runTests(ctx, sub, ids, note, mutation.ActiveVariable+"="+strconv.Itoa(m.Number),
			"--fail-fast", "--bound", j.testBound(chosen).String())
		if err != nil || ctx.Err() != nil {
			return "", cmp.Or(err, ctx.Err())
		}
		by := firstFailure(report)
		if by == "" && report.Unfinished != "" {
			return "", fmt.Errorf("the suite did not come to an end: %s", report.Unfinished)
		}
		return by, nil
	}
	left := j.testsOf(chosen)
	for len(left) > 0 {
		by, err := run("all", left)
		if err != nil || by == "" || by == crashed {
			return by, err
		}
		if again, err := run("again", []string{by}); err != nil || again != "" {
			return by, err
		}
		left = slices.DeleteFunc(left, func(id string) bool { return id == by })
	}
	return "", nil
}

// stages returns the profiles to run on a mutant: its own first, and none that does not reach it.
func (j *generatedJudge) stages(m mutation.Mutant) [][]conformance.Profile {
	var own, others []conformance.Profile
	for _, p := range j.profiles {
		isOwn := slices.ContainsFunc(m.Interfaces, func(i string) bool { return slices.Contains(ownProfiles[i], p) })
		switch {
		case !j.baseline[p].Reached[m.ID]:
		case isOwn:
			own = append(own, p)
		default:
			others = append(others, p)
		}
	}
	return slices.DeleteFunc([][]conformance.Profile{own, others}, func(stage []conformance.Profile) bool {
		return len(stage) == 0
	})
}

// firstFailure returns the required test that failed first, crashed if none did and the CCM ended by
// itself, or "".
func firstFailure(report *conformance.Report) string {
	for _, t := range report.Tests {
		if t.Required && t.Result == conformance.Failed {
			return t.ID
		}
	}
	if len(report.Crashes) > 0 {
		return crashed
	}
	return ""
}

// testsOf returns the tests of these profiles that our CCM passes.
func (j *generatedJudge) testsOf(chosen []conformance.Profile) (ids []string) {
	for _, p := range chosen {
		ids = append(ids, slices.DeleteFunc(testIDs(p), func(id string) bool {
			return slices.Contains(j.baseline[p].Failed, id)
		})...)
	}
	return ids
}

// testBound returns how long each test of these profiles may take.
func (j *generatedJudge) testBound(chosen []conformance.Profile) time.Duration {
	slowest := 0.0
	for _, p := range chosen {
		slowest = max(slowest, j.baseline[p].Slowest)
	}
	return boundFor(slowest)
}

// runTests runs tests on the program, which is started with a variable in its environment.
func (j *generatedJudge) runTests(
	ctx context.Context, dir string, ids []string, note func(string), variable string, args ...string,
) (*conformance.Report, error) {
	program, err := filepath.Abs(filepath.Join(dir, "ccm"))
	if err != nil {
		return nil, err
	}
	script := fmt.Sprintf("#!/bin/sh\n%s exec %s \"$@\"\n", variable, j.program)
	if err := os.WriteFile(program, []byte(script), 0o755); err != nil { //nolint:gosec // It is to be run.
		return nil, err
	}
	args = append([]string{"--ccm-build", program, "--labs", "1"}, args...)
	if !j.machines {
		args = append(args, "--without-machines")
	}
	return runSuite(ctx, dir, "^("+strings.Join(ids, "|")+")$", note, args...)
}

// openResults reads the results that there are, and keeps the file open for more.
func openResults(name string) (*resultFile, error) {
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return nil, err
	}
	f := &resultFile{last: map[string]result{}}
	data, err := os.ReadFile(name)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	for _, line := range strings.Split(string(data), "\n") {
		var r result
		if json.Unmarshal([]byte(line), &r) == nil { // The last line may be cut short.
			f.last[r.ID] = r
		}
	}
	f.file, err = os.OpenFile(name, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	return f, err
}
