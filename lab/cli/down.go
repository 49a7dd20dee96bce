package cli

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/ccmlab/ccmlab/fakecloud/clikit"
	"github.com/ccmlab/ccmlab/lab"
	"github.com/ccmlab/ccmlab/lab/lifecycle"
	"github.com/ccmlab/ccmlab/lab/state"
	"github.com/ccmlab/ccmlab/lab/ui"
)

func newDown(o *globalOptions) *cobra.Command {
	var all, keepState bool
	cmd := &cobra.Command{
		Use:   "down",
		Short: "Stop everything of the lab and delete its folder, or keep its state",
		Long: `down ends every process and container of the lab and deletes all that it
kept, networks and volumes among it. It also clears away what a crash left. Where
there is no lab it says so, and is content.

With --keep-state the processes end, and what the cluster and the cloud know
stays, with the machines' disks and the lab's addresses: lab up comes back to the
same. A kind cluster cannot: its containers are its state.

--all takes down every lab of yours, and what is left of labs whose folder is
gone. What cannot be taken down does not keep the others; it exits with 1 then.`,
		Example: `  lab down
  lab down --keep-state && lab up   # the same instances, Nodes and balancer
  lab down --all`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			steps := o.newSteps()
			if all {
				if cmd.Flag("name").Changed {
					return clikit.Usagef("--all and --name: want one of them")
				}
				return downAll(cmd.Context(), steps, keepState)
			}
			dir, err := state.Dir(o.name)
			if err != nil {
				return clikit.Usage(err)
			}
			return steps.Do("down", func(func(string)) (string, error) {
				return downOne(cmd.Context(), lab.Found{Name: o.name, Dir: dir}, keepState)
			})
		},
	}
	cmd.Flags().BoolVar(&all, "all", false, "every lab of yours, and what is left of others")
	cmd.Flags().
		BoolVar(&keepState, "keep-state", false, "end what runs, and keep what lab up needs to come back to the same")
	return cmd
}

// downAll takes down every lab, and what is left of labs whose folder is gone. It goes
// on after a failure.
func downAll(ctx context.Context, steps *ui.Steps, keepState bool) error {
	found, err := lab.Find()
	if err != nil {
		return err
	}
	if len(found) == 0 {
		steps.Say("   There is no lab; nothing to do.")
	}
	var errs []error
	for _, f := range found {
		if ctx.Err() != nil {
			return errors.Join(append(errs, errors.New("interrupted; `lab down --all` again ends what is left"))...)
		}
		err := steps.Do("down "+f.Name, func(func(string)) (string, error) { return downOne(ctx, f, keepState) })
		if err != nil {
			errs = append(errs, fmt.Errorf("lab %q: %w", f.Name, err))
		}
	}
	return errors.Join(errs...)
}

// downOne takes one lab down, or pauses it if keepState is set. It returns what it did.
// A leftover, which is a lab without a folder, has no state to keep.
func downOne(ctx context.Context, f lab.Found, keepState bool) (string, error) {
	down := func(ctx context.Context) (int, error) { return lifecycle.DownDir(ctx, f.Dir) }
	if keepState && !f.Leftover {
		down = func(ctx context.Context) (int, error) { return lifecycle.Pause(ctx, f.Name) }
	}
	ended, err := down(ctx)
	switch {
	case errors.Is(err, state.ErrNone):
		return fmt.Sprintf("there is no lab %q; nothing to do", f.Name), nil
	case f.Leftover:
		return fmt.Sprintf("%d processes and containers ended; its folder %s had been deleted", ended, f.Dir), err
	case keepState && ended == 0:
		return "it was stopped already", err
	case keepState:
		return fmt.Sprintf("%d processes ended; lab up comes back to what is in %s", ended, f.Dir), err
	}
	return fmt.Sprintf("%d processes and containers ended, folder deleted", ended), err
}
