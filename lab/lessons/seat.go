package lessons

// This file answers: how does somebody take a lesson? Each step looks at what there
// is, so that it can be interrupted, and the next command goes on.

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/ccmlab/ccmlab/lab"
	"github.com/ccmlab/ccmlab/lab/cluster"
	"github.com/ccmlab/ccmlab/lab/state"
	"github.com/ccmlab/ccmlab/lab/timeline"
	"github.com/ccmlab/ccmlab/lab/ui"
)

// DefaultName is that of the lab that lessons take place in.
const DefaultName = "lesson"

// Seat is where somebody takes lessons, one at a time.
type Seat struct {
	// Tell is told what takes long. It may be replaced.
	Tell func(string)
	// SuiteLabs is how many labs the suite judges a CCM on; 0 is as many as its tests
	// are worth.
	SuiteLabs int

	name   string
	root   string // The folder of its labs.
	record record
}

// Take takes the seat of a name, which its lab has.
func Take(name string) (*Seat, error) {
	if _, err := state.Dir(name); err != nil {
		return nil, err
	}
	root, err := state.Root()
	s := At(root, name)
	if os.Getenv("CCMLAB_SEAT") != "" { // A classroom's share a machine's memory.
		s.SuiteLabs = 1
	}
	return s, err
}

// At is the seat of a name whose labs are in this folder. If that is not this process's
// own, only Progress and Glance may be asked of it.
func At(root, name string) *Seat {
	return &Seat{Tell: func(string) {}, name: name, root: root, record: recordOf(root, name)}
}

// Progress is what was done so far.
func (s *Seat) Progress() (*Progress, error) { return s.record.read() }

// ErrNone means that no lesson was started.
var ErrNone = errors.New("no lesson was started; `lab lesson list` prints all, `lab lesson start ID` begins one, `lab lesson next` the first that is not finished")

// Current is the lesson that was started, and what was done in it.
func (s *Seat) Current() (*Lesson, *LessonProgress, error) {
	p, err := s.Progress()
	if err != nil {
		return nil, nil, err
	}
	return s.current(p)
}

func (s *Seat) current(p *Progress) (*Lesson, *LessonProgress, error) {
	if p.Current == "" {
		return nil, nil, ErrNone
	}
	l, err := Find(p.Current)
	if err != nil {
		return nil, nil, err
	}
	lp := p.of(l.ID)
	if lp.Started.IsZero() {
		return nil, nil, fmt.Errorf("lesson %s was not started to the end; `lab lesson start %[1]s` does it again", l.ID)
	}
	return l, lp, nil
}

// Next is the first lesson after the current one that is not finished, from the
// beginning again after the last; nil if all are. One that this machine does not fit
// is passed over: unfit has why.
func (s *Seat) Next(ctx context.Context) (next *Lesson, unfit []error, err error) {
	all, err := All()
	if err != nil {
		return nil, nil, err
	}
	p, err := s.Progress()
	if err != nil {
		return nil, nil, err
	}
	at := slices.IndexFunc(all, func(l *Lesson) bool { return l.ID == p.Current }) + 1
	for _, l := range slices.Concat(all[at:], all[:at]) {
		if lp := p.Lessons[l.ID]; lp != nil && !lp.Finished.IsZero() {
			continue
		}
		why := l.Fits(ctx)
		if why == nil {
			return l, unfit, nil
		}
		unfit = append(unfit, why)
	}
	return nil, unfit, nil
}

// labs are the names of a lesson's labs, by role.
func (s *Seat) labs(l *Lesson) map[string]string {
	names := map[string]string{"": s.name}
	for role := range l.Others {
		names[role] = s.name + "-" + role
	}
	return names
}

