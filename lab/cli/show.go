package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/ccmlab/ccmlab/lab"
	"github.com/ccmlab/ccmlab/lab/cluster"
	"github.com/ccmlab/ccmlab/lab/timeline"
)

func newStatus(o *options) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show processes, nodes and load balancers",
		Long:  "status shows what there is. It exits with 1 when something that belongs to a running lab is missing.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			l, err := o.open()
			if err != nil {
				return err
			}
			st, err := l.Status(cmd.Context())
			if err != nil {
				return err
			}
			if format := cmd.Flag("output").Value.String(); format != "table" {
				err = printAs(cmd.OutOrStdout(), format, st)
			} else {
				err = printStatus(cmd.OutOrStdout(), st)
			}
			if err == nil && st.State != "running" {
				err = silentError{errors.New(st.State)}
			}
			return err
		},
	}
	addOutput(cmd, "table", "json", "yaml")
	return cmd
}

func printStatus(w io.Writer, st *lab.Status) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	p := func(format string, args ...any) { _, _ = fmt.Fprintf(t, format+"\n", args...) }
	p("lab %s (%s) is %s", st.Name, st.Cluster, st.State)
	p("cloud %s", st.CloudURL)
	p("\nCOMPONENT\tPID\tSTATE")
	for _, c := range st.Components {
		pid := "-"
		if c.PID != 0 {
			pid = fmt.Sprint(c.PID)
		}
		p("%s\t%s\t%s", c.Name, pid, c.State)
	}
	p("\nNODE\tINSTANCE\tREADY\tZONE\tADDRESSES\tTAINTS")
	for _, n := range st.Nodes {
		p("%s\t%s\t%t\t%s\t%s\t%s", n.Name, dash(n.InstanceID), n.Ready, dash(n.Zone), dash(strings.Join(n.Addresses, ",")), dash(strings.Join(n.Taints, ",")))
	}
	p("\nSERVICE\tADDRESS\tPORT\tBALANCER\tSTATE")
	for _, s := range st.Services {
		state := s.State
		if s.Reason != "" {
			state += ": " + s.Reason
		}
		p("%s/%s\t%s\t%d\t%s\t%s", s.Namespace, s.Name, dash(s.Address), s.Port, dash(s.BalancerID), state)
	}
	for _, problem := range st.Problems {
		p("\nproblem: %s", problem)
	}
	return t.Flush()
}

func dash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

func printTimeline(w io.Writer, entries []timeline.Entry) {
	for _, e := range entries {
		_, _ = fmt.Fprintln(w, timelineLine(e))
	}
}

func timelineLine(e timeline.Entry) string {
	return strings.TrimRight(fmt.Sprintf("%8.2f  %-22s %-16s %s", e.Seconds, e.Subject, e.What, e.Detail), " ")
}

func newWatch(o *options) *cobra.Command {
	var follow bool
	cmd := &cobra.Command{
		Use:   "watch",
		Short: "Show what happened, and what happens, to nodes, services and the cloud",
		Example: `  lab watch
  lab watch --follow=false -o json   # what happened so far, one JSON object per line`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			l, err := o.open()
			if err != nil {
				return err
			}
			asJSON := cmd.Flag("output").Value.String() == "json"
			enc := json.NewEncoder(cmd.OutOrStdout())
			err = l.Timeline().Follow(cmd.Context(), follow, func(e timeline.Entry) error {
				if asJSON {
					return enc.Encode(e)
				}
				_, err := fmt.Fprintln(cmd.OutOrStdout(), timelineLine(e))
				return err
			})
			if errors.Is(err, context.Canceled) {
				return nil // Ctrl-C is how one ends it.
			}
			return err
		},
	}
	cmd.Flags().BoolVarP(&follow, "follow", "f", true, "wait for what comes")
	addOutput(cmd, "table", "json")
	return cmd
}

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

func newAgent() *cobra.Command {
	var dir string
	cmd := &cobra.Command{
		Use: "agent", Hidden: true,
		Short: "The lab's background process; `lab up` starts it",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if dir == "" {
				return usagef("--dir is missing; `lab up` starts this for you")
			}
			return lab.RunAgent(cmd.Context(), dir, slog.New(slog.NewTextHandler(os.Stderr, nil)))
		},
	}
	cmd.Flags().StringVar(&dir, "dir", "", "the lab's folder")
	return cmd
}
