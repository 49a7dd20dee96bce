package lessons

// The CCM that learners write is one program, in folder ownccm. Marks in its sources
// say which lines belong to which step, so that the sources of each step, and its
// solution, are derived from the one program.

import (
	"context"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"go/format"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/ccmlab/ccmlab/lab/conformance/program"
	"github.com/ccmlab/ccmlab/lab/remedy"
	"github.com/ccmlab/ccmlab/lab/suite"
	"github.com/ccmlab/ccmlab/lab/ui"
)

//go:embed ownccm/*.go
var ownCCM embed.FS

// ownCCMDir is the folder in which a learner writes a CCM, and the name of its program.
const ownCCMDir = "my-ccm"

// stepRE matches the line that begins the lines of a step. Sources of an earlier step
// have in their place the lines between "// before" and "// end", uncommented.
var stepRE = regexp.MustCompile(`^\s*// step (\d+)$`)

const beforeMark, endMark = "// before", "// end"

// sourcesUpToStep returns the CCM's sources with all steps up to this one, by file.
func sourcesUpToStep(step int) (map[string][]byte, error) {
	files := map[string][]byte{}
	names, err := fs.Glob(ownCCM, "ownccm/*.go")
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		data, err := ownCCM.ReadFile(name)
		if err != nil {
			return nil, err
		}
		text, err := textUpToStep(string(data), step)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		if files[path.Base(name)], err = format.Source([]byte(text)); err != nil {
			return nil, fmt.Errorf("%s, step %d: %w", name, step, err)
		}
	}
	return files, nil
}

// stepBlock is an open block of a step. before tells whether its beforeMark was passed.
type stepBlock struct {
	step   int
	before bool
}

func textUpToStep(text string, step int) (string, error) {
	var (
		out  strings.Builder
		open []stepBlock
	)
	for line := range strings.Lines(text) {
		mark := strings.TrimSpace(line)
		m := stepRE.FindStringSubmatch(strings.TrimRight(line, "\n"))
		switch {
		case m != nil:
			n, _ := strconv.Atoi(m[1])
			open = append(open, stepBlock{step: n})
		case mark == beforeMark && len(open) > 0:
			open[len(open)-1].before = true
		case mark == endMark && len(open) > 0:
			open = open[:len(open)-1]
		case mark == beforeMark, mark == endMark:
			return "", fmt.Errorf("%s without a step", mark)
		case slices.ContainsFunc(open, func(b stepBlock) bool { return b.before == (b.step <= step) }):
		case len(open) > 0 && open[len(open)-1].before:
			out.WriteString(strings.Replace(line, "// ", "", 1))
		default:
			out.WriteString(line)
		}
	}
	if len(open) > 0 {
		return "", errors.New("a step without " + endMark)
	}
	return out.String(), nil
}

// writeStartingPoint writes a module with all steps before this one, which compiles. A
// folder that exists is renamed, and its new name returned.
func (t *toolchain) writeStartingPoint(folder string, step int) (kept string, err error) {
	files, err := sourcesUpToStep(step - 1)
	if err != nil {
		return "", err
	}
	if kept, err = moveAside(folder); err != nil {
		return "", remedy.With(err)
	}
	return kept, errors.Join(writeFiles(folder, files), t.writeModule(folder))
}

func writeFiles(folder string, files map[string][]byte) error {
	errs := []error{os.MkdirAll(folder, 0o755)}
	for name, data := range files {
		errs = append(errs, os.WriteFile(filepath.Join(folder, name), data, 0o644))
	}
	return remedy.With(errors.Join(errs...))
}

// moveAside renames a folder to the first free name of the form FOLDER.N.
func moveAside(folder string) (name string, err error) {
	if _, err := os.Lstat(folder); errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	for n := 1; ; n++ {
		name = fmt.Sprintf("%s.%d", folder, n)
		if _, err := os.Lstat(name); errors.Is(err, fs.ErrNotExist) {
			return name, os.Rename(folder, name)
		}
	}
}

// hashSources returns a hash of the Go sources and go.mod in a folder.
func hashSources(folder string) (string, error) {
	files, err := filepath.Glob(filepath.Join(folder, "*.go"))
	if err != nil {
		return "", err
	}
	if len(files) == 0 {
		return "", fmt.Errorf(
			"there is no CCM in %s; `lab lesson reset` puts there what the lesson begins with", folder,
		)
	}
	hash := sha256.New()
	for _, file := range append(files, filepath.Join(folder, "go.mod")) { // Sorted.
		data, err := os.ReadFile(file)
		if err != nil {
			return "", remedy.With(err)
		}
		fmt.Fprintf(hash, "%s %d\n%s", filepath.Base(file), len(data), data)
	}
	return hex.EncodeToString(hash.Sum(nil)), nil
}

// ownCCMArgs are the flags, all of k8s.io/cloud-provider, that the suite starts a
// learner's CCM with.
var ownCCMArgs = append([]string{
	"--kubeconfig={{.Kubeconfig}}", "--cloud-config={{.CloudConfig}}", "--cluster-name={{.ClusterName}}",
	"--bind-address={{.Address}}", "--secure-port={{.Port}}",
	// Before the step with routes the provider says that it has none, and no controller runs.
	"--configure-cloud-routes=true", "--allocate-node-cidrs=true", "--cluster-cidr={{.ClusterCIDR}}",
	"--route-reconciliation-period=1s", // Upstream's is 10 s: there is less to wait for.
	"--leader-elect=false",             // There is one: nobody waits for the last one's lease.
}, suite.FrequentChecks...)

// Verdict is the suite's result for a learner's CCM and one task.
type Verdict struct {
	// Sources is the hash of the sources that were tested. Others are tested anew.
	Sources string `json:"sources"`
	suite.Verdict
}

