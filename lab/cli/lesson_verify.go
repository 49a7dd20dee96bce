package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/spf13/cobra"

	"github.com/ccmlab/ccmlab/fakecloud/clikit"
	"github.com/ccmlab/ccmlab/lab/lessons"
	"github.com/ccmlab/ccmlab/lab/ui"
)

// verifyLabName is the default name of the lab that lessons are verified in.
const verifyLabName = "verify"

// maxParallelLessons is the maximum of --parallel. Each lesson needs a lab or two.
const maxParallelLessons = 10

func newLessonVerify(o *globalOptions) *cobra.Command {
	v := lessonVerification{o: o}
	cmd := &cobra.Command{
		Use:   "verify [ID...]",
		Short: "Type every solution and see that each lesson works, on this machine",
		Long: `verify starts each lesson, sees that none of its tasks is done yet, types the solutions,
sees every task done, starts it again and sees that all is as it was. A trainer runs it
before a class. With --ways it also types what else people do: ways that must not do a
task, each of which must be answered by what is wrong with it, and other right ones; that
takes some minutes a lesson, and is for whoever changes one. What a learner has done is not touched, with another --name than theirs
(default verify, whatever LAB_NAME is). Without an ID it is all lessons whose kind of cluster this machine has.`,
		Example:           "  lab lesson verify\n  lab lesson verify taint\n  lab lesson verify --ways taint\n  lab lesson verify --parallel 3",
		Args:              cobra.ArbitraryArgs,
		ValidArgsFunction: completeLesson,
		RunE: func(cmd *cobra.Command, args []string) error {
			if v.parallel < 1 || v.parallel > maxParallelLessons {
				return clikit.Usagef("--parallel %d: want 1 to %d", v.parallel, maxParallelLessons)
			}
			return v.runAll(cmd, args)
		},
	}
	o.addNameFlag(cmd, verifyLabName)
	cmd.Flags().BoolVar(&v.ways, "ways", false, "also type the wrong and the other right ways of each task")
	cmd.Flags().IntVar(&v.parallel, "parallel", 1, "how many lessons are verified at a time, each in a lab of its own")
	return cmd
}

// lessonVerification verifies some lessons, several at a time if parallel is more than
// 1.
type lessonVerification struct {
	o        *globalOptions
	parallel int
	ways     bool

	mu        sync.Mutex
	errs      []error
	brokenIDs []string // IDs of lessons that do not work.
}

// runAll verifies the lessons with these IDs, or without IDs all that this machine can
// run.
func (v *lessonVerification) runAll(cmd *cobra.Command, ids []string) error {
	chosen, skipped, err := v.chooseLessons(cmd.Context(), ids)
	if err != nil {
		return err
	}
	if v.parallel > 1 { // Start the longest first: later lessons, which the suite judges, take longest.
		slices.SortStableFunc(chosen, func(a, b *lessons.Lesson) int { return b.Step - a.Step })
	}
	queue := make(chan *lessons.Lesson, len(chosen))
	for _, l := range chosen {
		queue <- l
	}
	close(queue)
	var workers sync.WaitGroup
	for n := range min(v.parallel, len(chosen)) {
		s, err := takeSeat(cmd, v.o, verifyLabName)
		if err == nil && n > 0 {
			s, err = lessons.Take(fmt.Sprintf("%s-%d", s.Name(), n+1))
		}
		if err != nil {
			v.recordFailure(err)
			continue
		}
		if v.parallel > 1 { // The lessons in parallel use enough labs.
			s.SuiteLabs = 1
		}
		workers.Go(func() { v.verifyFromQueue(cmd.Context(), s, queue) })
	}
	workers.Wait()
	if len(v.errs) > 0 {
		if n := len(v.brokenIDs); n > 0 { // It may be 0: then, for example, a lab could not be taken down.
			v.recordFailure(
				fmt.Errorf("%d of %d lessons do not work: %s", n, len(chosen), strings.Join(v.brokenIDs, ", ")),
			)
		}
		return errors.Join(v.errs...)
	}
	if len(skipped) > 0 { // Printed even with --quiet, lest somebody think that all lessons were verified.
		_, err = fmt.Fprintf(
			cmd.OutOrStdout(), "%d lessons work; left out, and not tried: %s\n", len(chosen),
			strings.Join(skipped, ", "),
		)
	}
	return err
}

// chooseLessons returns the lessons with these IDs. Without IDs it returns all lessons
// that this machine can run, and the IDs of those that it skips.
func (v *lessonVerification) chooseLessons(
	ctx context.Context,
	ids []string,
) (chosen []*lessons.Lesson, skipped []string, err error) {
	for _, id := range ids {
		l, err := findLesson(id)
		if err != nil {
			return nil, nil, err
		}
		chosen = append(chosen, l)
	}
	if len(ids) > 0 {
		return chosen, nil, nil
	}
	all, err := lessons.All()
	if err != nil {
		return nil, nil, err
	}
	for _, l := range all {
		if why := l.Fits(ctx); why != nil {
			v.o.newSteps().Say("Left out: %s", why)
			skipped = append(skipped, l.ID)
		} else {
			chosen = append(chosen, l)
		}
	}
	return chosen, skipped, nil
}

// recordFailure keeps err, and the IDs of the lessons that do not work because of it.
func (v *lessonVerification) recordFailure(err error, brokenIDs ...string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.errs = append(v.errs, err)
	v.brokenIDs = append(v.brokenIDs, brokenIDs...)
}

// verifyFromQueue verifies lessons at a seat until the queue is empty. Then it takes
// the lab down and forgets the seat.
func (v *lessonVerification) verifyFromQueue(ctx context.Context, s *lessons.Seat, queue <-chan *lessons.Lesson) {
	steps := v.o.newSteps()
	for l := range queue {
		if ctx.Err() != nil {
			v.recordFailure(fmt.Errorf("lesson %s: %w", l.ID, ctx.Err()), l.ID)
			break
		}
		if err := v.verifyLesson(ctx, s, l, steps); err != nil {
			steps.Say("%v", err)
			v.recordFailure(err, l.ID)
		}
	}
	if err := errors.Join(s.Stop(context.WithoutCancel(ctx), ui.Discard()), s.Forget()); err != nil {
		v.recordFailure(err)
	}
}

// verifyLesson verifies one lesson. It prints each step or, where the steps of parallel
// lessons would be mixed up, only the result.
func (v *lessonVerification) verifyLesson(
	ctx context.Context,
	s *lessons.Seat,
	l *lessons.Lesson,
	steps *ui.Steps,
) error {
	if v.parallel == 1 {
		steps.Say("Lesson %s", l.ID)
		return s.Verify(ctx, l, v.ways, steps)
	}
	return steps.Do(l.ID, func(func(string)) (string, error) {
		return fmt.Sprintf("%d tasks were done by their solutions; reset", len(l.Tasks)), s.Verify(ctx, l, v.ways, ui.Discard())
	})
}
