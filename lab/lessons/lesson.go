// Package lessons teaches what a cloud controller manager does. A lesson brings a lab
// into a state, says what to do there, and checks by itself whether it was done. Begin
// with Lesson and Seat; the conditions that tasks are checked by are in conditions.go.
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

	"github.com/ccmlab/ccmlab/lab/cluster"
	"github.com/ccmlab/ccmlab/lab/conformance"
	"github.com/ccmlab/ccmlab/lab/conformance/mutants"
	"github.com/ccmlab/ccmlab/lab/conformance/profiles"
	"github.com/ccmlab/ccmlab/lab/lifecycle"
	"github.com/ccmlab/ccmlab/lab/state"
)

// content has one folder per lesson, NUMBER-ID.
//
//go:embed content
var content embed.FS

// Lesson is one lesson: lesson.yaml, lesson.md and trainer.md of its folder.
type Lesson struct {
	// ID is the name of the lesson's folder, without the number.
	ID string `json:"-"`
	// Title and Summary are printed in lists.
	Title   string `json:"title"`
	Summary string `json:"summary"`
	// Part is the part of the course that the lesson belongs to, one of Parts.
	Part string `json:"part"`
	// BuildsOn are the lessons whose content this one assumes. They come before it.
	BuildsOn []string `json:"buildsOn,omitempty"`
	// Minutes is how long the lesson takes somebody who reads all of it.
	Minutes int `json:"minutes"`
	// Cluster is the kind of cluster; "" is cluster.KindEmbedded.
	Cluster string `json:"cluster,omitempty"`
	// Lab is the lesson's own lab. Others are further labs by role; the role is the end
	// of their name.
	Lab    Setting            `json:"lab"`
	Others map[string]Setting `json:"others,omitempty"`
	// Step is the step of the learner's own CCM that this lesson is about; 0 if it is
	// about none.
	Step int `json:"step,omitempty"`
	// Mutant names the CCM with a mistake that runs in place of the lab's own.
	Mutant string `json:"mutant,omitempty"`
	// Setup is a script that runs before the lesson begins, as Solution does.
	Setup string `json:"setup,omitempty"`
	Variation
	// Tasks are to be done in this order.
	Tasks []*Task `json:"tasks"`
	// Opening is the text before the first task, in Markdown. Trainer is the text for
	// whoever teaches.
	Opening, Trainer string `json:"-"`
}

// Variation is what differs from seat to seat, so that what one learner types does not
// help another.
type Variation struct {
	// Values are lists. A text has {NAME} for the one value that a seat has. The printed
	// lesson has the first.
	Values map[string][]any `json:"values,omitempty"`
	// Choices are the answers of a question with several. A text has {NAME.ANSWER} for the
	// letter of an answer, and in a list of them they stand in the order of the letters.
	Choices map[string][]string `json:"choices,omitempty"`
}

// Parts are the parts of the course, in their order.
var Parts = []string{"understand", "operate", "debug", "write"}

// Setting describes a lab that a lesson begins with.
type Setting struct {
	// Nodes is the number of nodes; 0 is a lab's default.
	Nodes int `json:"nodes,omitempty"`
	// Instances is how many instances without a machine the setup creates, beside those of the nodes.
	Instances int `json:"instances,omitempty"`
	// CCM and Demo say whether the lab has them.
	CCM  bool `json:"ccm,omitempty"`
	Demo bool `json:"demo,omitempty"`
	// Profile and CloudProvider are those of lifecycle.Options.
	Profile       string `json:"profile,omitempty"`
	CloudProvider string `json:"cloudProvider,omitempty"`
}