// Start brings everything into the state that the lesson begins with. What another
// lesson, or an earlier run of this one, has left is taken down first, unless the
// lesson cannot be taken on this machine.
func (s *Seat) Start(ctx context.Context, l *Lesson, steps *ui.Steps) error {
	if err := l.Fits(ctx); err != nil {
		return err
	}
	if err := s.Stop(ctx, steps); err != nil {
		return err
	}
	wrong, err := suspectOf(ctx, l, steps)
	if err != nil {
		return err
	}
	begun, err := s.prepare(l, steps)
	if err != nil {
		return err
	}
	names := s.labs(l)
	if err := s.record.change(func(p *Progress) error {
		p.Current, p.Labs = l.ID, names
		p.of(l.ID).begin(begun)
		return nil
	}); err != nil {
		return err
	}
	if _, err := lab.Up(ctx, l.options(s.name, l.Lab), steps); err != nil {
		return err
	}
	for role, setting := range l.Others {
		if _, err := lab.Up(ctx, l.options(names[role], setting), steps); err != nil {
			return err
		}
	}
	if err := s.accuse(ctx, wrong, steps); err != nil {
		return err
	}
	if err := s.settle(ctx, names); err != nil {
		return err
	}
	if l.Setup != "" {
		if err := steps.Do("setting", func(func(string)) (string, error) { return "", s.run(ctx, l, l.Setup, nil) }); err != nil {
			return err
		}
	}
	return s.record.change(func(p *Progress) error {
		p.of(l.ID).Started = time.Now()
		return nil
	})
}

// settle returns when what Kubernetes takes for granted of Nodes that are Ready is
// true of them: the taint of those that were not is taken away a little later. By then
// the timeline has told of them too: what it tells later counts as the learner's doing.
func (s *Seat) settle(ctx context.Context, names map[string]string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, solveBound, fmt.Errorf("gave up after %s", solveBound))
	defer cancel()
	return cluster.PollEvery(ctx, lookEvery, "the Nodes to settle", func(ctx context.Context) error {
		w, err := look(ctx, s.root, names)
		if err != nil {
			return err
		}
		for role := range names {
			nodes, err := w.all(role, "nodes")
			if err != nil {
				return err
			}
			for name, n := range nodes {
				if slices.Contains(taintKeys(n), corev1.TaintNodeNotReady) {
					return fmt.Errorf("%s has the taint %s", name, corev1.TaintNodeNotReady)
				}
			}
			if err := quiet(w.labs[role].Timeline()); err != nil {
				return err
			}
		}
		return nil
	})
}

// quietFor is how long a timeline that has told of all tells of no Node.
const quietFor = time.Second

func quiet(log timeline.Log) error {
	entries, err := log.Read()
	for _, e := range slices.Backward(entries) {
		if e.Source != timeline.SourceCluster || !strings.HasPrefix(e.Subject, "node/") {
			continue
		}
		if age := time.Since(e.Time); age >= 0 && age < quietFor {
			return fmt.Errorf("the timeline tells of %s: %s", e.Subject, e.What)
		}
		break
	}
	return err
}

// Stop takes the labs of the current lesson down. A lab of such a name that is no
// lesson's is left alone.
func (s *Seat) Stop(ctx context.Context, steps *ui.Steps) error {
	p, err := s.Progress()
	if err != nil {
		return err
	}
	if p.Current == "" {
		if _, err := state.Open(s.name); !errors.Is(err, state.ErrNone) {
			return errors.Join(fmt.Errorf("there is a lab %q that no lesson began: take another --name, or remove it by `lab down --name %[1]s`", s.name), err)
		}
		return nil
	}
	var there []string
	for _, name := range p.Labs {
		if _, err := state.Open(name); !errors.Is(err, state.ErrNone) {
			there = append(there, name)
		}
	}
	slices.Sort(there)
	if len(there) > 0 {
		if err := steps.Do("down", func(func(string)) (string, error) {
			var errs []error
			for _, name := range there {
				_, err := lab.Down(ctx, name)
				errs = append(errs, err)
			}
			return "what lesson " + p.Current + " left", errors.Join(errs...)
		}); err != nil {
			return err
		}
	}
	return s.record.change(func(p *Progress) error {
		p.Current, p.Labs = "", nil
		return nil
	})
}

// TaskStatus is a task, and whether it was done.
type TaskStatus struct {
	*Task
	Done *Done
	// Current says that it is the next to do.
	Current bool
}

// Status is a lesson, and how far somebody is.
type Status struct {
	Lesson *Lesson
	Tasks  []TaskStatus
	// Fresh are the tasks that are done, and the learner was not told before.
	Fresh []*Task
	// Problem is why it cannot be told whether the current task is done, or why it is
	// NotYet.
	Problem error
}

// NotYet is a problem only for the learner: it can be told that a task is not done, and
// why.
type NotYet string

