package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/ccmlab/ccmlab/lab"
	"github.com/ccmlab/ccmlab/lab/cluster/kind"
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
	for _, l := range chosen {
		if why := without(cmd.Context(), l); why != "" && len(ids) == 0 {
			steps.Say("Lesson %s is left out: %s", l.ID, why)
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
	if len(failed) > 0 {
		failed = append(failed, fmt.Errorf("%d of %d lessons do not work", len(failed), len(chosen)))
	}
	return errors.Join(append(failed, down, s.Forget())...)
}

// without says why a lesson cannot be taken on this machine.
func without(ctx context.Context, l *lessons.Lesson) string {
	if cmp.Or(l.Cluster, lab.Embedded) == lab.Kind && kind.Available(ctx) == "" {
		return "it wants a kind cluster, and there is no container engine"
	}
	return ""
}
