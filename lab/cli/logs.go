package cli

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/ccmlab/ccmlab/lab/cluster"
)

func newLogs(o *options) *cobra.Command {
	var (
		follow bool
		lines  int
	)
	cmd := &cobra.Command{
		Use:   "logs [COMPONENT]",
		Short: "Print a component's log; without one, list them",
		Example: `  lab logs            # which logs there are
  lab logs ccm -f
  lab logs node-node-1 --tail 50`,
		Args: cobra.MaximumNArgs(1),
		ValidArgsFunction: func(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
			l, err := o.open()
			if err != nil {
				return nil, cobra.ShellCompDirectiveError
			}
			logs, _ := l.Cluster.Logs(cmd.Context())
			return logNames(logs), cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			l, err := o.open()
			if err != nil {
				return err
			}
			logs, err := l.Cluster.Logs(cmd.Context())
			if err != nil {
				return err
			}
			if len(args) == 0 {
				for _, log := range logs {
					_, _ = fmt.Fprintf(cmd.OutOrStdout(), "%-26s %s\n", log.Name, log.Where)
				}
				return nil
			}
			name := strings.ReplaceAll(args[0], "/", "-")
			i := slices.IndexFunc(logs, func(l cluster.Log) bool { return l.Name == name })
			if i < 0 {
				return usagef("no component %q has a log; there are: %s", args[0], strings.Join(logNames(logs), ", "))
			}
			return logs[i].Copy(cmd.Context(), cmd.OutOrStdout(), lines, follow)
		},
	}
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "wait for what comes")
	cmd.Flags().IntVar(&lines, "tail", 0, "only the last so many lines (0: all)")
	return cmd
}

func logNames(logs []cluster.Log) []string {
	names := make([]string, len(logs))
	for i, log := range logs {
		names[i] = log.Name
	}
	return names
}
