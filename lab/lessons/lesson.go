// Package lessons teaches what a cloud controller manager does: lessons that bring
// a lab into a state, say what to do there, and see for themselves whether it was
// done.
package lessons

import (
	"cmp"
	"context"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"regexp"
	"slices"
	"strings"
	"sync"

	"sigs.k8s.io/yaml"

	"github.com/ccmlab/ccmlab/lab"
	"github.com/ccmlab/ccmlab/lab/cluster"
	"github.com/ccmlab/ccmlab/lab/cluster/kind"
	"github.com/ccmlab/ccmlab/lab/conformance"
	"github.com/ccmlab/ccmlab/lab/conformance/mutants"
	"github.com/ccmlab/ccmlab/lab/conformance/profiles"
)

// content has a folder for each lesson, with a number for its place and its ID.
//
//go:embed content
var content embed.FS

// Lesson is one of them.
type Lesson struct {
	// ID is the name of its folder, without the number.
	ID string `json:"-"`
	// Title and Summary are for lists.
	Title   string `json:"title"`
	Summary string `json:"summary"`
	// Minutes is how long it takes somebody who reads all of it.
	Minutes int `json:"minutes"`
	// Cluster is the kind of cluster; "" is lab.Embedded.
	Cluster string `json:"cluster,omitempty"`
	// Lab is where it takes place; Others are labs beside it, by their role, which
	// is the end of their name.
	Lab    Setting            `json:"lab"`
	Others map[string]Setting `json:"others,omitempty"`
	// Step, unless 0, is that of the CCM that the learner writes in this lesson.
	Step int `json:"step,omitempty"`
	// Mutant is the CCM with a mistake that the lab has in place of its own.
	Mutant string `json:"mutant,omitempty"`
	// Setup is typed, as Solution is, before the lesson begins.
	Setup string `json:"setup,omitempty"`
	// Tasks are done in this order.
	Tasks []*Task `json:"tasks"`
	// Opening is the text before the first task, in Markdown, and Trainer is for
	// whoever teaches.
	Opening, Trainer string `json:"-"`
}

// Setting is the lab that a lesson begins with.
type Setting struct {
	// Nodes is how many; 0 is as many as a lab has.
	Nodes int `json:"nodes,omitempty"`
	// CCM and Demo say whether they are there.
	CCM  bool `json:"ccm,omitempty"`
	Demo bool `json:"demo,omitempty"`
	// Profile and CloudProvider are as lab.Options has them.
	Profile       string `json:"profile,omitempty"`
	CloudProvider string `json:"cloudProvider,omitempty"`
}

// Task is something to do. One of Until, Saw, Called and Suite says when it is done.
// The first three are expressions in CEL: see conditions.go for what they may speak of.
type Task struct {
	ID    string `json:"id"`
	Title string `json:"title"`
	// Do says what to do, in Markdown.
	Do string `json:"do"`
	// Until is of the state of things: it must hold.
	Until string `json:"until,omitempty"`
	// Saw is of an entry `e` of the timeline, and Called of a call `e` of the
	// cloud's API: one for which it holds must have come since the lesson began.
	Saw    string `json:"saw,omitempty"`
	Called string `json:"called,omitempty"`
	// Suite are tests of the conformance suite that the learner's CCM must pass. A name
	// that ends with * is that of all that begin so.
	Suite []string `json:"suite,omitempty"`
	// Fails is one of them which the CCM that the lesson begins with fails, so that the
	// task is not done then; "" is the first.
	Fails string `json:"fails,omitempty"`
	// Times is how many of them; 0 is one.
	Times int `json:"times,omitempty"`
	// Seen is what is said when it is done, an expression too. Without one an entry
	// speaks for itself.
	Seen string `json:"seen,omitempty"`
	// Hints tell more and more.
	Hints []string `json:"hints"`
	// Solution does it, typed into bash.
	Solution string `json:"solution"`
	// After is the text that comes once it is done.
	After string `json:"-"`

	done, seen *expression
	tests      []string // those of Suite, by ID
}