// Error implements error.
func (n NotYet) Error() string { return string(n) }

// Finished tells whether all tasks are done.
func (s *Status) Finished() bool {
	return !slices.ContainsFunc(s.Tasks, func(t TaskStatus) bool { return t.Done == nil })
}

// Current is the task to do; nil if all are done.
func (s *Status) Current() *Task {
	for _, t := range s.Tasks {
		if t.Current {
			return t.Task
		}
	}
	return nil
}

// Look sees which tasks of the current lesson are done, in their order, and takes
// note of it, and of that the learner is told. It has the suite judge the learner's CCM,
// if that has changed: that takes minutes.
func (s *Seat) Look(ctx context.Context) (*Status, error) {
	return s.look(ctx, func(*Task) bool { return true }, true)
}

// Glance is Look for a learner who is told nothing of it, and without the suite: it goes
// by what that said last.
func (s *Seat) Glance(ctx context.Context) (*Status, error) {
	return s.look(ctx, func(*Task) bool { return false }, false)
}

// News is Glance for a learner who is told.
func (s *Seat) News(ctx context.Context) (*Status, error) {
	return s.look(ctx, func(*Task) bool { return false }, true)
}

// look has the suite judge the tasks that judging says.
func (s *Seat) look(ctx context.Context, judging func(*Task) bool, telling bool) (*Status, error) {
	p, err := s.Progress()
	if err != nil {
		return nil, err
	}
	l, lp, err := s.current(p)
	if err != nil {
		return nil, err
	}
	seen, problem := s.seen(ctx, l, p, judging)
	st := statusOf(l, lp, seen, problem)
	if len(seen) > 0 || telling && len(st.Fresh) > 0 {
		if err := s.record.change(func(now *Progress) error { return now.note(st, lp.Started, telling) }); err != nil {
			return nil, err
		}
	}
	return st, nil
}

// seen are the tasks that are done now and were not before.
func (s *Seat) seen(ctx context.Context, l *Lesson, p *Progress, judging func(*Task) bool) (map[string]Done, error) {
	seen, lp := map[string]Done{}, p.of(l.ID)
	var w *world
	for _, t := range l.Tasks {
		if _, done := lp.Done[t.ID]; done {
			continue
		}
		if w == nil {
			var err error
			if w, err = look(ctx, s.root, p.Labs); err != nil {
				return nil, err
			}
		}
		what, done, err := s.looks(ctx, w, l, t, p, judging(t))
		if err != nil || !done {
			return seen, err
		}
		seen[t.ID] = Done{At: time.Now(), Seen: what}
	}
	return seen, nil
}

// looks sees whether a task is done, by what there is in the labs, or by the suite.
func (s *Seat) looks(ctx context.Context, w *world, l *Lesson, t *Task, p *Progress, judging bool) (seen string, done bool, err error) {
	if len(t.tests) == 0 {
		return t.look(w, p.of(l.ID).Started)
	}
	v, err := s.verdict(ctx, l, t, p, judging)
	if err != nil {
		return "", false, err
	}
	if !v.Passed {
		return "", false, NotYet(v.Said)
	}
	return v.Said, true, nil
}

// note takes down what is done of a lesson, unless it was started again meanwhile.
func (p *Progress) note(st *Status, started time.Time, told bool) error {
	l, lp := st.Lesson, p.of(st.Lesson.ID)
	if p.Current != l.ID || !lp.Started.Equal(started) {
		return nil
	}
	if lp.Done == nil {
		lp.Done = map[string]Done{}
	}
	for _, t := range st.Fresh {
		d, already := lp.Done[t.ID]
		if !already {
			d = *st.done(t)
		}
		d.Told = d.Told || told
		lp.Done[t.ID] = d
	}
	if len(lp.Done) == len(l.Tasks) && lp.Finished.IsZero() {
		lp.Finished = time.Now()
	}
	return nil
}

// done is what was seen of a task; nil if it is not done.
func (s *Status) done(t *Task) *Done {
	i := slices.IndexFunc(s.Tasks, func(ts TaskStatus) bool { return ts.Task == t })
	return s.Tasks[i].Done
}

