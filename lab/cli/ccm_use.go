package cli

import (
	"context"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/ccmlab/ccmlab/lab"
	"github.com/ccmlab/ccmlab/lab/conformance/program"
	"github.com/ccmlab/ccmlab/lab/suite"
)

// newCCMUse returns the command `lab ccm use`.
func newCCMUse(o *globalOptions) *cobra.Command {
	own := false
	cmd := &cobra.Command{
		Use:   "use PROGRAM [-- ARGS...]",
		Short: "Have another program be the lab's CCM, or the lab's own again",
		Long: `use has a program on this machine be the lab's CCM, in place of the lab's own: one that
runs is replaced at once, and the lab starts it again if it ends, as it does its own.

Without arguments the program is given those of the lab's own CCM, all of which are
flags of k8s.io/cloud-provider. With arguments after -- it is given these; they are
templates with the fields ` + wrapHelpText(program.ValueNames()) + `.

The cluster's CCM must be a process of this machine (embedded, external).`,
		Example: `  lab ccm use ./my-ccm
  lab ccm use ./my-ccm -- --kubeconfig={{.Kubeconfig}} --cloud-config={{.CloudConfig}}
  lab ccm use --own`,
		Args: func(cmd *cobra.Command, args []string) error {
			if own {
				return requireNoArguments(cmd, args)
			}
			return requireOneArgument(cmd, args[:countBeforeDash(cmd, args)])
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			return o.runOnCCM("ccm use", func(l *lab.Lab) (string, error) {
				which, use := "the lab's own", func(ctx context.Context) error { return l.UseCCM(ctx, nil) }
				if !own {
					path, err := filepath.Abs(args[0])
					if err != nil {
						return "", err
					}
					which, use = path, func(ctx context.Context) error { return suite.UseCCM(ctx, l, path, args[1:]) }
				}
				if !l.CCMWanted() {
					which += "; none runs before " + invokedAs() + " ccm start"
				}
				return which, use(cmd.Context())
			})
		},
	}
	cmd.Flags().BoolVar(&own, "own", false, "the lab's own CCM")
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
