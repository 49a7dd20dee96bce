package lessons

// This file answers: what does a learner who writes a CCM begin with, and what is one
// way to go on? The CCM is one program, in ownccm; its sources say which lines belong
// to which step.

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
	"time"

	"github.com/ccmlab/ccmlab/lab/conformance"
	"github.com/ccmlab/ccmlab/lab/remedy"
	"github.com/ccmlab/ccmlab/lab/suite"
	"github.com/ccmlab/ccmlab/lab/ui"
)

//go:embed ownccm/*.go
var ownCCM embed.FS

// ownFolder is where a learner's CCM is written, and what its program is called.
const ownFolder = "my-ccm"

// stepRE marks where the lines of a step begin. Before that step there are, in their
// place, those between "// before" and "// end", without their slashes.
var stepRE = regexp.MustCompile(`^\s*// step (\d+)$`)

const beforeMark, endMark = "// before", "// end"

// written are the CCM's sources with all steps up to this one, by file.
func written(step int) (map[string][]byte, error) {
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
		text, err := upTo(string(data), step)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		if files[path.Base(name)], err = format.Source([]byte(text)); err != nil {
			return nil, fmt.Errorf("%s, step %d: %w", name, step, err)
		}
	}
	return files, nil
}

// block is one that has begun: of which step, and whether it is past its beforeMark.
type block struct {
	step   int
	before bool
}

