package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/ccmlab/ccmlab/lab/lessons"
	"github.com/ccmlab/ccmlab/lab/ui"
)

// verifyName is that of the lab that lessons are verified in.
const verifyName = "verify"

func verifyLessons(cmd *cobra.Command, o *options, ids []string) error {
	chosen, err := lessons.All()
	if err != nil {
		return err
	}
	if len(ids) > 0 {
		chosen = nil
		for _, id := range ids {
			l, err := lessonArg(id)
			if err != nil {
				return err
			}
			chosen = append(chosen, l)
		}
	}
	s, err := seat(cmd, o, verifyName)
	if err != nil {
		return err
	}
	steps := o.steps()
	var failed []error
	var left []string
	for _, l := range chosen {
		if why := l.Fits(cmd.Context()); why != nil && len(ids) == 0 {
			steps.Say("Left out: %s", why)
			left = append(left, l.ID)
			continue
		}
		steps.Say("Lesson %s", l.ID)
		err := s.Verify(cmd.Context(), l, steps)
		if cmd.Context().Err() != nil {
			failed = append(failed, err)
			break
		}
		if err != nil {
			steps.Say("%s", ui.Paint(ui.Colored(cmd.ErrOrStderr()), "31", err.Error()))
			failed = append(failed, err)
		}
	}
	down := s.Stop(context.WithoutCancel(cmd.Context()), steps)
	tried := len(chosen) - len(left)
	if len(failed) > 0 {
		failed = append(failed, fmt.Errorf("%d of %d lessons do not work", len(failed), tried))
	} else if len(left) > 0 { // --quiet or not: nobody shall take that for all of them.
		_, err := fmt.Fprintf(cmd.OutOrStdout(), "%d lessons work; left out, and not tried: %s\n", tried, strings.Join(left, ", "))
		failed = append(failed, err)
	}
	return errors.Join(append(failed, down, s.Forget())...)
}
