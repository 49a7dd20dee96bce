package lessons

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/google/cel-go/cel"
	corev1 "k8s.io/api/core/v1"

	"github.com/ccmlab/ccmlab/lab/cluster"
	"github.com/ccmlab/ccmlab/lab/lifecycle"
	"github.com/ccmlab/ccmlab/lab/state"
	"github.com/ccmlab/ccmlab/lab/timeline"
	"github.com/ccmlab/ccmlab/lab/ui"
)

// DefaultName is the name of the lab that lessons take place in.
const DefaultName = "lesson"

// Seat is where one learner takes lessons, one at a time. Each method observes what
// exists and completes it, so that a command may be interrupted and the next one goes
// on.
type Seat struct {
	// Tell is called with the progress of what takes long. It may be replaced.
	Tell func(string)
	// SuiteLabs is how many labs the suite runs on; 0 lets the number of tests decide.
	SuiteLabs int

	name     string
	root     string // The folder of its labs.
	progress progressFile
}

// Take returns the seat with this name, which is also its lab's.
func Take(name string) (*Seat, error) {
	if _, err := state.Dir(name); err != nil {
		return nil, err
	}
	root, err := state.Root()
	s := At(root, name)
	if state.Seat() != "" { // A classroom's share a machine's memory.
		s.SuiteLabs = 1
	}
	return s, err
}

// SeatName returns the name of the seat for a shell whose LAB_NAME is lab. A lab beside
// that of a seat is that seat's, too. Beside a lab that no lesson began, it is DefaultName.
func SeatName(lab string) (string, error) {
	all, err := All()
	if err != nil {
		return "", err
	}
	seats := []string{lab}
	for _, l := range all {
		for role := range l.Others {
			seats = append(seats, strings.TrimSuffix(lab, "-"+role))
		}
	}
	for _, name := range seats {
		s, err := Take(name)
		if err != nil {
			return "", err
		}
		p, err := s.Progress()
		if err != nil {
			return "", err
		}
		if p.Current != "" || len(p.Lessons) > 0 && !isLab(name) {
			return name, nil
		}
	}
	if isLab(lab) {
		return DefaultName, nil
	}
	return lab, nil
}

// isLab tells whether there is a lab of this name, be it one that cannot be read.
func isLab(name string) bool {
	_, err := state.Open(name)
	return !errors.Is(err, state.ErrNone)
}

// At returns the seat of a name whose labs are in root. Unless root is this process's
// own, only Progress and Glance may be called.
func At(root, name string) *Seat {
	return &Seat{Tell: func(string) {}, name: name, root: root, progress: progressFileOf(root, name)}
}

// FindByLab returns the seat whose current lesson takes place in the lab, of those whose labs are in root; nil
// if it is nobody's.
func FindByLab(root, lab string) (*Seat, error) {
	files, err := filepath.Glob(filepath.Join(root, progressDir, "*.json"))
	if err != nil {
		return nil, err
	}
	for _, file := range files {
		s := At(root, strings.TrimSuffix(filepath.Base(file), ".json"))
		p, err := s.Progress()
		if err != nil {
			return nil, err
		}
		for _, name := range p.Labs {
			if name == lab {
				return s, nil
			}
		}
	}
	return nil, nil
}

// Progress returns what was done so far.
func (s *Seat) Progress() (*Progress, error) { return s.progress.load() }

// ErrNone means that no lesson was started.
var ErrNone = errors.New(
	"no lesson was started; `lab lesson list` prints all, `lab lesson start ID` begins one, `lab lesson next` the first that is not finished",
)

// Current returns the lesson that was started, and what was done in it.
func (s *Seat) Current() (*Lesson, *LessonProgress, error) {
	p, err := s.Progress()
	if err != nil {
		return nil, nil, err
	}
	return s.currentLesson(p)
}

func (s *Seat) currentLesson(p *Progress) (*Lesson, *LessonProgress, error) {
	if p.Current == "" {
		return nil, nil, ErrNone
	}
	l, err := findFor(s.reader(p), p.Current)
	if err != nil {
		return nil, nil, err
	}
	lp := p.lessonProgress(l.ID)
	if lp.Started.IsZero() {
		return nil, nil, fmt.Errorf(
			"lesson %s was not started to the end; `lab lesson start %[1]s` does it again", l.ID,
		)
	}
	return l, lp, nil
}

