package cli

import (
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/ccmlab/ccmlab/lab/status"
)

// newList returns the command `lab list`.
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
			return printOutput(cmd, labs, func(w io.Writer) error { return printLabs(w, labs, time.Now()) })
		},
	}
	addOutputFlag(cmd, "table", "json", "yaml")
	return cmd
}

// printLabs prints a table of labs, with their age at now.
func printLabs(w io.Writer, labs []status.Listed, now time.Time) error {
	if len(labs) == 0 {
		_, err := fmt.Fprintln(w, "There is no lab; `lab up` makes one.")
		return err
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(t, "NAME\tCLUSTER\tSTATE\tNETWORK\tPROCESSES\tAGE")
	for _, l := range labs {
		age := ""
		if l.StartedAt != nil {
			age = duration.HumanDuration(now.Sub(*l.StartedAt))
		}
		_, _ = fmt.Fprintf(
			t, "%s\t%s\t%s\t%s\t%d\t%s\n", l.Name, dashIfEmpty(l.Cluster), l.State, dashIfEmpty(l.Network), l.Processes,
			dashIfEmpty(age),
		)
	}
	for _, l := range labs {
		if l.Problem != "" {
			_, _ = fmt.Fprintf(t, "\nproblem: %s: %s\n", l.Name, l.Problem)
		}
	}
	return t.Flush()
}