// Task finds a task of the lesson; nil if it has none of this ID.
func (l *Lesson) Task(id string) *Task {
	for _, t := range l.Tasks {
		if t.ID == id {
			return t
		}
	}
	return nil
}

// All are the lessons in their order. An error is a mistake in what was compiled in.
var All = sync.OnceValues(func() ([]*Lesson, error) { return load(content, "content") })

// Find is the lesson of this ID.
func Find(id string) (*Lesson, error) {
	all, err := All()
	if err != nil {
		return nil, err
	}
	for _, l := range all {
		if l.ID == id {
			return l, nil
		}
	}
	return nil, fmt.Errorf("there is no lesson %q; `lab lesson list` prints all", id)
}

var folderRE = regexp.MustCompile(`^(\d\d)-([a-z0-9]+(?:-[a-z0-9]+)*)$`)

func load(files fs.FS, root string) ([]*Lesson, error) {
	folders, err := fs.ReadDir(files, root) // Sorted by name.
	if err != nil {
		return nil, err
	}
	var (
		all  []*Lesson
		errs []error
	)
	for _, f := range folders {
		m := folderRE.FindStringSubmatch(f.Name())
		if m == nil {
			errs = append(errs, fmt.Errorf("%s/%s: want a folder like 03-taints", root, f.Name()))
			continue
		}
		l, err := loadOne(files, path.Join(root, f.Name()))
		if err != nil {
			errs = append(errs, err)
			continue
		}
		l.ID = m[2]
		if i := slices.IndexFunc(all, func(o *Lesson) bool { return o.ID == l.ID }); i >= 0 {
			errs = append(errs, fmt.Errorf("%s/%s: there is another lesson %q", root, f.Name(), l.ID))
		}
		all = append(all, l)
	}
	return all, errors.Join(errs...)
}

func loadOne(files fs.FS, folder string) (*Lesson, error) {
	var parts [3]string
	for i, name := range []string{"lesson.yaml", "lesson.md", "trainer.md"} {
		data, err := fs.ReadFile(files, path.Join(folder, name))
		if err != nil {
			return nil, err
		}
		parts[i] = string(data)
	}
	l := &Lesson{}
	if err := yaml.UnmarshalStrict([]byte(parts[0]), l); err != nil {
		return nil, fmt.Errorf("%s/lesson.yaml: %w", folder, err)
	}
	l.Trainer = parts[2]
	if err := errors.Join(l.check(), l.read(parts[1]), l.compile()); err != nil {
		return nil, fmt.Errorf("%s: %w", folder, err)
	}
	return l, nil
}

// check finds what is missing in what the YAML says.
func (l *Lesson) check() error {
	var errs []error
	want := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	want(l.Title != "" && l.Summary != "" && l.Minutes > 0, "want a title, a summary and minutes")
	want(slices.Contains([]string{"", lab.Embedded, lab.Kind}, l.Cluster), "cluster %q: want %s or %s", l.Cluster, lab.Embedded, lab.Kind)
	want(len(l.Tasks) > 0, "want tasks")
	if l.Mutant != "" {
		_, err := mutants.Choose(l.Mutant)
		want(err == nil && l.Lab.CCM, "mutant: %v; the lab wants a CCM", err)
	}
	for role, s := range l.Others {
		want(nameRE.MatchString(role), "another lab's role %q: want lower-case letters", role)
		want(s.CloudProvider == "" || slices.Contains(cluster.Providers, s.CloudProvider), "cloud provider %q: want one of %v", s.CloudProvider, cluster.Providers)
	}
	ids := map[string]bool{}
	for _, t := range l.Tasks {
		want(t.ID != "" && !ids[t.ID], "task %q: want an ID that no other has", t.ID)
		ids[t.ID] = true
		kinds := 0
		for _, has := range []bool{t.Until != "", t.Saw != "", t.Called != "", len(t.Suite) > 0} {
			if has {
				kinds++
			}
		}
		want(kinds == 1, "task %s: want one of until, saw, called and suite", t.ID)
		want(len(t.Suite) == 0 || l.Step > 0, "task %s: suite is for lessons with a step", t.ID)
		unknown := t.findTests()
		want(len(unknown) == 0, "task %s: the suite has no tests %v", t.ID, unknown)
		want(t.Fails == "" || slices.Contains(t.tests, t.Fails), "task %s: fails %s, which is no test of its suite", t.ID, t.Fails)
		want(t.Title != "" && t.Do != "" && t.Solution != "", "task %s: want a title, what to do, and a solution", t.ID)
		want(len(t.Hints) > 0, "task %s: want hints", t.ID)
		want(t.Until == "" || t.Seen != "", "task %s: want seen, what is said when it is done", t.ID)
		want(t.Until == "" || t.Times == 0, "task %s: times is for saw and called", t.ID)
	}
	return errors.Join(errs...)
}

