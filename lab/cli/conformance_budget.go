package cli

// The budget of cloud calls on a command line: limits read from a file, the
// default ones printed, and what was spent as a table.

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/ccmlab/ccmlab/lab/conformance"
)

// readBudgetLimits reads the file of --budget; nil without one.
func (f *conformanceFlags) readBudgetLimits() (conformance.Limits, error) {
	if f.budget == "" {
		return nil, nil
	}
	text, err := os.ReadFile(f.budget)
	if err != nil {
		return nil, usagef("--budget: %w", err)
	}
	limits, err := conformance.ParseLimits(text)
	if err != nil {
		return nil, usagef("--budget %s: %w; `lab conformance budget` prints one to edit", f.budget, err)
	}
	return limits, nil
}

func newConformanceBudget() *cobra.Command {
	return &cobra.Command{
		Use:   "budget",
		Short: "Print the default limits of the profile Budget, to edit and give to --budget",
		Long: `budget prints how many calls of the cloud's API a Node and a Service may cost at
most, by number of Nodes, phase and controller. A file for --budget need only
have those that are to differ.`,
		Example: "  lab conformance budget > budget.yaml\n  lab conformance --profile Budget --budget budget.yaml",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := cmd.OutOrStdout().Write(conformance.DefaultLimits().YAML())
			return err
		},
	}
}

// printBudget adds what was spent to a table: a line for each phase, a column for
// each controller, and in it the calls each and their limit.
func printBudget(p func(format string, args ...any), spent []conformance.Spent) {
	if len(spent) == 0 {
		return
	}
	heading := "BUDGET, calls/limit\tPER"
	for _, c := range conformance.Controllers {
		heading += "\t" + string(c)
	}
	p("\n%s", heading)
	line := ""
	for i, s := range spent {
		if i == 0 || s.Nodes != spent[i-1].Nodes || s.Phase != spent[i-1].Phase {
			if line != "" {
				p("%s", line)
			}
			line = fmt.Sprintf("%d Nodes, %s\t%s", s.Nodes, s.Phase, s.Per)
		}
		mark := ""
		if s.Exceeds() {
			mark = " !"
		}
		line += "\t" + conformance.Digits(s.Each) + "/" + conformance.Digits(s.Limit) + mark
	}
	p("%s", line)
}
