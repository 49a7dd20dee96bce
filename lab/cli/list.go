package cli

import (
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/ccmlab/ccmlab/fakecloud/clikit"
	"github.com/ccmlab/ccmlab/lab/status"
)

func newList(_ *globalOptions) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List your labs, and what is left of those that are gone",
		Long: `list shows each lab of yours: one that runs, one of which something is missing
(incomplete; lab up completes it), one that is stopped (lab up brings it back),
and what is left of one whose folder is gone (lab down --all ends it).`,
		Example: `  lab list
  lab list -o json | jq -r '.[] | select(.state == "running") | .name'`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			labs, err := status.List(cmd.Context())
			if err != nil {
				return err
			}
			return clikit.Print(cmd, labs, func(w io.Writer) error { return printLabs(w, labs, time.Now()) })
		},
	}
	clikit.AddOutput(cmd, "table", "json", "yaml")
	return cmd
}

// printLabs prints a table of labs, with their age at now.
func printLabs(w io.Writer, labs []status.Listed, now time.Time) error {
	if len(labs) == 0 {
		_, err := fmt.Fprintln(w, "There is no lab; `lab up` makes one.")
		return err
	}
	var rows [][]string
	for _, l := range labs {
		age := ""
		if l.StartedAt != nil {
			age = duration.HumanDuration(now.Sub(*l.StartedAt))
		}
		rows = append(rows, []string{l.Name, l.Cluster, l.State, l.Network, fmt.Sprint(l.Processes), age})
	}
	p := newParagraphWriter(w)
	p.printTable([]string{"NAME", "CLUSTER", "STATE", "NETWORK", "PROCESSES", "AGE"}, rows)
	for _, l := range labs {
		if l.Problem != "" {
			p.printLine("\nproblem: %s: %s", l.Name, l.Problem)
		}
	}
	return p.err
}
