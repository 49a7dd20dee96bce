package lessons

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/ccmlab/ccmlab/lab/cluster"
	"github.com/ccmlab/ccmlab/lab/remedy"
	"github.com/ccmlab/ccmlab/lab/suite"
	"github.com/ccmlab/ccmlab/lab/ui"
)

// Verify proves that a lesson works. It starts the lesson, checks that no task is done,
// runs each solution, checks that its task is done then, and that a reset restores what
// the lesson began with. With ways it also types what else people do; see tryWays.
func (s *Seat) Verify(ctx context.Context, l *Lesson, ways bool, steps *ui.Steps) error {
	l, err := s.Find(l.ID)
	if err != nil {
		return err
	}
	if l.Step > 0 {
		forget, err := s.useTemporaryFolder()
		if err != nil {
			return err
		}
		defer forget()
	}
	if err := s.Start(ctx, l, steps); err != nil {
		return err
	}
	began, err := s.startingOutline(ctx, l)
	if err != nil {
		return err
	}
	if err := s.checkStartingPointFails(ctx, l, steps); err != nil {
		return err
	}
	for _, t := range l.Tasks {
		if err := steps.Do("task", func(note func(string)) (string, error) {
			note(t.ID)
			return s.verifyTask(ctx, t, note)
		}); err != nil {
			return fmt.Errorf("lesson %s: %w", l.ID, err)
		}
	}
	if err := s.Start(ctx, l, steps); err != nil {
		return fmt.Errorf("lesson %s: reset: %w", l.ID, err)
	}
	if err := steps.Do("reset", func(func(string)) (string, error) {
		ctx, cancel := context.WithTimeoutCause(ctx, solveTimeout, fmt.Errorf("gave up after %s", solveTimeout))
		defer cancel()
		err := cluster.PollEvery(ctx, pollInterval, "lesson "+l.ID+" to be reset", func(ctx context.Context) error {
			return s.checkOutline(ctx, l, began)
		})
		return "all is as it was", err
	}); err != nil || !ways {
		return err
	}
	trial := &wayTrial{seat: s, lesson: l, steps: steps}
	return trial.tryAll(ctx)
}

// useTemporaryFolder makes the learner's CCM be written in a temporary folder, which
// forget removes.
func (s *Seat) useTemporaryFolder() (forget func(), err error) {
	temporary, err := os.MkdirTemp("", "lesson")
	if err != nil {
		return nil, remedy.With(err)
	}
	return func() { _ = os.RemoveAll(temporary) }, s.progress.update(func(p *Progress) error {
		p.Folder = filepath.Join(temporary, ownCCMDir)
		return nil
	})
}

// startingOutline returns the outline that a lesson begins with. It is an error if any
// task's condition holds already.
func (s *Seat) startingOutline(ctx context.Context, l *Lesson) (map[string]string, error) {
	p, err := s.Progress()
	if err != nil {
		return nil, err
	}
	w, err := openLabs(ctx, s.root, p.Labs)
	if err != nil {
		return nil, err
	}
	var errs []error
	for _, t := range l.Tasks {
		if len(t.tests) > 0 {
			continue // See fails.
		}
		what, done, err := t.evaluate(w, p.lessonProgress(l.ID).Started)
		if done {
			err = fmt.Errorf("task %s is done before anything was: %s", t.ID, what)
		}
		errs = append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("lesson %s: %w", l.ID, err)
	}
	return s.waitForStableOutline(ctx, l)
}

// restPeriod is how long the outline must not change before it counts as what the
// lesson begins with: a pod may be about to be created, or a probe be late once.
const restPeriod = 2 * time.Second

func (s *Seat) waitForStableOutline(ctx context.Context, l *Lesson) (was map[string]string, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, solveTimeout, fmt.Errorf("gave up after %s", solveTimeout))
	defer cancel()
	err = cluster.PollEvery(ctx, restPeriod, "lesson "+l.ID+" to come to rest", func(ctx context.Context) error {
		is, err := s.outlineLabs(ctx, l)
		if err != nil {
			return err
		}
		err = compareOutlines(was, is)
		was = is
		return err
	})
	return was, err
}

// verifyTask runs the solution of one task.
func (s *Seat) verifyTask(ctx context.Context, t *Task, note func(string)) (string, error) {
	st, err := s.Glance(ctx)
	if err != nil {
		return "", err
	}
	if st.Current() != t {
		return "", fmt.Errorf("task %s is done before its solution was typed", t.ID)
	}
	if err := st.findDeadEnd(); err != nil {
		return "", fmt.Errorf("before its solution was typed: %w", err)
	}
	if st, err = s.Solve(ctx, note); err != nil {
		return "", err
	}
	for _, ts := range st.Tasks {
		if ts.Task == t && ts.Done != nil {
			return t.ID + ": " + ts.Done.Seen, nil
		}
	}
	return "", fmt.Errorf("task %s is not done by its solution", t.ID)
}