func statusOf(l *Lesson, lp *LessonProgress, seen map[string]Done, problem error) *Status {
	st := &Status{Lesson: l, Problem: problem}
	current := true
	for _, t := range l.Tasks {
		ts := TaskStatus{Task: t}
		d, done := lp.Done[t.ID]
		if !done {
			d, done = seen[t.ID]
		}
		if done {
			ts.Done = &d
		} else {
			ts.Current, current = current, false
		}
		if done && !d.Told {
			st.Fresh = append(st.Fresh, t)
		}
		st.Tasks = append(st.Tasks, ts)
	}
	return st
}

// look sees whether a task is done, and says what was seen.
func (t *Task) look(w *world, since time.Time) (seen string, done bool, err error) {
	if t.Until != "" {
		if done, err = t.done.holds(w); err != nil || !done {
			return "", false, err
		}
		seen, err = t.seen.text(w)
		return seen, err == nil, err
	}
	entries, err := w.entries(t.Called != "", since)
	if err != nil {
		return "", false, err
	}
	left := max(1, t.Times)
	for _, e := range entries {
		of, err := w.of(e)
		if err != nil {
			return "", false, err
		}
		if done, err = t.done.holds(of); err != nil {
			return "", false, err
		}
		if !done {
			continue
		}
		if left--; left > 0 {
			continue
		}
		if t.seen == nil {
			return told(e), true, nil
		}
		seen, err = t.seen.text(of)
		return seen, err == nil, err
	}
	return "", false, nil
}

// told is an entry in a line.
func told(e timeline.Entry) string {
	line := fmt.Sprintf("%.1f s: %s %s", e.Seconds, e.Subject, e.What)
	if e.Detail != "" {
		line += ": " + e.Detail
	}
	return line
}

// Hint gives the next hint for the current task, from the last on always that.
func (s *Seat) Hint(ctx context.Context) (t *Task, hint string, number int, err error) {
	st, err := s.Glance(ctx)
	if err != nil {
		return nil, "", 0, err
	}
	if t = st.Current(); t == nil {
		return nil, "", 0, nil
	}
	err = s.record.change(func(p *Progress) error {
		lp := p.of(st.Lesson.ID)
		if lp.Hints == nil {
			lp.Hints = map[string]int{}
		}
		number = min(lp.Hints[t.ID]+1, len(t.Hints))
		lp.Hints[t.ID] = number
		return nil
	})
	if err != nil {
		return nil, "", 0, err
	}
	return t, t.Hints[number-1], number, nil
}

// lookEvery is how long to wait before looking again: a look asks for much.
const lookEvery = 300 * time.Millisecond

// solveBound is how long a solution may take to show; suiteBound, where the suite has
// to see it.
const (
	solveBound = 4 * time.Minute
	suiteBound = buildBound + 15*time.Minute
)

// Solve types the solution of the current task, and waits until it is seen to be
// done. say is told what the solution prints.
func (s *Seat) Solve(ctx context.Context, say func(line string)) (*Status, error) {
	st, err := s.Glance(ctx)
	if err != nil {
		return nil, err
	}
	t := st.Current()
	if t == nil {
		return st, nil
	}
	bound := solveBound
	if st.Lesson.Step > 0 {
		bound = suiteBound
	}
	ctx, cancel := context.WithTimeoutCause(ctx, bound, fmt.Errorf("gave up after %s", bound))
	defer cancel()
	if err := s.run(ctx, st.Lesson, t.Solution, say); err != nil {
		return nil, fmt.Errorf("the solution of task %s: %w", t.ID, err)
	}
	seen := func(ctx context.Context) error {
		if st, err = s.look(ctx, func(other *Task) bool { return other == t }, true); err != nil {
			return err
		}
		if !slices.Contains(st.Fresh, t) && st.Current() == t {
			return errors.Join(errors.New("its condition does not hold"), st.Problem)
		}
		return nil
	}
	if len(t.tests) > 0 { // The suite has waited, and would say the same again.
		if err = seen(ctx); err != nil {
			err = fmt.Errorf("the solution of task %s: %w", t.ID, err)
		}
		return st, err
	}
	err = cluster.PollEvery(ctx, lookEvery, "task "+t.ID+" to be seen done", seen)
	return st, err
}

// Name is that of the seat, and of its lab.
func (s *Seat) Name() string { return s.name }

// Forget deletes what was recorded.
func (s *Seat) Forget() error { return s.record.remove() }
