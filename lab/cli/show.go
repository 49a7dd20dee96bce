package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/nxadm/tail"
	"github.com/spf13/cobra"

	"github.com/ccmlab/ccmlab/lab"
	"github.com/ccmlab/ccmlab/lab/process"
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
	p("lab %s is %s", st.Name, st.State)
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
		ValidArgsFunction: func(_ *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
			l, err := o.open()
			if err != nil {
				return nil, cobra.ShellCompDirectiveError
			}
			logs, _ := l.Logs()
			return slices.Sorted(maps.Keys(logs)), cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			l, err := o.open()
			if err != nil {
				return err
			}
			logs, err := l.Logs()
			if err != nil {
				return err
			}
			names := slices.Sorted(maps.Keys(logs))
			if len(args) == 0 {
				for _, name := range names {
					_, _ = fmt.Fprintf(cmd.OutOrStdout(), "%-26s %s\n", name, logs[name])
				}
				return nil
			}
			file, ok := logs[strings.ReplaceAll(args[0], "/", "-")]
			if !ok {
				return usagef("no component %q has a log; there are: %s", args[0], strings.Join(names, ", "))
			}
			return printLog(cmd, file, lines, follow)
		},
	}
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "wait for what comes")
	cmd.Flags().IntVar(&lines, "tail", 0, "only the last so many lines (0: all)")
	return cmd
}

func printLog(cmd *cobra.Command, file string, last int, follow bool) error {
	config := tail.Config{Follow: follow, ReOpen: follow, MustExist: true, Logger: tail.DiscardingLogger}
	if last > 0 {
		lines, err := process.Tail(file, last)
		if err != nil {
			return err
		}
		for _, line := range lines {
			_, _ = fmt.Fprintln(cmd.OutOrStdout(), line)
		}
		if !follow {
			return nil
		}
		config.Location = &tail.SeekInfo{Whence: io.SeekEnd}
	}
	t, err := tail.TailFile(file, config)
	if err != nil {
		return err
	}
	defer t.Cleanup()
	for {
		select {
		case line, ok := <-t.Lines:
			if !ok {
				return nil
			}
			if _, err := fmt.Fprintln(cmd.OutOrStdout(), line.Text); err != nil {
				return err
			}
		case <-cmd.Context().Done():
			return nil
		}
	}
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
