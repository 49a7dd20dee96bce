package cli

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/ccmlab/ccmlab/lab"
	"github.com/ccmlab/ccmlab/lab/state"
)

// newCCM returns the command `lab ccm` with its subcommands.
func newCCM(o *globalOptions) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "ccm",
		Short: "Start, stop or restart the cloud controller manager",
		Example: `  lab up --without-ccm   # nodes stay tainted
  lab ccm start          # and are no longer
  lab ccm restart
  lab ccm command        # how it is run`,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	stop := func(cmd *cobra.Command, l *lab.Lab) error { return l.Cluster.StopCCM(cmd.Context()) }
	start := func(cmd *cobra.Command, l *lab.Lab) error { return l.StartCCM(cmd.Context()) }
	add := func(use, short string, actions ...func(*cobra.Command, *lab.Lab) error) {
		cmd.AddCommand(&cobra.Command{Use: use, Short: short, Example: "  lab ccm " + use, RunE: func(
			cmd *cobra.Command,
			_ []string,
		) error {
			return o.runOnCCM("ccm "+use, func(l *lab.Lab) (string, error) {
				for _, action := range actions {
					if err := action(cmd, l); err != nil {
						return "", err
					}
				}
				return "", nil
			})
		}})
	}
	add("start", "Start it, unless it runs", start)
	add("stop", "Stop it; nodes and balancers stay as they are", stop)
	add("restart", "Stop it, then start it", stop, start)
	cmd.AddCommand(newCCMUse(o), newCCMCommand(o))
	return cmd
}

// runOnCCM runs do on the lab's CCM as one printed step. It holds the lab's lock, so no
// other command changes the lab meanwhile.
func (o *globalOptions) runOnCCM(title string, do func(*lab.Lab) (string, error)) error {
	if _, err := state.Dir(o.name); err != nil {
		return usageError{err}
	}
	l, err := lab.OpenLocked(o.name)
	if err != nil {
		return err
	}
	defer l.State.Unlock()
	return o.newSteps().Do(title, func(func(string)) (string, error) { return do(l) })
}

// newCCMCommand returns the command `lab ccm command`.
func newCCMCommand(o *globalOptions) *cobra.Command {
	return &cobra.Command{
		Use:   "command",
		Short: "Print the command line of the lab's CCM, to run a second one by hand",
		Long: `command prints how the lab runs its CCM, quoted for a shell. Whoever runs it has another
CCM, with the same rights and the same token, in the terminal: a second replica, which
waits for the lease, or one with other flags. Flags can be appended; of one that comes
twice the last counts. The lab's own CCM has its port, so another needs --secure-port=0,
or a port of its own. It is not kept running as the lab's is; lab down ends it, unless
Ctrl-C did.`,
		Example: `  eval "$(lab ccm command) --secure-port=0"
  eval "$(lab ccm command) --secure-port=0 -v=4" 2> second.log &`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			l, err := o.openLab()
			if err != nil {
				return err
			}
			words, err := l.CCMCommand()
			if err != nil {
				return err
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), shellCommandLine(words))
			return err
		},
	}
}