// reader is whoever reads lessons at this seat.
func (s *Seat) reader(p *Progress) reader {
	who := reader{lab: s.name, seat: cmp.Or(p.Seat, state.Seat(), s.name)}
	if who.seat == DefaultName { // It has the lesson as it is printed.
		who.seat = ""
	}
	return who
}

// Find returns the lesson with this ID, in texts for this seat.
func (s *Seat) Find(id string) (*Lesson, error) {
	p, err := s.Progress()
	if err != nil {
		return nil, err
	}
	return findFor(s.reader(p), id)
}

// Next returns the first unfinished lesson after the current one, wrapping around after
// the last; nil if all are finished. Lessons that this machine cannot run are skipped,
// and unfit says why.
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

// labNames returns the names of a lesson's labs, by role.
func (s *Seat) labNames(l *Lesson) map[string]string {
	names := map[string]string{"": s.name}
	for role := range l.Others {
		names[role] = s.name + "-" + role
	}
	return names
}

// Start brings up everything that the lesson begins with. If the machine can run the
// lesson, the labs of an earlier one are taken down first.
func (s *Seat) Start(ctx context.Context, l *Lesson, steps *ui.Steps) error {
	if err := l.Fits(ctx); err != nil {
		return err
	}
	if l.NeedsGo() {
		if err := steps.Do("go", func(func(string)) (string, error) { return goVersion(ctx) }); err != nil {
			return err
		}
	}
	l, err := s.Find(l.ID)
	if err != nil {
		return err
	}
	if err := s.Stop(ctx, steps); err != nil {
		return err
	}
	wrong, err := mutantBinaryOf(ctx, l, steps)
	if err != nil {
		return err
	}
	begun, err := s.prepareOwnCCM(l, steps)
	if err != nil {
		return err
	}
	names := s.labNames(l)
	if err := s.progress.update(func(p *Progress) error {
		p.Current, p.Labs, p.Seat = l.ID, names, cmp.Or(p.Seat, state.Seat())
		p.lessonProgress(l.ID).reset(begun)
		return nil
	}); err != nil {
		return err
	}
	if _, _, err := lifecycle.Up(ctx, l.labOptions(s.name, l.Lab), steps); err != nil {
		return err
	}
	for role, setting := range l.Others {
		if _, _, err := lifecycle.Up(ctx, l.labOptions(names[role], setting), steps); err != nil {
			return err
		}
	}
	if err := s.installMutantCCM(ctx, wrong, steps); err != nil {
		return err
	}
	if err := s.waitForNodesToSettle(ctx, names); err != nil {
		return err
	}
	if l.Setup != "" {
		if err := steps.Do(
			"setting", func(func(string)) (string, error) { return "", s.runScript(ctx, l, l.Setup, nil) },
		); err != nil {
			return err
		}
	}
	return s.progress.update(func(p *Progress) error {
		p.lessonProgress(l.ID).Started = time.Now()
		return nil
	})
}

// waitForNodesToSettle waits until Ready Nodes have lost the not-ready taint, which
// kube-controller-manager removes a little later, and until the timeline has recorded
// it: what it records after that counts as the learner's doing.
func (s *Seat) waitForNodesToSettle(ctx context.Context, names map[string]string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, solveTimeout, fmt.Errorf("gave up after %s", solveTimeout))
	defer cancel()
	return cluster.PollEvery(ctx, pollInterval, "the Nodes to settle", func(ctx context.Context) error {
		w, err := openLabs(ctx, s.root, names)
		if err != nil {
			return err
		}
		for role := range names {
			nodes, err := w.objectsOf(role, "nodes")
			if err != nil {
				return err
			}
			for name, n := range nodes {
				if slices.Contains(taintKeys(n), corev1.TaintNodeNotReady) {
					return fmt.Errorf("%s has the taint %s", name, corev1.TaintNodeNotReady)
				}
			}
			if err := checkNodesQuiet(w.labs[role].Timeline()); err != nil {
				return err
			}
		}
		return nil
	})
}

// quietPeriod is how long the timeline must have no entry about a Node.
const quietPeriod = time.Second

func checkNodesQuiet(log timeline.Log) error {
	entries, err := log.Read()
	for _, e := range slices.Backward(entries) {
		if e.Source != timeline.SourceCluster || !strings.HasPrefix(e.Subject, "node/") {
			continue
		}
		if age := time.Since(e.Time); age >= 0 && age < quietPeriod {
			return fmt.Errorf("the timeline tells of %s: %s", e.Subject, e.What)
		}
		break
	}
	return err
}

