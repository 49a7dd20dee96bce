package lessons

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/ccmlab/ccmlab/lab/cluster"
	"github.com/ccmlab/ccmlab/lab/ui"
)

// wayTrial types the ways of a lesson's tasks.
type wayTrial struct {
	seat   *Seat
	lesson *Lesson
	steps  *ui.Steps
	errs   []error
}

// tryAll types, for each task in turn, the wrong ways and then a right one, as somebody
// does who tries. A wrong way must not do the task and must be answered; from there the
// right way must do it. The lesson begins anew after a dead end, after a mistake, and
// between two right ways. It was just started.
func (w *wayTrial) tryAll(ctx context.Context) error {
	for _, t := range w.lesson.Tasks {
		if err := w.tryTask(ctx, t); err != nil {
			return errors.Join(append(w.errs, err)...)
		}
	}
	return errors.Join(w.errs...)
}

// tryTask types the ways of one task. What it returns ends the trial.
func (w *wayTrial) tryTask(ctx context.Context, t *Task) error {
	for _, way := range t.Ways.Wrong {
		goesOn := false
		w.showWay("wrong", t, way, func(func(string)) (err error) {
			goesOn, err = w.tryWrong(ctx, t, way)
			return err
		})
		if !goesOn {
			if err := w.startBefore(ctx, t); err != nil {
				return err
			}
		}
	}
	for i, way := range t.Ways.Right {
		if i > 0 {
			if err := w.startBefore(ctx, t); err != nil {
				return err
			}
		}
		if ok := w.showWay("right", t, way, func(note func(string)) error {
			_, err := w.seat.doTask(ctx, w.lesson, t, way.Script, note)
			return err
		}); !ok && i+1 == len(t.Ways.Right) {
			if err := w.startBefore(ctx, t); err != nil {
				return err
			}
		}
	}
	return w.solveUntil(ctx, t)
}

// showWay shows a way while it is tried, and keeps what is wrong.
func (w *wayTrial) showWay(kind string, t *Task, way Way, try func(note func(string)) error) (ok bool) {
	what := t.ID + ": " + way.Name
	err := w.steps.Do(kind, func(note func(string)) (string, error) {
		note(what)
		return what, try(note)
	})
	if err != nil {
		w.errs = append(
			w.errs, fmt.Errorf("lesson %s: task %s: %s way %q: %w", w.lesson.ID, t.ID, kind, way.Name, err),
		)
	}
	return err == nil
}

// startBefore begins the lesson anew and solves the tasks before t.
func (w *wayTrial) startBefore(ctx context.Context, t *Task) error {
	if err := w.seat.Start(ctx, w.lesson, w.steps); err != nil {
		return fmt.Errorf("lesson %s: reset: %w", w.lesson.ID, err)
	}
	i := slices.Index(w.lesson.Tasks, t)
	if i == 0 {
		return nil
	}
	return w.solveUntil(ctx, w.lesson.Tasks[i-1])
}

// solveUntil types the solutions of t and the tasks before it that are not done. The
// suite, which has judged them, does not judge them again.
func (w *wayTrial) solveUntil(ctx context.Context, t *Task) error {
	for _, task := range w.lesson.Tasks[:slices.Index(w.lesson.Tasks, t)+1] {
		st, err := w.seat.Glance(ctx)
		if err != nil {
			return err
		}
		if st.doneOf(task) != nil {
			continue
		}
		if err := w.steps.Do("solve", func(note func(string)) (string, error) {
			note(task.ID)
			if len(task.tests) == 0 {
				_, err := w.seat.Solve(ctx, note)
				return task.ID, err
			}
			return task.ID, w.typeAgain(ctx, task, note)
		}); err != nil {
			return fmt.Errorf("lesson %s: %w", w.lesson.ID, err)
		}
	}
	return nil
}

// typeAgain types a solution that the suite has judged, and records it as done.
func (w *wayTrial) typeAgain(ctx context.Context, t *Task, note func(string)) error {
	if err := w.seat.runScript(ctx, w.lesson, t.Solution, note); err != nil {
		return fmt.Errorf("the solution of task %s: %w", t.ID, err)
	}
	return w.seat.progress.update(func(p *Progress) error {
		lp := p.lessonProgress(w.lesson.ID)
		if lp.Done == nil { // An empty map is not stored.
			lp.Done = map[string]Done{}
		}
		lp.Done[t.ID] = Done{At: time.Now(), Seen: "its solution was typed again"}
		return nil
	})
}