// Task is something to do. Exactly one of Until, Saw, Called and Suite says when it is
// done. The first three are expressions in CEL: conditions.go has their variables.
type Task struct {
	ID    string `json:"id"`
	Title string `json:"title"`
	// Do says what to do, in Markdown.
	Do string `json:"do"`
	// Until is a condition on the current state.
	Until string `json:"until,omitempty"`
	// Saw is a condition on an entry `e` of the timeline, Called on a call `e` of the
	// cloud's API. It must hold for an entry or call since the lesson began.
	Saw    string `json:"saw,omitempty"`
	Called string `json:"called,omitempty"`
	// Suite names tests of the conformance suite that the learner's CCM must pass. A
	// name that ends with * stands for all core tests with that prefix.
	Suite []string `json:"suite,omitempty"`
	// Fails is one of those tests, which fails with the CCM that the lesson begins
	// with; "" is the first.
	Fails string `json:"fails,omitempty"`
	// Times is how many entries or calls are needed; 0 is one.
	Times int `json:"times,omitempty"`
	// Seen is an expression for the message when the task is done. Without it the entry
	// is printed.
	Seen string `json:"seen,omitempty"`
	// Hints are given one after another, and say more and more.
	Hints []string `json:"hints"`
	// Answers say why the task is not done. The first that applies is given, and one that
	// is a dead end before the others.
	Answers []*Answer `json:"answers,omitempty"`
	// Solution is a bash script that does the task.
	Solution string `json:"solution"`
	// After is the text that follows once the task is done.
	After string `json:"-"`
	// Ways are what else people do. They are in ways.yaml.
	Ways Ways `json:"-"`

	done, seen *expression

	tests []string // those of Suite, by ID
}

// Answer is what a learner is told who did something else than the task.
type Answer struct {
	// At most one of When, Saw and Called says when the answer applies, as Until, Saw and
	// Called do for a task; but Saw and Called look at what happened since the task before
	// was done, the latest first. Without any it applies if Say can be evaluated.
	When   string `json:"when,omitempty"`
	Saw    string `json:"saw,omitempty"`
	Called string `json:"called,omitempty"`
	// Say is an expression for the answer, which has no full stop in a dead end.
	Say string `json:"say"`
	// DeadEnd says that the task can no longer be done, short of `lab lesson reset`. Then
	// the condition must not hold for a moment only.
	DeadEnd bool `json:"deadEnd,omitempty"`

	applies, say *expression
}

// Ways are ways to do something instead of a task, and to do it otherwise than by its
// solution. Verify types them.
type Ways struct {
	Wrong []Way `json:"wrong,omitempty"`
	Right []Way `json:"right,omitempty"`
}