// Stop takes the labs of the current lesson down. A lab of that name that no lesson
// brought up is left alone.
func (s *Seat) Stop(ctx context.Context, steps *ui.Steps) error {
	p, err := s.Progress()
	if err != nil {
		return err
	}
	if p.Current == "" {
		if _, err := state.Open(s.name); !errors.Is(err, state.ErrNone) {
			return errors.Join(fmt.Errorf(
				"there is a lab %q that no lesson began: take another --name, or remove it by `lab down --name %[1]s`",
				s.name,
			), err)
		}
		return nil
	}
	var there []string
	for _, name := range p.Labs {
		if isLab(name) {
			there = append(there, name)
		}
	}
	slices.Sort(there)
	if len(there) > 0 {
		if err := steps.Do("down", func(func(string)) (string, error) {
			var errs []error
			for _, name := range there {
				_, err := lifecycle.Down(ctx, name)
				errs = append(errs, err)
			}
			return "what lesson " + p.Current + " left", errors.Join(errs...)
		}); err != nil {
			return err
		}
	}
	return s.progress.update(func(p *Progress) error {
		p.Current, p.Labs = "", nil
		return nil
	})
}

// TaskStatus is a task and whether it was done.
type TaskStatus struct {
	*Task
	Done *Done
	// Current says that it is the next to do.
	Current bool
}

// Status is a lesson and the learner's progress in it.
type Status struct {
	Lesson *Lesson
	Tasks  []TaskStatus
	// Fresh are the tasks that are done and that the learner was not shown as done
	// before.
	Fresh []*Task
	// Problem is why the current task could not be checked, or a NotYet or DeadEndError
	// that says why it is not done.
	Problem error
}

// NotYet says why a task is not done. It is a problem for the learner to solve, not a
// failure of the check.
type NotYet string

// Error implements error.
func (n NotYet) Error() string { return string(n) }

// DeadEndError says why a task can no longer be done.
type DeadEndError string

// Error implements error.
func (d DeadEndError) Error() string {
	return string(d) + ". Type `lab lesson reset`: it begins the lesson again"
}

// Finished tells whether all tasks are done.
func (s *Status) Finished() bool {
	return !slices.ContainsFunc(s.Tasks, func(t TaskStatus) bool { return t.Done == nil })
}

// Current returns the task to do next; nil if all are done.
func (s *Status) Current() *Task {
	for _, t := range s.Tasks {
		if t.Current {
			return t.Task
		}
	}
	return nil
}

// TextBefore is the lesson's text between the current task and the one before it; at the end of the lesson its last.
func (s *Status) TextBefore() string {
	text := s.Lesson.Opening
	for _, t := range s.Tasks {
		if t.Current {
			break
		}
		text = t.After
	}
	return text
}

// Look checks which tasks of the current lesson are done, in their order, and records
// it, and that the learner was shown it. The suite runs if the learner's CCM has
// changed, which takes minutes.
func (s *Seat) Look(ctx context.Context) (*Status, error) {
	return s.updateStatus(ctx, func(*Task) bool { return true }, true)
}

// Glance is Look without the suite, whose last verdict counts, and for a learner who is
// not shown the result.
func (s *Seat) Glance(ctx context.Context) (*Status, error) {
	return s.updateStatus(ctx, func(*Task) bool { return false }, false)
}

// News is Glance for a learner who is shown the result.
func (s *Seat) News(ctx context.Context) (*Status, error) {
	return s.updateStatus(ctx, func(*Task) bool { return false }, true)
}

// updateStatus checks the tasks and records what is done. The suite runs for the tasks
// that judging selects.
func (s *Seat) updateStatus(ctx context.Context, judging func(*Task) bool, telling bool) (*Status, error) {
	p, err := s.Progress()
	if err != nil {
		return nil, err
	}
	l, lp, err := s.currentLesson(p)
	if err != nil {
		return nil, err
	}
	seen, problem := s.findDoneTasks(ctx, l, p, judging)
	st := statusOf(l, lp, seen, problem)
	if len(seen) > 0 || telling && len(st.Fresh) > 0 {
		if err := s.progress.update(
			func(now *Progress) error { return now.recordDone(st, lp.Started, telling) },
		); err != nil {
			return nil, err
		}
	}
	return st, nil
}