// failingTestTimeout bounds how long a test waits for what an unwritten CCM does not
// do.
const failingTestTimeout = 30 * time.Second

// checkStartingPointFails is an error if the suite passes the CCM that the lesson
// begins with. One test per task is enough, since each waits long for what does not
// happen.
func (s *Seat) checkStartingPointFails(ctx context.Context, l *Lesson, steps *ui.Steps) error {
	tried := map[string]bool{}
	for _, t := range l.Tasks {
		if len(t.tests) == 0 {
			continue
		}
		test := cmp.Or(t.Fails, t.tests[0])
		if tried[test] {
			continue
		}
		tried[test] = true
		if err := steps.Do("nothing written", func(note func(string)) (string, error) {
			v, err := s.judgeOne(ctx, test, note)
			if err == nil && v.Passed {
				err = fmt.Errorf(
					"lesson %s: task %s may be done before anything was written: %s (%s)", l.ID, t.ID, v.Said, test,
				)
			}
			return test + " fails", err
		}); err != nil {
			return err
		}
	}
	return nil
}

// judgeOne runs a test that the CCM is to fail.
func (s *Seat) judgeOne(ctx context.Context, test string, tell func(string)) (suite.Verdict, error) {
	p, err := s.Progress()
	if err != nil {
		return suite.Verdict{}, err
	}
	return s.runSuite(ctx, p.Folder, suite.Trial{
		Name: s.name + "-suite", Tests: []string{test}, Bound: failingTestTimeout, Tell: tell,
	})
}

// checkOutline is an error if the labs' outline differs from before.
func (s *Seat) checkOutline(ctx context.Context, l *Lesson, before map[string]string) error {
	now, err := s.outlineLabs(ctx, l)
	if err != nil {
		return err
	}
	return compareOutlines(before, now)
}

// compareOutlines is an error that names the differences; nil if there are none.
func compareOutlines(before, now map[string]string) error {
	var differ []string
	all := map[string]string{}
	maps.Copy(all, before)
	maps.Copy(all, now)
	for _, what := range slices.Sorted(maps.Keys(all)) {
		if before[what] != now[what] {
			differ = append(differ, fmt.Sprintf("%s was %q and is %q", what, before[what], now[what]))
		}
	}
	if len(differ) > 0 {
		return errors.New(strings.Join(differ, "; "))
	}
	return nil
}

// outlineLabs describes a lesson's labs without what differs each time: IDs, times,
// ports.
func (s *Seat) outlineLabs(ctx context.Context, l *Lesson) (map[string]string, error) {
	w, err := openLabs(ctx, s.root, s.labNames(l))
	if err != nil {
		return nil, err
	}
	out := map[string]string{}
	for role := range w.labs {
		for variable, describe := range outlineFields {
			found, err := w.objectsOf(role, variable)
			if err != nil {
				return nil, err
			}
			if describe == nil {
				out[role+" "+variable] = fmt.Sprint(len(found))
				continue
			}
			for key, object := range found {
				out[strings.TrimSpace(role+" "+variable+" "+key)] = describe(object)
			}
		}
	}
	return out, nil
}

// outlineFields describe the objects of a variable; nil only counts them.
var outlineFields = map[string]func(any) string{
	"nodes": func(o any) string {
		// How its kubelet feels changes by itself on a busy machine.
		taints := slices.DeleteFunc(taintKeys(o), func(key string) bool {
			return key == corev1.TaintNodeNotReady || key == corev1.TaintNodeUnreachable
		})
		return fmt.Sprintf(
			"labels %v, taints %v, provider ID %t", fieldAt(o, "metadata", "labels"), taints,
			fieldAt(o, "spec", "providerID") != nil,
		)
	},
	"services": func(o any) string {
		return fmt.Sprintf(
			"type %v, finalizers %v, %d addresses", fieldAt(o, "spec", "type"), fieldAt(o, "metadata", "finalizers"),
			len(listAt(o, "status", "loadBalancer", "ingress")),
		)
	},
	"deployments": func(o any) string {
		return fmt.Sprintf(
			"%v replicas, %v ready", fieldAt(o, "spec", "replicas"), fieldAt(o, "status", "readyReplicas"),
		)
	},
	"instances": func(o any) string {
		return fmt.Sprintf("%v, type %v, in %v", fieldAt(o, "state"), fieldAt(o, "type"), fieldAt(o, "zone"))
	},
	"balancers": func(o any) string { return fmt.Sprint(fieldAt(o, "state")) },
	"runs":      func(o any) string { return fmt.Sprint(o) },
	"pods":      nil, "faults": nil, "routes": nil,
}

func taintKeys(node any) []string {
	var keys []string
	for _, t := range listAt(node, "spec", "taints") {
		key, _ := fieldAt(t, "key").(string)
		keys = append(keys, key)
	}
	slices.Sort(keys)
	return keys
}
