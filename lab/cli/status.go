package cli

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/ccmlab/ccmlab/lab/status"
)

// newStatus returns the command `lab status`.
func newStatus(o *globalOptions) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show processes, nodes and load balancers",
		Long:  "status shows what there is. It exits with 1 when something that belongs to a running lab is missing.",
		Example: `  lab status
  lab status -o json | jq '.nodes[] | {name, ready, taints}'`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			l, err := o.openLab()
			if err != nil {
				return err
			}
			st, err := status.Of(cmd.Context(), l)
			if err != nil {
				return err
			}
			err = printOutput(cmd, st, func(w io.Writer) error { return printStatus(w, st) })
			if err == nil && st.State != "running" {
				err = silentError{errors.New(st.State)}
			}
			return err
		},
	}
	addOutputFlag(cmd, "table", "json", "yaml")
	return cmd
}

// printStatus prints tables of the lab's components, nodes and services.
func printStatus(w io.Writer, st *status.Status) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	p := func(format string, args ...any) { _, _ = fmt.Fprintf(t, format+"\n", args...) }
	p("lab %s (%s) is %s", st.Name, st.Cluster, st.State)
	p("cloud %s", st.CloudURL)
	for _, problem := range st.Problems {
		p("problem: %s", problem)
	}
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
		p(
			"%s\t%s\t%t\t%s\t%s\t%s", n.Name, dashIfEmpty(n.InstanceID), n.Ready, dashIfEmpty(n.Zone),
			dashIfEmpty(strings.Join(n.Addresses, ",")), dashIfEmpty(strings.Join(n.Taints, ",")),
		)
	}
	p("\nSERVICE\tADDRESS\tPORT\tBALANCER\tSTATE")
	for _, s := range st.Services {
		state := s.State
		if s.Reason != "" {
			state += ": " + s.Reason
		}
		p(
			"%s/%s\t%s\t%d\t%s\t%s", s.Namespace, s.Name, dashIfEmpty(s.Address), s.Port, dashIfEmpty(s.BalancerID),
			state,
		)
	}
	return t.Flush()
}
