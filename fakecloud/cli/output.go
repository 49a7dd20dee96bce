package cli

import (
	"strings"

	"github.com/spf13/cobra"

	"github.com/ccmlab/ccmlab/fakecloud/clikit"
)

// addOutput adds the flag -o. The format wide is a table of all columns.
func (a *app) addOutput(cmd *cobra.Command) {
	clikit.AddOutput(cmd, "table", "wide", "json", "yaml")
	cmd.Flag("output").Usage = "table, wide (a table of all columns), json or yaml"
}

// visibleColumns leaves out the columns that only -o wide shows: those with a + before
// their name in the header.
func (a *app) visibleColumns(header string, rows [][]string) ([]string, [][]string) {
	if a.wide {
		return strings.Fields(strings.ReplaceAll(header, "+", "")), rows
	}
	var keep []int
	var names []string
	for i, name := range strings.Fields(header) {
		if !strings.HasPrefix(name, "+") {
			keep, names = append(keep, i), append(names, name)
		}
	}
	narrow := make([][]string, len(rows))
	for r, row := range rows {
		for _, i := range keep {
			narrow[r] = append(narrow[r], row[i])
		}
	}
	return names, narrow
}

// printOutput prints a value as JSON or YAML, or its rows as a table, by -o.
func (a *app) printOutput(cmd *cobra.Command, value any, header string, rows [][]string) error {
	names, rows := a.visibleColumns(header, rows)
	if a.capture != nil {
		a.capture(names, rows)
		return nil
	}
	if a.output != "table" {
		return clikit.PrintData(cmd.OutOrStdout(), a.output, value)
	}
	return clikit.WriteTable(cmd.OutOrStdout(), names, rows)
}