// lateEffectPeriod is how long a task must stay undone after a wrong way was answered.
const lateEffectPeriod = 3 * time.Second

// tryWrong is an error if a way does the task, or is not answered. goesOn tells whether
// the task can still be done.
func (w *wayTrial) tryWrong(ctx context.Context, t *Task, way Way) (goesOn bool, err error) {
	if len(t.tests) > 0 {
		return true, w.tryWrongCCM(ctx, t, way)
	}
	before, err := w.seat.Glance(ctx)
	if err != nil {
		return false, err
	}
	if before.hasAnswerTo(way) {
		return false, fmt.Errorf("its answer is given before it is typed: %w", before.Problem)
	}
	if err := w.typeWrong(ctx, t, way); err != nil {
		return false, err
	}
	st, err := w.awaitAnswer(ctx, t, way)
	if err != nil {
		return false, err
	}
	if err := w.checkStaysUndone(ctx, t, time.After(lateEffectPeriod)); err != nil {
		return false, err
	}
	if errors.As(st.Problem, new(DeadEndError)) {
		return false, nil
	}
	if way.Undo == "" {
		return true, nil
	}
	return true, w.seat.runScript(ctx, w.lesson, way.Undo, nil)
}

// tryWrongCCM is an error unless the suite fails the CCM that a way writes, and says why. The
// one test is enough: a task is done if all of its tests pass.
func (w *wayTrial) tryWrongCCM(ctx context.Context, t *Task, way Way) error {
	if err := w.typeWrong(ctx, t, way); err != nil {
		return err
	}
	v, err := w.seat.judgeOne(ctx, way.Fails, func(string) {})
	switch {
	case err != nil:
		return err
	case v.Passed:
		return fmt.Errorf("it passes %s: %s", way.Fails, v.Said)
	case !strings.Contains(v.Said, way.Says):
		return fmt.Errorf("the suite does not say %q: %s", way.Says, v.Said)
	}
	return nil
}

// typeWrong runs the script of a wrong way. It is an error if that does the task
// meanwhile.
func (w *wayTrial) typeWrong(ctx context.Context, t *Task, way Way) error {
	ctx, cancel := context.WithTimeoutCause(ctx, w.lesson.bound(), fmt.Errorf("gave up after %s", w.lesson.bound()))
	var scriptErr error
	typed := make(chan time.Time)
	go func() {
		defer close(typed)
		scriptErr = w.seat.runScript(ctx, w.lesson, way.Script, nil)
	}()
	defer func() {
		cancel()
		<-typed
	}()
	if err := w.checkStaysUndone(ctx, t, typed); err != nil {
		return err
	}
	return scriptErr
}

// answerTimeout is how long a learner waits for the answer to what they did.
const answerTimeout = time.Minute

// awaitAnswer waits until a wrong way is answered, or has done the task.
func (w *wayTrial) awaitAnswer(ctx context.Context, t *Task, way Way) (st *Status, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, answerTimeout, fmt.Errorf("gave up after %s", answerTimeout))
	defer cancel()
	err = cluster.PollEvery(ctx, pollInterval, "an answer that says "+way.Says, func(ctx context.Context) error {
		if st, err = w.seat.Glance(ctx); err != nil {
			return err
		}
		if st.doneOf(t) != nil || st.hasAnswerTo(way) {
			return nil
		}
		return errors.Join(errors.New("nothing says so"), st.Problem)
	})
	return st, err
}

// checkStaysUndone is an error if the task is done before end.
func (w *wayTrial) checkStaysUndone(ctx context.Context, t *Task, end <-chan time.Time) error {
	for ended := false; ; {
		st, err := w.seat.Glance(ctx)
		if err != nil {
			return err
		}
		if done := st.doneOf(t); done != nil {
			return fmt.Errorf("the task is ticked by what must not: %s", done.Seen)
		}
		if ended {
			return nil
		}
		select {
		case <-end:
			ended = true
		case <-time.After(pollInterval):
		}
	}
}

// hasAnswerTo tells whether a learner is told what a wrong way must be answered with.
func (s *Status) hasAnswerTo(way Way) bool {
	isAnswer := errors.As(s.Problem, new(NotYet)) || errors.As(s.Problem, new(DeadEndError))
	return isAnswer && strings.Contains(s.Problem.Error(), way.Says)
}
