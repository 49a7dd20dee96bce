package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/spf13/cobra"

	"github.com/ccmlab/ccmlab/lab/lessons"
	"github.com/ccmlab/ccmlab/lab/ui"
)

// verifyName is that of the lab that lessons are verified in.
const verifyName = "verify"

// maxVerified is how many lessons are verified at a time, at most: each has a lab or two.
const maxVerified = 10

func newLessonVerify(o *options) *cobra.Command {
	v := verification{o: o}
	cmd := &cobra.Command{
		Use:   "verify [ID...]",
		Short: "Type every solution and see that each lesson works, on this machine",
		Long: `verify starts each lesson, sees that none of its tasks is done yet, types the solutions,
sees every task done, starts it again and sees that all is as it was. A trainer runs it
before a class. What a learner has done is not touched, with another --name than theirs
(default verify). Without an ID it is all lessons whose kind of cluster this machine has.`,
		Example:           "  lab lesson verify\n  lab lesson verify taint\n  lab lesson verify --parallel 3",
		Args:              cobra.ArbitraryArgs,
		ValidArgsFunction: completeLesson,
		RunE: func(cmd *cobra.Command, args []string) error {
			if v.parallel < 1 || v.parallel > maxVerified {
				return usagef("--parallel %d: want 1 to %d", v.parallel, maxVerified)
			}
			return v.run(cmd, args)
		},
	}
	cmd.Flags().IntVar(&v.parallel, "parallel", 1, "how many lessons are verified at a time, each in a lab of its own")
	return cmd
}

// verification is one of some lessons.
type verification struct {
	o        *options
	parallel int

	mu     sync.Mutex
	failed []error
	broken []string // The IDs of lessons that do not work.
}

func (v *verification) run(cmd *cobra.Command, ids []string) error {
	fit, left, err := v.choose(cmd.Context(), ids)
	if err != nil {
		return err
	}
	if v.parallel > 1 { // Those that the suite judges take longest, the later the longer.
		slices.SortStableFunc(fit, func(a, b *lessons.Lesson) int { return b.Step - a.Step })
	}
	queue := make(chan *lessons.Lesson, len(fit))
	for _, l := range fit {
		queue <- l
	}
	close(queue)
	var workers sync.WaitGroup
	for n := range min(v.parallel, len(fit)) {
		s, err := seat(cmd, v.o, verifyName)
		if n > 0 {
			s, err = lessons.Take(fmt.Sprintf("%s-%d", s.Name(), n+1))
		}
		if err != nil {
			v.fail(err)
			continue
		}
		if v.parallel > 1 { // There are enough labs.
			s.SuiteLabs = 1
		}
		workers.Go(func() { v.work(cmd.Context(), s, queue) })
	}
	workers.Wait()
	if len(v.failed) > 0 {
		if n := len(v.broken); n > 0 { // Else a lab could not be taken down, say.
			v.fail(fmt.Errorf("%d of %d lessons do not work: %s", n, len(fit), strings.Join(v.broken, ", ")))
		}
		return errors.Join(v.failed...)
	}
	if len(left) > 0 { // --quiet or not: nobody shall take that for all of them.
		_, err = fmt.Fprintf(cmd.OutOrStdout(), "%d lessons work; left out, and not tried: %s\n", len(fit), strings.Join(left, ", "))
	}
	return err
}

// choose finds the lessons, and those that this machine lacks something for, which are
// left out unless they were asked for.
func (v *verification) choose(ctx context.Context, ids []string) (fit []*lessons.Lesson, left []string, err error) {
	for _, id := range ids {
		l, err := lessonArg(id)
		if err != nil {
			return nil, nil, err
		}
		fit = append(fit, l)
	}
	if len(ids) > 0 {
		return fit, nil, nil
	}
	all, err := lessons.All()
	if err != nil {
		return nil, nil, err
	}
	for _, l := range all {
		if why := l.Fits(ctx); why != nil {
			v.o.steps().Say("Left out: %s", why)
			left = append(left, l.ID)
		} else {
			fit = append(fit, l)
		}
	}
	return fit, left, nil
}

func (v *verification) fail(err error, lessons ...string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.failed = append(v.failed, err)
	v.broken = append(v.broken, lessons...)
}

// work verifies lessons at a seat until there are none left.
func (v *verification) work(ctx context.Context, s *lessons.Seat, queue <-chan *lessons.Lesson) {
	steps := v.o.steps()
	for l := range queue {
		if ctx.Err() != nil {
			v.fail(fmt.Errorf("lesson %s: %w", l.ID, ctx.Err()), l.ID)
			break
		}
		if err := v.verify(ctx, s, l, steps); err != nil {
			steps.Say("%v", err)
			v.fail(err, l.ID)
		}
	}
	if err := errors.Join(s.Stop(context.WithoutCancel(ctx), ui.Discard()), s.Forget()); err != nil {
		v.fail(err)
	}
}

// verify shows each step of a lesson or, where several would be mixed up, their end.
func (v *verification) verify(ctx context.Context, s *lessons.Seat, l *lessons.Lesson, steps *ui.Steps) error {
	if v.parallel == 1 {
		steps.Say("Lesson %s", l.ID)
		return s.Verify(ctx, l, steps)
	}
	return steps.Do(l.ID, func(func(string)) (string, error) {
		return fmt.Sprintf("%d tasks were done by their solutions; reset", len(l.Tasks)), s.Verify(ctx, l, ui.Discard())
	})
}
