package cli

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/ccmlab/ccmlab/fakecloud/clikit"
	"github.com/ccmlab/ccmlab/lab/conformance"
)

// readBudgetLimits reads the file of --budget. It returns nil without the flag.
func (f *conformanceFlags) readBudgetLimits() (conformance.Limits, error) {
	if f.budget == "" {
		return nil, nil
	}
	text, err := os.ReadFile(f.budget)
	if err != nil {
		return nil, clikit.Usagef("--budget: %w", err)
	}
	limits, err := conformance.ParseLimits(text)
	if err != nil {
		return nil, clikit.Usagef("--budget %s: %w; `lab conformance budget` prints one to edit", f.budget, err)
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
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := cmd.OutOrStdout().Write(conformance.DefaultLimits().YAML())
			return err
		},
	}
}

// printBudget adds the spent calls of the cloud's API to a table. It has a line for
// each phase and a column for each controller. A cell has the calls per object and
// their limit.
func printBudget(p *paragraphWriter, spent []conformance.Spent) {
	if len(spent) == 0 {
		return
	}
	header := []string{"BUDGET, calls/limit", "PER"}
	for _, c := range conformance.Controllers {
		header = append(header, string(c))
	}
	var rows [][]string
	for i, s := range spent {
		if i == 0 || s.Nodes != spent[i-1].Nodes || s.Phase != spent[i-1].Phase {
			rows = append(rows, []string{fmt.Sprintf("%d Nodes, %s", s.Nodes, s.Phase), fmt.Sprint(s.Per)})
		}
		mark := ""
		if s.Exceeds() {
			mark = " !"
		}
		last := &rows[len(rows)-1]
		*last = append(*last, conformance.Digits(s.Each)+"/"+conformance.Digits(s.Limit)+mark)
	}
	p.printLine("")
	p.printTable(header, rows)
}
