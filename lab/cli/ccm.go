package cli

import (
	"cmp"
	"context"
	"fmt"
	"path/filepath"
	"strings"

	"al.essio.dev/pkg/shellescape"
	"github.com/spf13/cobra"

	"github.com/ccmlab/ccmlab/fakecloud/clikit"
	"github.com/ccmlab/ccmlab/lab"
	"github.com/ccmlab/ccmlab/lab/conformance/program"
	"github.com/ccmlab/ccmlab/lab/dialects"
	"github.com/ccmlab/ccmlab/lab/lifecycle"
	"github.com/ccmlab/ccmlab/lab/state"
	"github.com/ccmlab/ccmlab/lab/suite"
)

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
	cmd.AddCommand(newCCMUse(o), newCCMCommand(o), newCCMRotateKey(o))
	return cmd
}

// runOnCCM runs do on the lab's CCM as one printed step. It holds the lab's lock, so no
// other command changes the lab meanwhile.
func (o *globalOptions) runOnCCM(title string, do func(*lab.Lab) (string, error)) error {
	if _, err := state.Dir(o.name); err != nil {
		return clikit.Usage(err)
	}
	l, err := lab.OpenLocked(o.name)
	if err != nil {
		return err
	}
	defer l.State.Unlock()
	steps := o.newSteps()
	l.Say = steps.Say
	return steps.Do(title, func(func(string)) (string, error) { return do(l) })
}

func newCCMCommand(o *globalOptions) *cobra.Command {
	return &cobra.Command{
		Use:   "command",
		Short: "Print the command line of the lab's CCM, to run a second one by hand",
		Long: `command prints how the lab runs its CCM, quoted for a shell. Whoever runs it has another
CCM, with the same rights and the same token, in the terminal: a second replica, which
waits for the lease, or one with other flags. Flags can be appended; of one that comes
twice the last counts. The lab's CCM has its port, so another needs --secure-port=0,
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
			_, err = fmt.Fprintln(cmd.OutOrStdout(), shellescape.QuoteCommand(words))
			return err
		},
	}
}

func newCCMRotateKey(o *globalOptions) *cobra.Command {
	return &cobra.Command{
		Use:   "rotate-key",
		Short: "Give a CCM that signs its calls another key pair",
		Long: `rotate-key is for the CCM of a cloud whose clients sign their calls. It makes a key pair, adds
its public key to the CCM's token, and restarts the CCM with it. When the cloud has taken a
call of the CCM, or none came for a while, the old key is deleted from the cloud. A rotation
that was broken off goes on when the command is run again.`,
		Example: "  lab ccm rotate-key",
		RunE: func(cmd *cobra.Command, _ []string) error {
			return o.runOnCCM("ccm rotate-key", func(l *lab.Lab) (string, error) {
				return l.RotateCCMKey(cmd.Context())
			})
		},
	}
}

func newCCMUse(o *globalOptions) *cobra.Command {
	own, guest := false, &guestFlags{}
	cmd := &cobra.Command{
		Use:   "use PROGRAM [-- ARGS...]",
		Short: "Have another program be the lab's CCM, or the lab's own again",
		Long: `use has a program on this machine be the lab's CCM, in place of the lab's own: one that
runs is replaced at once, and the lab starts it again if it ends, as it does its own.

Without arguments the program is given those of the lab's own CCM, all of which are
flags of k8s.io/cloud-provider. With arguments after -- it is given these; they are
templates with the fields ` + wrapHelpText(program.ValueNames()) + `.

With --dialect the program is the CCM of another cloud, unmodified, and is given what
its cloud's preset has: ` + "`lab dialect show NAME`" + ` prints it. The lab's cloud speaks that
cloud's API, too; Cloudlycke's cloud has none. Arguments after -- and --ccm-env come on top.

A CCM that does not find instances by Node name needs provider IDs. Nodes that have none get
them before it starts, and later ones from their kubelets. Nodes with those of another CCM
keep them: the lab must be brought up anew, with ` + "`lab up --dialect NAME --ccm PROGRAM`" + `.

In a kind cluster the program is a process of this machine, too, with the operator's
rights. The Deployment of the lab's own CCM has no replica meanwhile.`,
		Example: `  lab ccm use ./my-ccm
  lab ccm use ./my-ccm -- --kubeconfig={{.Kubeconfig}} --cloud-config={{.CloudConfig}}
  lab ccm use --dialect hcloud ./hcloud-cloud-controller-manager
  lab ccm use --own`,
		Args: func(cmd *cobra.Command, args []string) error {
			if own {
				return clikit.RejectArguments(cmd, args)
			}
			return clikit.RequireArguments(1, 1)(cmd, args[:countBeforeDash(cmd, args)])
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			return o.runOnCCM("ccm use", func(l *lab.Lab) (string, error) {
				which, use := "the lab's own", func(ctx context.Context) error { return l.UseCCM(ctx, nil) }
				if !own {
					path, err := filepath.Abs(args[0])
					if err != nil {
						return "", err
					}
					which, use = path, func(ctx context.Context) error { return guest.use(ctx, l, path, args[1:]) }
				}
				wanted, err := l.CCMWanted(cmd.Context())
				if err != nil {
					return "", err
				}
				if !wanted {
					which += "; none runs before " + invokedAs() + " ccm start"
				}
				return which, use(cmd.Context())
			})
		},
	}
	cmd.Flags().BoolVar(&own, "own", false, "the lab's own CCM")
	guest.add(cmd)
	return cmd
}

