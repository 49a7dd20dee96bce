package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"
	"text/tabwriter"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"golang.org/x/term"
	"sigs.k8s.io/yaml"
)

// addOutput adds the flag -o.
func (a *app) addOutput(cmd *cobra.Command) {
	cmd.Flags().StringVarP(&a.output, "output", "o", "table", "table, wide (a table of all columns), json or yaml")
	completeFlagValues(cmd, map[string][]string{"output": {"table", "wide", "json", "yaml"}})
}

func (a *app) checkOutput() error {
	switch a.output {
	case "", "table", "json", "yaml":
		return nil
	case "wide":
		a.output, a.wide = "table", true
		return nil
	}
	return misuse("--output %q: choose table, wide, json or yaml", a.output)
}

// visibleColumns leaves out the columns that only -o wide shows: those with a + before
// their name in the header.
func (a *app) visibleColumns(header string, rows [][]string) (string, [][]string) {
	if a.wide {
		return strings.ReplaceAll(header, "+", ""), rows
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
	return strings.Join(names, " "), narrow
}

// printOutput prints a value as JSON or YAML, or its rows as a table, by -o.
func (a *app) printOutput(out io.Writer, value any, header string, rows [][]string) error {
	header, rows = a.visibleColumns(header, rows)
	if a.capture != nil {
		a.capture(header, rows)
		return nil
	}
	switch a.output {
	case "json":
		e := json.NewEncoder(out)
		e.SetIndent("", "  ")
		return e.Encode(value)
	case "yaml":
		return printYAML(out, value)
	}
	return writeTable(out, strings.Fields(header), rows, terminalWidth(out))
}

const (
	columnGap, smallColumnGap = 3, 2 // spaces between columns
	// uncutWidth is the width to which a column may always stay.
	uncutWidth = 20
)

// idPattern matches an ID, which is never cut: part of one is of no use.
var idPattern = regexp.MustCompile(`\b[a-z]+-[0-9a-z]{26}\b`)

// terminalWidth is the width of the terminal that out is; 0 if it is none.
func terminalWidth(out io.Writer) int {
	width, _ := terminalSize(out)
	return width
}

func terminalSize(out io.Writer) (width, height int) {
	f, ok := out.(*os.File)
	if !ok {
		return 0, 0
	}
	width, height, err := term.GetSize(int(f.Fd()))
	if err != nil {
		return 0, 0
	}
	return width, height
}

// writeTable writes rows in columns. Where lines would be wider than width, it narrows the
// gaps and cuts long cells. With width 0 it cuts nothing.
func writeTable(out io.Writer, header []string, rows [][]string, width int) error {
	all := append([][]string{header}, rows...)
	widths, between := fitColumns(all, width)
	t := tabwriter.NewWriter(out, 0, 0, between, ' ', 0)
	for _, row := range all {
		cells := make([]string, len(row))
		for i, cell := range row {
			cells[i] = truncateCell(cell, widths[i])
		}
		if _, err := fmt.Fprintln(t, strings.Join(cells, "\t")); err != nil {
			return err
		}
	}
	return t.Flush()
}

// fitColumns computes the columns' widths and the gap between them so that lines fit. It
// narrows the widest columns, but none below uncutWidth or the length of its IDs.
func fitColumns(rows [][]string, width int) (widths []int, between int) {
	var least []int
	for _, row := range rows {
		for i, cell := range row {
			if i == len(widths) {
				widths, least = append(widths, 0), append(least, uncutWidth)
			}
			n := utf8.RuneCountInString(cell)
			widths[i] = max(widths[i], n)
			if idPattern.MatchString(cell) {
				least[i] = max(least[i], n)
			}
		}
	}
	over := func(between int) int {
		total := between * (len(widths) - 1)
		for _, w := range widths {
			total += w
		}
		return total - width
	}
	if width == 0 || over(columnGap) <= 0 {
		return widths, columnGap
	}
	for n := over(smallColumnGap); n > 0; n-- {
		widest := -1
		for i, w := range widths {
			if w > least[i] && (widest < 0 || w > widths[widest]) {
				widest = i
			}
		}
		if widest < 0 {
			break
		}
		widths[widest]--
	}
	return widths, smallColumnGap
}

// truncateCell cuts a cell that is longer than width, and ends it with an ellipsis.
func truncateCell(cell string, width int) string {
	if utf8.RuneCountInString(cell) <= width {
		return cell
	}
	return string([]rune(cell)[:width-1]) + "…"
}

func printYAML(out io.Writer, value any) error {
	text, err := yaml.Marshal(value)
	if err != nil {
		return err
	}
	_, err = out.Write(text)
	return err
}

// printRecord prints one value of a series: as a line of JSON, or as a YAML document.
func printRecord(out io.Writer, format string, value any) error {
	if format == "json" {
		return json.NewEncoder(out).Encode(value)
	}
	if _, err := fmt.Fprintln(out, "---"); err != nil {
		return err
	}
	return printYAML(out, value)
}
