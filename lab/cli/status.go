package cli

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/ccmlab/ccmlab/fakecloud/clikit"
	"github.com/ccmlab/ccmlab/lab/status"
)

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
			err = clikit.Print(cmd, st, func(w io.Writer) error { return printStatus(w, st) })
			if err == nil && st.State != "running" {
				err = silentError{errors.New(st.State)}
			}
			return err
		},
	}
	clikit.AddOutput(cmd, "table", "json", "yaml")
	return cmd
}

// printStatus prints tables of the lab's components, nodes and services.
func printStatus(w io.Writer, st *status.Status) error {
	p := newParagraphWriter(w)
	p.printLine("lab %s (%s) is %s", st.Name, st.Cluster, st.State)
	p.printLine("cloud %s", st.CloudURL)
	for _, problem := range st.Problems {
		p.printLine("problem: %s", problem)
	}
	p.printLine("")
	var components, nodes, services [][]string
	for _, c := range st.Components {
		pid := ""
		if c.PID != 0 {
			pid = fmt.Sprint(c.PID)
		}
		components = append(components, []string{c.Name, pid, c.State})
	}
	p.printTable([]string{"COMPONENT", "PID", "STATE"}, components)
	p.printLine("")
	for _, n := range st.Nodes {
		nodes = append(nodes, []string{
			n.Name, n.InstanceID, fmt.Sprint(n.Ready), n.Zone, strings.Join(n.Addresses, ","), strings.Join(n.Taints, ","),
		})
	}
	p.printTable([]string{"NODE", "INSTANCE", "READY", "ZONE", "ADDRESSES", "TAINTS"}, nodes)
	p.printLine("")
	for _, s := range st.Services {
		state := s.State
		if s.Reason != "" {
			state += ": " + s.Reason
		}
		services = append(services, []string{s.Namespace + "/" + s.Name, s.Address, fmt.Sprint(s.Port), s.BalancerID, state})
	}
	p.printTable([]string{"SERVICE", "ADDRESS", "PORT", "BALANCER", "STATE"}, services)
	return p.err
}