func upTo(text string, step int) (string, error) {
	var (
		out  strings.Builder
		open []block
	)
	for line := range strings.Lines(text) {
		mark := strings.TrimSpace(line)
		m := stepRE.FindStringSubmatch(strings.TrimRight(line, "\n"))
		switch {
		case m != nil:
			n, _ := strconv.Atoi(m[1])
			open = append(open, block{step: n})
		case mark == beforeMark && len(open) > 0:
			open[len(open)-1].before = true
		case mark == endMark && len(open) > 0:
			open = open[:len(open)-1]
		case mark == beforeMark, mark == endMark:
			return "", fmt.Errorf("%s without a step", mark)
		case slices.ContainsFunc(open, func(b block) bool { return b.before == (b.step <= step) }):
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

// begin writes a folder that has everything up to the step before this one, and
// compiles. What is there is kept beside it, and its new name returned.
func (w *workshop) begin(folder string, step int) (kept string, err error) {
	files, err := written(step - 1)
	if err != nil {
		return "", err
	}
	if kept, err = setAside(folder); err != nil {
		return "", remedy.With(err)
	}
	return kept, errors.Join(writeAll(folder, files), w.equip(folder))
}

func writeAll(folder string, files map[string][]byte) error {
	errs := []error{os.MkdirAll(folder, 0o755)}
	for name, data := range files {
		errs = append(errs, os.WriteFile(filepath.Join(folder, name), data, 0o644))
	}
	return remedy.With(errors.Join(errs...))
}

// setAside gives a folder the first free name like its own.
func setAside(folder string) (name string, err error) {
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

// fingerprint is another whenever a source in the folder is.
func fingerprint(folder string) (string, error) {
	files, err := filepath.Glob(filepath.Join(folder, "*.go"))
	if err != nil {
		return "", err
	}
	if len(files) == 0 {
		return "", fmt.Errorf("there is no CCM in %s; `lab lesson reset` puts there what the lesson begins with", folder)
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

// ownArgs are what a learner's CCM is given in the suite: flags of
// k8s.io/cloud-provider.
var ownArgs = []string{
	"--kubeconfig={{.Kubeconfig}}", "--cloud-config={{.CloudConfig}}", "--cluster-name={{.ClusterName}}",
	"--bind-address={{.Address}}", "--secure-port={{.Port}}", "--configure-cloud-routes=false",
	"--node-monitor-period=1s", // Upstream's is 5 s: there is less to wait for.
	"--leader-elect=false",     // There is one: nobody waits for the last one's lease.
}

// Verdict is the suite's on a learner's CCM, for one task.
type Verdict struct {
	// Sources is their fingerprint: other ones are judged anew.
	Sources string `json:"sources"`
	Passed  bool   `json:"passed"`
	// Said is what it came to.
	Said string `json:"said"`
}

// prepare sees to the folder of a lesson's CCM. What a learner has written in the
// steps before is what they go on with, if it was finished; else what is there is kept
// beside it, and the folder has what this step begins with: then begun is the
// fingerprint of that.
func (s *Seat) prepare(l *Lesson, steps *ui.Steps) (begun string, err error) {
	if l.Step == 0 {
		return "", nil
	}
	p, err := s.Progress()
	if err != nil {
		return "", err
	}
	folder := p.Folder
	if folder == "" {
		if folder, err = filepath.Abs(ownFolder); err != nil {
			return "", err
		}
	}
	w, err := workshopHere()
	if err != nil {
		return "", err
	}
	if goesOn, err := p.goesOn(l, folder); err != nil || goesOn {
		if err == nil && !w.equipped(folder) {
			err = w.equip(folder)
		}
		return "", err
	}
	kept, err := w.begin(folder, l.Step)
	if err != nil {
		return "", err
	}
	steps.Say("   Your CCM is to be written in %s.", folder)
	if kept != "" {
		steps.Say("   What was there is in %s.", kept)
	}
	if begun, err = fingerprint(folder); err != nil {
		return "", err
	}
	return begun, s.record.change(func(p *Progress) error {
		p.Folder = folder
		return nil
	})
}

// goesOn tells whether a lesson begins with what the learner has written: they have
// finished the step before, and nothing of this one was begun.
func (p *Progress) goesOn(l *Lesson, folder string) (bool, error) {
	if _, err := fingerprint(folder); err != nil || p.Current == l.ID {
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

// verdict is the suite's on the CCM as it is now; it is asked once for each change,
// and not at all unless judging.
func (s *Seat) verdict(ctx context.Context, l *Lesson, t *Task, p *Progress, judging bool) (Verdict, error) {
	sources, err := fingerprint(p.Folder)
	if err != nil {
		return Verdict{}, err
	}
	if v, ok := p.of(l.ID).Verdicts[t.ID]; ok && v.Sources == sources {
		return v, nil
	}
	if sources == p.of(l.ID).Begun && len(p.of(l.ID).Verdicts) == 0 {
		return Verdict{Said: "nothing was written yet in " + p.Folder}, nil
	}
	if !judging {
		return Verdict{Said: "the suite has not seen it yet as it is now: `lab lesson status`, or watch, has it look"}, nil
	}
	passed, said, err := s.judge(ctx, p.Folder, t.tests, 0, s.Tell)
	if err != nil {
		return Verdict{}, err
	}
	v := Verdict{Sources: sources, Passed: passed, Said: said}
	return v, s.record.change(func(p *Progress) error {
		lp := p.of(l.ID)
		if lp.Verdicts == nil {
			lp.Verdicts = map[string]Verdict{}
		}
		lp.Verdicts[t.ID] = v
		return nil
	})
}

// judge has the suite run a task's tests on the CCM in a folder.
func (s *Seat) judge(ctx context.Context, folder string, tests []string, bound time.Duration, tell func(string)) (passed bool, said string, err error) {
	tell("compiling " + folder)
	w, err := workshopHere()
	if err != nil {
		return false, "", err
	}
	program, err := w.build(ctx, folder)
	if err != nil && ctx.Err() == nil {
		return false, err.Error(), nil
	}
	if err != nil {
		return false, "", err
	}
	tell(fmt.Sprintf("running %d tests of the conformance suite", len(tests)))
	return suite.Trial{
		Name: s.name + "-suite", Labs: s.SuiteLabs, Program: &conformance.Program{Path: program, Args: ownArgs}, Tests: tests, Bound: bound, Tell: tell,
	}.Run(ctx)
}
