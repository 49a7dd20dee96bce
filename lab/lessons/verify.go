package lessons

// This file answers: does a lesson work? Its solutions are typed, as a learner would
// who knew them.

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
	"github.com/ccmlab/ccmlab/lab/ui"
)

// Verify starts a lesson, sees that no task is done, types each solution, sees that
// it was done, and sees that a reset brings back what the lesson began with.
func (s *Seat) Verify(ctx context.Context, l *Lesson, steps *ui.Steps) error {
	if l.Step > 0 {
		forget, err := s.elsewhere()
		if err != nil {
			return err
		}
		defer forget()
	}
	if err := s.Start(ctx, l, steps); err != nil {
		return err
	}
	began, err := s.begun(ctx, l)
	if err != nil {
		return err
	}
	if err := s.fails(ctx, l, steps); err != nil {
		return err
	}
	for _, t := range l.Tasks {
		if err := steps.Do("task", func(note func(string)) (string, error) {
			note(t.ID)
			return s.verify(ctx, t, note)
		}); err != nil {
			return fmt.Errorf("lesson %s: %w", l.ID, err)
		}
	}
	if err := s.Start(ctx, l, steps); err != nil {
		return fmt.Errorf("lesson %s: reset: %w", l.ID, err)
	}
	return steps.Do("reset", func(func(string)) (string, error) {
		ctx, cancel := context.WithTimeoutCause(ctx, solveBound, fmt.Errorf("gave up after %s", solveBound))
		defer cancel()
		err := cluster.PollEvery(ctx, lookEvery, "lesson "+l.ID+" to be reset", func(ctx context.Context) error { return s.isAgain(ctx, l, began) })
		return "all is as it was", err
	})
}

// elsewhere has a CCM written in a folder that goes when all is done.
func (s *Seat) elsewhere() (forget func(), err error) {
	temporary, err := os.MkdirTemp("", "lesson")
	if err != nil {
		return nil, remedy.With(err)
	}
	return func() { _ = os.RemoveAll(temporary) }, s.record.change(func(p *Progress) error {
		p.Folder = filepath.Join(temporary, ownFolder)
		return nil
	})
}

// begun is what a lesson begins with, once no task's condition holds. Each is asked,
// not only that of the first.
func (s *Seat) begun(ctx context.Context, l *Lesson) (map[string]string, error) {
	p, err := s.Progress()
	if err != nil {
		return nil, err
	}
	w, err := look(ctx, s.root, p.Labs)
	if err != nil {
		return nil, err
	}
	var errs []error
	for _, t := range l.Tasks {
		if len(t.tests) > 0 {
			continue // See fails.
		}
		what, done, err := t.look(w, p.of(l.ID).Started)
		if done {
			err = fmt.Errorf("task %s is done before anything was: %s", t.ID, what)
		}
		errs = append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("lesson %s: %w", l.ID, err)
	}
	return s.atRest(ctx, l)
}

// restFor is how long a lesson's labs stay as they are before that is what the lesson
// begins with: a pod may just be made, or its probe be late once.
const restFor = 2 * time.Second

func (s *Seat) atRest(ctx context.Context, l *Lesson) (was map[string]string, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, solveBound, fmt.Errorf("gave up after %s", solveBound))
	defer cancel()
	err = cluster.PollEvery(ctx, restFor, "lesson "+l.ID+" to come to rest", func(ctx context.Context) error {
		is, err := s.outline(ctx, l)
		if err != nil {
			return err
		}
		err = differences(was, is)
		was = is
		return err
	})
	return was, err
}

// verify sees one task through.
func (s *Seat) verify(ctx context.Context, t *Task, note func(string)) (string, error) {
	st, err := s.Glance(ctx)
	if err != nil {
		return "", err
	}
	if st.Current() != t {
		return "", fmt.Errorf("task %s is done before its solution was typed", t.ID)
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

// failsBound is how long a test waits for what a CCM that is not written does not do.
const failsBound = 30 * time.Second

// fails is an error if the suite finds nothing wrong with the CCM that a lesson begins
// with. One test of each task is enough to see that, and they wait long for what does not
// come.
func (s *Seat) fails(ctx context.Context, l *Lesson, steps *ui.Steps) error {
	p, err := s.Progress()
	if err != nil {
		return err
	}
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
			passed, said, err := s.judge(ctx, p.Folder, []string{test}, failsBound, note)
			if err == nil && passed {
				err = fmt.Errorf("lesson %s: task %s may be done before anything was written: %s (%s)", l.ID, t.ID, said, test)
			}
			return test + " fails", err
		}); err != nil {
			return err
		}
	}
	return nil
}

// isAgain is an error while things are other than they were.
func (s *Seat) isAgain(ctx context.Context, l *Lesson, before map[string]string) error {
	now, err := s.outline(ctx, l)
	if err != nil {
		return err
	}
	return differences(before, now)
}

// differences is an error that names them; nil if there are none.
func differences(before, now map[string]string) error {
	var differ []string
	for _, what := range slices.Sorted(maps.Keys(merged(before, now))) {
		if before[what] != now[what] {
			differ = append(differ, fmt.Sprintf("%s was %q and is %q", what, before[what], now[what]))
		}
	}
	if len(differ) > 0 {
		return errors.New(strings.Join(differ, "; "))
	}
	return nil
}

func merged(a, b map[string]string) map[string]string {
	all := map[string]string{}
	maps.Copy(all, a)
	maps.Copy(all, b)
	return all
}

// outline is what a lesson's labs are like, without what differs each time: IDs,
// times, ports that were chosen.
func (s *Seat) outline(ctx context.Context, l *Lesson) (map[string]string, error) {
	w, err := look(ctx, s.root, s.labs(l))
	if err != nil {
		return nil, err
	}
	out := map[string]string{}
	for role := range w.labs {
		for variable, describe := range outlines {
			found, err := w.all(role, variable)
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

// outlines are what is compared, by variable; nil counts them.
var outlines = map[string]func(any) string{
	"nodes": func(o any) string {
		// How its kubelet feels changes by itself on a busy machine.
		taints := slices.DeleteFunc(taintKeys(o), func(key string) bool {
			return key == corev1.TaintNodeNotReady || key == corev1.TaintNodeUnreachable
		})
		return fmt.Sprintf("labels %v, taints %v, provider ID %t", at(o, "metadata", "labels"), taints, at(o, "spec", "providerID") != nil)
	},
	"services": func(o any) string {
		return fmt.Sprintf("type %v, finalizers %v, %d addresses", at(o, "spec", "type"), at(o, "metadata", "finalizers"), len(list(o, "status", "loadBalancer", "ingress")))
	},
	"deployments": func(o any) string {
		return fmt.Sprintf("%v replicas, %v ready", at(o, "spec", "replicas"), at(o, "status", "readyReplicas"))
	},
	"instances": func(o any) string {
		return fmt.Sprintf("%v, type %v, in %v", at(o, "state"), at(o, "type"), at(o, "zone"))
	},
	"balancers": func(o any) string { return fmt.Sprint(at(o, "state")) },
	"runs":      func(o any) string { return fmt.Sprint(o) },
	"pods":      nil, "faults": nil, "routes": nil,
}

func taintKeys(node any) []string {
	var keys []string
	for _, t := range list(node, "spec", "taints") {
		key, _ := at(t, "key").(string)
		keys = append(keys, key)
	}
	slices.Sort(keys)
	return keys
}
