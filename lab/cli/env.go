package cli

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/ccmlab/ccmlab/lab/lessons"
)

func newEnv(o *globalOptions) *cobra.Command {
	return &cobra.Command{
		Use:   "env",
		Short: "Print exports that make kubectl, fakecloud and lab speak to this lab",
		Long: `env prints exports for a shell: kubectl, fakecloud and lab speak to this lab. Where
lessons take place, go compiles a CCM as the lab does; in a bundle that is its own Go.`,
		Example: `  eval "$(lab env)"`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			l, err := o.openLab()
			if err != nil {
				return err
			}
			seat, err := lessons.Take(l.State.Name)
			if err != nil {
				return err
			}
			tools, err := seat.Tools()
			if err != nil {
				return err
			}
			for _, v := range append(l.Env(), tools...) {
				line := "export " + v.Name + "=" + shellQuote(v.Value)
				if v.Before != "" {
					line += fmt.Sprintf("\"${%s:+%s$%[1]s}\"", v.Name, v.Before)
				}
				_, _ = fmt.Fprintln(cmd.OutOrStdout(), line)
			}
			return nil
		},
	}
}

func newKubeconfig(o *globalOptions) *cobra.Command {
	return &cobra.Command{
		Use:     "kubeconfig",
		Short:   "Print the path of the operator's kubeconfig",
		Example: `  kubectl --kubeconfig "$(lab kubeconfig)" get nodes`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			l, err := o.openLab()
			if err != nil {
				return err
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), l.Cluster.Kubeconfig())
			return err
		},
	}
}