// findDoneTasks returns the tasks that are done now and were not before.
func (s *Seat) findDoneTasks(
	ctx context.Context,
	l *Lesson,
	p *Progress,
	judging func(*Task) bool,
) (map[string]Done, error) {
	seen, lp := map[string]Done{}, p.lessonProgress(l.ID)
	var w *labsActivation
	for _, t := range l.Tasks {
		if _, done := lp.Done[t.ID]; done {
			continue
		}
		if w == nil {
			var err error
			w, err = openLabs(ctx, s.root, p.Labs)
			if errors.Is(err, state.ErrNone) {
				err = fmt.Errorf(
					"%w: of those of lesson %s not all are up; `lab lesson reset` begins it again", state.ErrNone, l.ID,
				)
			}
			if err != nil {
				return nil, err
			}
		}
		what, done, err := s.checkTask(ctx, w, l, t, p, judging(t))
		if err == nil && !done {
			err = t.explainNotDone(w, lp.lastDone(seen))
		}
		if err != nil || !done {
			return seen, err
		}
		seen[t.ID] = Done{At: time.Now(), Seen: what}
	}
	return seen, nil
}

// checkTask tells whether a task is done, by the state of the labs or by the suite.
func (s *Seat) checkTask(
	ctx context.Context,
	w *labsActivation,
	l *Lesson,
	t *Task,
	p *Progress,
	judging bool,
) (seen string, done bool, err error) {
	if len(t.tests) == 0 {
		return t.evaluate(w, p.lessonProgress(l.ID).Started)
	}
	v, err := s.suiteVerdict(ctx, l, t, p, judging)
	if err != nil {
		return "", false, err
	}
	if !v.Passed {
		return "", false, NotYet(v.Said)
	}
	return v.Said, true, nil
}

// recordDone records the tasks that are done, unless the lesson was started again
// meanwhile.
func (p *Progress) recordDone(st *Status, started time.Time, told bool) error {
	l, lp := st.Lesson, p.lessonProgress(st.Lesson.ID)
	if p.Current != l.ID || !lp.Started.Equal(started) {
		return nil
	}
	if lp.Done == nil {
		lp.Done = map[string]Done{}
	}
	for _, t := range st.Fresh {
		d, already := lp.Done[t.ID]
		if !already {
			d = *st.doneOf(t)
		}
		d.Told = d.Told || told
		lp.Done[t.ID] = d
	}
	if len(lp.Done) == len(l.Tasks) && lp.Finished.IsZero() {
		lp.Finished = time.Now()
	}
	return nil
}