// prepareOwnCCM prepares the folder of the learner's CCM. A learner who has finished
// the step before goes on with what they wrote. Otherwise the folder gets the starting
// point of this step, what was there is renamed, and begun is the hash of the starting
// point.
func (s *Seat) prepareOwnCCM(l *Lesson, steps *ui.Steps) (begun string, err error) {
	if l.Step == 0 {
		return "", nil
	}
	p, err := s.Progress()
	if err != nil {
		return "", err
	}
	folder := p.Folder
	if folder == "" {
		if folder, err = filepath.Abs(ownCCMDir); err != nil {
			return "", err
		}
	}
	w, err := findToolchain()
	if err != nil {
		return "", err
	}
	if goesOn, err := p.continuesOwnCCM(l, folder); err != nil || goesOn {
		if err == nil && !w.isModuleWritten(folder) {
			err = w.writeModule(folder)
		}
		return "", err
	}
	kept, err := w.writeStartingPoint(folder, l.Step)
	if err != nil {
		return "", err
	}
	steps.Say("   Your CCM is to be written in %s.", folder)
	if kept != "" {
		steps.Say("   What was there is in %s.", kept)
	}
	if begun, err = hashSources(folder); err != nil {
		return "", err
	}
	return begun, s.progress.update(func(p *Progress) error {
		p.Folder = folder
		return nil
	})
}

// continuesOwnCCM tells whether the lesson continues with the learner's sources: the
// step before is finished, and this one was not begun.
func (p *Progress) continuesOwnCCM(l *Lesson, folder string) (bool, error) {
	if _, err := hashSources(folder); err != nil || p.Current == l.ID {
		return false, nil //nolint:nilerr // Where there is no CCM, there is none to go on with.
	}
	all, err := All()
	if err != nil {
		return false, err
	}
	for _, before := range all {
		if before.Step == l.Step-1 && before.Step > 0 {
			lp := p.Lessons[before.ID]
			return lp != nil && !lp.Finished.IsZero(), nil
		}
	}
	return false, nil
}

// suiteVerdict returns the suite's verdict on the CCM as it is now. The suite runs once
// for each change of the sources, and only if judging is set.
func (s *Seat) suiteVerdict(ctx context.Context, l *Lesson, t *Task, p *Progress, judging bool) (Verdict, error) {
	sources, err := hashSources(p.Folder)
	if err != nil {
		return Verdict{}, err
	}
	last, ok := p.lessonProgress(l.ID).Verdicts[t.ID]
	if ok && last.Sources == sources {
		return last, nil
	}
	if sources == p.lessonProgress(l.ID).Begun && len(p.lessonProgress(l.ID).Verdicts) == 0 {
		return Verdict{Verdict: suite.Verdict{Said: "nothing was written yet in " + p.Folder}}, nil
	}
	if !judging {
		return Verdict{Verdict: suite.Verdict{
			Said: "the suite has not seen it yet as it is now: `lab lesson status`, or watch, has it look",
		}}, nil
	}
	v := Verdict{Sources: sources}
	v.Verdict, err = s.runSuite(
		ctx, p.Folder, suite.Trial{Name: s.name + "-suite", Tests: t.tests, First: last.Failed, Tell: s.Tell},
	)
	if err != nil {
		return Verdict{}, err
	}
	if !v.Passed && len(v.Failed) == 0 { // It did not compile: what failed before is still to be seen first.
		v.Failed = last.Failed
	}
	return v, s.progress.update(func(p *Progress) error {
		lp := p.lessonProgress(l.ID)
		if lp.Verdicts == nil {
			lp.Verdicts = map[string]Verdict{}
		}
		lp.Verdicts[t.ID] = v
		return nil
	})
}

// JudgeTests runs some tests of the current lesson, by ID, on the CCM as it is now. What
// comes out counts for no task. It may run while the suite judges a task.
func (s *Seat) JudgeTests(ctx context.Context, tests []string) (suite.Verdict, error) {
	p, err := s.Progress()
	if err != nil {
		return suite.Verdict{}, err
	}
	return s.runSuite(ctx, p.Folder, suite.Trial{Name: s.name + "-judge", Tests: tests, Tell: s.Tell})
}

// Tests returns the IDs of the suite's tests that a learner's CCM must pass in this lesson.
func (l *Lesson) Tests() []string {
	var tests []string
	for _, t := range l.Tasks {
		tests = append(tests, t.tests...)
	}
	slices.Sort(tests)
	return slices.Compact(tests)
}

// runSuite has a trial of the CCM in a folder when it is this seat's turn. The CCM is compiled while the trial's labs
// start.
func (s *Seat) runSuite(ctx context.Context, folder string, trial suite.Trial) (suite.Verdict, error) {
	leave, err := seatsQueue().enter(ctx, trial.Tell)
	if err != nil {
		return suite.Verdict{}, err
	}
	defer leave()
	w, err := findToolchain()
	if err != nil {
		return suite.Verdict{}, err
	}
	trial.Tell(fmt.Sprintf("compiling %s, for %d tests of the conformance suite", folder, len(trial.Tests)))
	trying, cancel := context.WithCancel(ctx)
	defer cancel()
	var failed error
	compiled := make(chan struct{})
	go func() {
		defer close(compiled)
		if failed = w.buildCCM(trying, folder); failed != nil {
			cancel()
		}
	}()
	trial.Labs, trial.Program = s.SuiteLabs, &program.CCM{Path: filepath.Join(folder, suiteBinary), Args: ownCCMArgs}
	trial.AwaitProgram = func() { <-compiled }
	verdict, err := trial.Run(trying)
	<-compiled
	if failed != nil && ctx.Err() == nil {
		return suite.Verdict{Said: failed.Error()}, nil
	}
	return verdict, err
}