// findTests finds those of Suite, and returns the names that none has.
func (t *Task) findTests() (unknown []string) {
	t.tests = nil
	for _, name := range t.Suite {
		found := 0
		beginning, all := strings.CutSuffix(name, "*")
		for _, test := range profiles.All() {
			if test.ID == name || all && strings.HasPrefix(test.ID, beginning) && test.Level == conformance.Core {
				t.tests = append(t.tests, test.ID)
				found++
			}
		}
		if found == 0 {
			unknown = append(unknown, name)
		}
	}
	return unknown
}

var nameRE = regexp.MustCompile(`^[a-z]+$`)

// mark is the line of the text where a task has its place.
var mark = regexp.MustCompile(`(?m)^::task (\S+)\n`)

// read cuts the text where the tasks are.
func (l *Lesson) read(text string) error {
	marks := mark.FindAllStringSubmatchIndex(text, -1)
	var named []string
	for _, m := range marks {
		named = append(named, text[m[2]:m[3]])
	}
	var want []string
	for _, t := range l.Tasks {
		want = append(want, t.ID)
	}
	if !slices.Equal(named, want) {
		return fmt.Errorf("lesson.md has the tasks %v, and lesson.yaml %v", named, want)
	}
	for i, m := range marks {
		end := len(text)
		if i+1 < len(marks) {
			end = marks[i+1][0]
		}
		if i == 0 {
			l.Opening = strings.TrimSpace(text[:m[0]])
		}
		l.Tasks[i].After = strings.Trim(text[m[1]:end], "\n") // it may open with an indented block
	}
	return nil
}

// compile reads the expressions.
func (l *Lesson) compile() error {
	var roles []string
	for role := range l.Others {
		roles = append(roles, role)
	}
	speaks, err := newLanguage(roles)
	if err != nil {
		return err
	}
	var errs []error
	for _, t := range l.Tasks {
		if len(t.Suite) > 0 {
			continue
		}
		var err1, err2 error
		if t.done, err1 = speaks.expression(cmp.Or(t.Until, t.Saw, t.Called)); err1 == nil && t.Seen != "" {
			t.seen, err2 = speaks.expression(t.Seen)
		}
		if err := errors.Join(err1, err2); err != nil {
			errs = append(errs, fmt.Errorf("task %s: %w", t.ID, err))
		}
	}
	return errors.Join(errs...)
}

// Fits is an error that says what this machine lacks for a lesson.
func (l *Lesson) Fits(ctx context.Context) error {
	if l.Cluster != lab.Kind {
		return nil
	}
	if _, err := kind.Available(ctx); err != nil {
		return fmt.Errorf("lesson %s needs a container engine, which the lessons on an embedded cluster do not (`lab lesson list` tells them apart): %w", l.ID, err)
	}
	return nil
}

// options are those that bring up a setting.
func (l *Lesson) options(name string, s Setting) lab.Options {
	return lab.Options{
		Name: name, Cluster: cmp.Or(l.Cluster, lab.Embedded), CloudProvider: s.CloudProvider,
		Nodes: s.Nodes, Profile: s.Profile, WithoutCCM: !s.CCM, WithoutDemo: !s.Demo, Fleeting: true,
	}
}