// doneOf returns the record of a task that is done; nil if it is not.
func (s *Status) doneOf(t *Task) *Done {
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

// evaluate tells whether a task's condition holds, and returns the message for it.
func (t *Task) evaluate(w *labsActivation, since time.Time) (seen string, done bool, err error) {
	if t.Until != "" {
		if done, err = t.done.evalBool(w); err != nil || !done {
			return "", false, err
		}
		seen, err = t.seen.evalString(w)
		return seen, err == nil, err
	}
	entries, err := w.timelineEntries(t.Called != "", since)
	if err != nil {
		return "", false, err
	}
	left := max(1, t.Times)
	for _, e := range entries {
		of, err := w.withEntry(e)
		if err != nil {
			return "", false, err
		}
		if done, err = t.done.evalBool(of); err != nil {
			return "", false, err
		}
		if !done {
			continue
		}
		if left--; left > 0 {
			continue
		}
		if t.seen == nil {
			return formatEntry(e), true, nil
		}
		seen, err = t.seen.evalString(of)
		return seen, err == nil, err
	}
	return "", false, nil
}

// explainNotDone returns a DeadEndError if the task can no longer be done, or a NotYet
// with the first answer that applies; nil if there is nothing to say. since is when the
// task before was done.
func (t *Task) explainNotDone(w *labsActivation, since time.Time) error {
	for _, deadEnd := range []bool{true, false} {
		for _, a := range t.Answers {
			if a.DeadEnd != deadEnd {
				continue
			}
			said, applies, err := a.evaluate(w, since)
			switch {
			case err != nil:
				return err
			case applies && deadEnd:
				return DeadEndError(said)
			case applies:
				return NotYet(said)
			}
		}
	}
	return nil
}

// evaluate returns the answer, if it applies.
func (a *Answer) evaluate(w *labsActivation, since time.Time) (said string, applies bool, err error) {
	if a.Saw == "" && a.Called == "" {
		return a.evaluateIn(w)
	}
	entries, err := w.timelineEntries(a.Called != "", since)
	if err != nil {
		return "", false, err
	}
	for _, e := range slices.Backward(entries) {
		of, err := w.withEntry(e)
		if err != nil {
			return "", false, err
		}
		if said, applies, err = a.evaluateIn(of); err != nil || applies {
			return said, applies, err
		}
	}
	return "", false, nil
}

func (a *Answer) evaluateIn(state cel.Activation) (said string, applies bool, err error) {
	if a.applies != nil {
		if applies, err := a.applies.evalBool(state); err != nil || !applies {
			return "", false, err
		}
	}
	said, err = a.say.evalString(state)
	if isMissingKey(err) {
		return "", false, nil
	}
	return said, err == nil, err
}

// findDeadEnd returns an error that names the current task if that can no longer be
// done.
func (s *Status) findDeadEnd() error {
	var dead DeadEndError
	if errors.As(s.Problem, &dead) {
		return fmt.Errorf("%q can no longer be done: %w", s.Current().Title, dead)
	}
	return nil
}

// formatEntry prints an entry of the timeline on one line.
func formatEntry(e timeline.Entry) string {
	line := fmt.Sprintf("%.1f s: %s %s", e.Seconds, e.Subject, e.What)
	if e.Detail != "" {
		line += ": " + e.Detail
	}
	return line
}

// Hint returns the next hint for the current task, and after the last one that one
// again.
func (s *Seat) Hint(ctx context.Context) (t *Task, hint string, number int, err error) {
	st, err := s.Glance(ctx)
	if err != nil {
		return nil, "", 0, err
	}
	if t = st.Current(); t == nil {
		return nil, "", 0, nil
	}
	if err := st.findDeadEnd(); err != nil {
		return nil, "", 0, err
	}
	err = s.progress.update(func(p *Progress) error {
		lp := p.lessonProgress(st.Lesson.ID)
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

// pollInterval is the time between two checks: each queries a lot.
const pollInterval = 300 * time.Millisecond

// solveTimeout bounds the time until a solution shows its effect, suiteTimeout where
// the suite has to run.
const (
	solveTimeout = 4 * time.Minute
	suiteTimeout = buildTimeout + 15*time.Minute
)

// Solve runs the solution of the current task, and waits until the task is done. say is
// called with each line that the solution prints.
func (s *Seat) Solve(ctx context.Context, say func(line string)) (*Status, error) {
	st, err := s.Glance(ctx)
	if err != nil {
		return nil, err
	}
	t := st.Current()
	if t == nil {
		return st, nil
	}
	if err := st.findDeadEnd(); err != nil {
		return nil, err
	}
	if st, err = s.doTask(ctx, st.Lesson, t, t.Solution, say); err != nil {
		err = fmt.Errorf("the solution of task %s: %w", t.ID, err)
	}
	return st, err
}

// bound is the longest that it may take to do a task.
func (l *Lesson) bound() time.Duration {
	if l.Step > 0 {
		return suiteTimeout
	}
	return solveTimeout
}

// doTask runs a script that does the current task, and waits until the task is done.
func (s *Seat) doTask(
	ctx context.Context, l *Lesson, t *Task, script string, say func(line string),
) (st *Status, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, l.bound(), fmt.Errorf("gave up after %s", l.bound()))
	defer cancel()
	if err := s.runScript(ctx, l, script, say); err != nil {
		return nil, err
	}
	seen := func(ctx context.Context) error {
		if st, err = s.updateStatus(ctx, func(other *Task) bool { return other == t }, true); err != nil {
			return err
		}
		if !slices.Contains(st.Fresh, t) && st.Current() == t {
			return errors.Join(errors.New("its condition does not hold"), st.Problem)
		}
		return nil
	}
	if len(t.tests) > 0 { // The suite has waited, and would say the same again.
		err = seen(ctx)
		return st, err
	}
	err = cluster.PollEvery(ctx, pollInterval, "task "+t.ID+" to be seen done", seen)
	return st, err
}

// Name is the name of the seat and of its lab.
func (s *Seat) Name() string { return s.name }

// Forget deletes the recorded progress.
func (s *Seat) Forget() error { return s.progress.remove() }