// guestFlags say how a CCM runs that is not the lab's own.
type guestFlags struct {
	dialect string
	env     []string
	// providerIDs is a template that kubelets have been given instead of the preset's; "" for none.
	providerIDs string
}

func (g *guestFlags) add(cmd *cobra.Command) {
	cmd.Flags().StringVar(
		&g.dialect, "dialect", "",
		"the CCM is that of another cloud, run by its preset: "+strings.Join(dialects.Names(), ", "),
	)
	cmd.Flags().StringArrayVar(
		&g.env, "ccm-env", nil, "NAME=value in the CCM's environment, a template as its arguments are; repeatable",
	)
	clikit.CompleteFlag(cmd, "dialect", dialects.Names()...)
}

// use makes a program the lab's CCM.
func (g *guestFlags) use(ctx context.Context, l *lab.Lab, path string, args []string) error {
	return suite.UseCCM(ctx, l, &program.CCM{Path: path, Args: args, Env: g.env}, g.dialect, g.providerIDs)
}

// forUp has lab up use the CCM at path, and give kubelets the provider IDs that its preset asks for. If path is "",
// a lab for a dialect has no CCM yet.
func (g *guestFlags) forUp(o *lifecycle.Options, path string, args []string) error {
	if path == "" && (len(g.env) > 0 || len(args) > 0) {
		return clikit.Usagef("--ccm-env and arguments after -- are for --ccm PROGRAM")
	}
	if g.dialect != "" {
		preset, err := dialects.Named(g.dialect)
		if err != nil {
			return clikit.Usage(err)
		}
		o.KubeletProviderIDs = cmp.Or(o.KubeletProviderIDs, preset.KubeletProviderIDs)
		o.Dialect, o.CloudRegion, o.CloudZones = g.dialect, preset.Region, preset.Zones
	}
	if path == "" { // Nodes are initialised once, so the lab's own CCM must not come first.
		o.WithoutCCM = o.WithoutCCM || g.dialect != ""
		return nil
	}
	g.providerIDs = o.KubeletProviderIDs
	path, err := filepath.Abs(path)
	o.UseCCM = func(ctx context.Context, l *lab.Lab) error { return g.use(ctx, l, path, args) }
	return err
}

func newDialect() *cobra.Command {
	cmd := &cobra.Command{
		Use: "dialect", Short: "Show how CCMs of other clouds are run in a lab",
		Example: "  lab dialect show hcloud",
		RunE:    func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(&cobra.Command{
		Use: "show NAME", Short: "Print the preset of a CCM: environment, arguments and limits",
		Example: "  lab dialect show hcloud", Args: clikit.RequireArguments(1, 1),
		ValidArgsFunction: cobra.FixedCompletions(dialects.Names(), cobra.ShellCompDirectiveNoFileComp),
		RunE: func(cmd *cobra.Command, args []string) error {
			source, err := dialects.Source(args[0])
			if err != nil {
				return clikit.Usage(err)
			}
			_, err = cmd.OutOrStdout().Write(source)
			return err
		},
	})
	return cmd
}

// countBeforeDash returns the number of arguments before --, or of all if there is no
// --.
func countBeforeDash(cmd *cobra.Command, args []string) int {
	if dash := cmd.ArgsLenAtDash(); dash >= 0 {
		return dash
	}
	return len(args)
}