// Way is something that a learner might do.
type Way struct {
	// Name is what is done, in a few words.
	Name string `json:"name"`
	// Script does it, in bash. A wrong way's waits until it has its own effect.
	Script string `json:"script"`
	// Says is a part of the answer to a wrong way.
	Says string `json:"says,omitempty"`
	// Undo takes a wrong way back, where the task cannot be done from there.
	Undo string `json:"undo,omitempty"`
	// Fails is the test of the suite that a wrong way fails, in a task with Suite.
	Fails string `json:"fails,omitempty"`
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

// All returns the lessons in their order, as they are printed. An error is a mistake in
// the embedded files.
func All() ([]*Lesson, error) { return allFor(reader{lab: DefaultName}) }

// loaded has a function for each reader that returns the lessons.
var loaded sync.Map

// allFor returns the lessons as All does, in texts for this reader.
func allFor(who reader) ([]*Lesson, error) {
	load, _ := loaded.LoadOrStore(who, sync.OnceValues(func() ([]*Lesson, error) {
		return loadLessons(content, "content", who)
	}))
	return load.(func() ([]*Lesson, error))()
}

// Find returns the lesson with this ID, as it is printed.
func Find(id string) (*Lesson, error) { return findFor(reader{lab: DefaultName}, id) }

// findFor returns the lesson with this ID, in texts for this reader.
func findFor(who reader, id string) (*Lesson, error) {
	all, err := allFor(who)
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

func loadLessons(files fs.FS, root string, who reader) ([]*Lesson, error) {
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
		l, err := loadLesson(files, path.Join(root, f.Name()), m[2], who)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		if i := slices.IndexFunc(all, func(o *Lesson) bool { return o.ID == l.ID }); i >= 0 {
			errs = append(errs, fmt.Errorf("%s/%s: there is another lesson %q", root, f.Name(), l.ID))
		}
		for _, id := range l.BuildsOn {
			if !slices.ContainsFunc(all, func(o *Lesson) bool { return o.ID == id }) {
				errs = append(errs, fmt.Errorf("%s/%s: buildsOn %q: want a lesson that comes before", root, f.Name(), id))
			}
		}
		all = append(all, l)
	}
	return all, errors.Join(errs...)
}

func loadLesson(files fs.FS, folder, id string, who reader) (*Lesson, error) {
	parts := map[string]string{}
	for _, name := range []string{"lesson.yaml", "lesson.md", "trainer.md", "ways.yaml"} {
		data, err := fs.ReadFile(files, path.Join(folder, name))
		if err != nil {
			return nil, err
		}
		parts[name] = string(data)
	}
	var varies Variation
	if err := yaml.Unmarshal([]byte(parts["lesson.yaml"]), &varies); err != nil {
		return nil, fmt.Errorf("%s/lesson.yaml: %w", folder, err)
	}
	for name, text := range parts {
		parts[name] = who.fillIn(id, varies, text)
	}
	l, ways := &Lesson{ID: id, Trainer: parts["trainer.md"]}, map[string]Ways{}
	for name, into := range map[string]any{"lesson.yaml": l, "ways.yaml": &ways} {
		if err := yaml.UnmarshalStrict([]byte(parts[name]), into); err != nil {
			return nil, fmt.Errorf("%s/%s: %w", folder, name, err)
		}
	}
	if err := errors.Join(
		l.addWays(ways), l.validate(), l.splitText(parts["lesson.md"]), l.compileExpressions(),
	); err != nil {
		return nil, fmt.Errorf("%s: %w", folder, err)
	}
	return l, nil
}

// addWays gives each task its ways.
func (l *Lesson) addWays(ways map[string]Ways) error {
	var errs []error
	for id, w := range ways {
		if t := l.Task(id); t != nil {
			t.Ways = w
		} else {
			errs = append(errs, fmt.Errorf("ways.yaml has task %q, and lesson.yaml has not", id))
		}
	}
	return errors.Join(errs...)
}

// validate reports what is missing or contradictory in lesson.yaml.
func (l *Lesson) validate() error {
	var errs []error
	want := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	want(l.Title != "" && l.Summary != "" && l.Minutes > 0, "want a title, a summary and minutes")
	want(
		slices.Contains([]string{"", cluster.KindEmbedded, cluster.KindKind}, l.Cluster), "cluster %q: want %s or %s",
		l.Cluster, cluster.KindEmbedded, cluster.KindKind,
	)
	want(slices.Contains(Parts, l.Part), "part %q: want one of %v", l.Part, Parts)
	want(len(l.Tasks) > 0, "want tasks")
	if l.Mutant != "" {
		_, err := mutants.Choose(l.Mutant)
		want(err == nil && l.Lab.CCM, "mutant: %v; the lab wants a CCM", err)
	}
	for role, s := range l.Others {
		want(roleRE.MatchString(role), "another lab's role %q: want lower-case letters", role)
		want(
			s.CloudProvider == "" || slices.Contains(cluster.Providers, s.CloudProvider),
			"cloud provider %q: want one of %v", s.CloudProvider, cluster.Providers,
		)
	}
	ids := map[string]bool{}
	for _, t := range l.Tasks {
		want(t.ID != "" && !ids[t.ID], "task %q: want an ID that no other has", t.ID)
		ids[t.ID] = true
		kinds := countSet(t.Until, t.Saw, t.Called, strings.Join(t.Suite, " "))
		want(kinds == 1, "task %s: want one of until, saw, called and suite", t.ID)
		want(len(t.Suite) == 0 || l.Step > 0, "task %s: suite is for lessons with a step", t.ID)
		unknown := t.findTests()
		want(len(unknown) == 0, "task %s: the suite has no tests %v", t.ID, unknown)
		want(t.Fails == "" ||
			slices.Contains(t.tests, t.Fails), "task %s: fails %s, which is no test of its suite", t.ID, t.Fails)
		want(t.Title != "" && t.Do != "" && t.Solution != "", "task %s: want a title, what to do, and a solution", t.ID)
		want(len(t.Hints) > 0, "task %s: want hints", t.ID)
		want(t.Until == "" || t.Seen != "", "task %s: want seen, what is said when it is done", t.ID)
		want(t.Until == "" || t.Times == 0, "task %s: times is for saw and called", t.ID)
		want(len(t.Suite) == 0 || len(t.Answers) == 0, "task %s: answers are not for suite", t.ID)
		errs = append(errs, t.validateAnswers(), t.validateWays())
	}
	return errors.Join(errs...)
}

// validateAnswers reports what is missing or contradictory in the answers.
func (t *Task) validateAnswers() error {
	for _, a := range t.Answers {
		if a.Say == "" || countSet(a.When, a.Saw, a.Called) > 1 {
			return fmt.Errorf("task %s: an answer wants say, and at most one of when, saw and called", t.ID)
		}
	}
	return nil
}

// validateWays reports what is missing in a task's ways.
func (t *Task) validateWays() error {
	for _, way := range slices.Concat(t.Ways.Wrong, t.Ways.Right) {
		if way.Name == "" || way.Script == "" {
			return fmt.Errorf("task %s: a way wants a name and a script", t.ID)
		}
	}
	for _, way := range t.Ways.Wrong {
		if len(t.tests) > 0 && !slices.Contains(t.tests, way.Fails) {
			return fmt.Errorf("task %s: way %q: fails %q is no test of the task", t.ID, way.Name, way.Fails)
		}
	}
	return nil
}

// countSet counts the texts that are not empty.
func countSet(texts ...string) int {
	return len(slices.DeleteFunc(texts, func(text string) bool { return text == "" }))
}

// findTests resolves Suite to test IDs, and returns the names that match none.
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

var roleRE = regexp.MustCompile(`^[a-z]+$`)

// taskMarkRE matches the line of lesson.md that marks a task's place.
var taskMarkRE = regexp.MustCompile(`(?m)^::task (\S+)\n`)

// splitText splits lesson.md at the tasks' marks.
func (l *Lesson) splitText(text string) error {
	marks := taskMarkRE.FindAllStringSubmatchIndex(text, -1)
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

// compileExpressions compiles the tasks' conditions and messages.
func (l *Lesson) compileExpressions() error {
	var roles []string
	for role := range l.Others {
		roles = append(roles, role)
	}
	speaks, err := newCELLanguage(roles)
	if err != nil {
		return err
	}
	var errs []error
	for _, t := range l.Tasks {
		if len(t.Suite) > 0 {
			continue
		}
		compile := func(source string) *expression {
			if source == "" {
				return nil
			}
			x, err := speaks.compileExpression(source)
			if err != nil {
				errs = append(errs, fmt.Errorf("task %s: %w", t.ID, err))
			}
			return x
		}
		t.done, t.seen = compile(cmp.Or(t.Until, t.Saw, t.Called)), compile(t.Seen)
		for _, a := range t.Answers {
			a.applies, a.say = compile(cmp.Or(a.When, a.Saw, a.Called)), compile(a.Say)
		}
	}
	return errors.Join(errs...)
}

// NeedsGo tells whether the learner writes a CCM in the lesson.
func (l *Lesson) NeedsGo() bool { return l.Step > 0 }

// Fits is an error that says what this machine lacks for the lesson.
func (l *Lesson) Fits(ctx context.Context) error {
	if l.NeedsGo() {
		if _, err := goVersion(ctx); err != nil {
			return fmt.Errorf("lesson %s has you write Go: %w", l.ID, err)
		}
	}
	kind := cluster.KindNamed(l.Cluster)
	if kind == nil || kind.Available == nil {
		return nil
	}
	if _, err := kind.Available(ctx); err != nil {
		return fmt.Errorf(
			"lesson %s needs a container engine, which the lessons on an embedded cluster do not (`lab lesson list` tells them apart): %w",
			l.ID, err,
		)
	}
	return nil
}

// labOptions are the options that bring up a setting.
func (l *Lesson) labOptions(name string, s Setting) lifecycle.Options {
	quota := state.SeatInstances() / (1 + len(l.Others))
	if quota > 0 {
		quota += s.Instances
	}
	return lifecycle.Options{
		Name: name, Cluster: cmp.Or(l.Cluster, cluster.KindEmbedded), CloudProvider: s.CloudProvider,
		Nodes: s.Nodes, Profile: s.Profile, WithoutCCM: !s.CCM, WithoutDemo: !s.Demo, Fleeting: true,
		InstanceQuota: quota,
	}
}
