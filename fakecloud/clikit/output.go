package clikit

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strings"
	"text/tabwriter"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"golang.org/x/term"
	"sigs.k8s.io/yaml"
)

// outputFlag is the flag -o. It accepts one of the command's formats; the first is the
// default.
type outputFlag struct {
	value   string
	formats []string
}

// AddOutput adds the flag -o to cmd, with completion of the formats.
func AddOutput(cmd *cobra.Command, formats ...string) {
	f := &outputFlag{value: formats[0], formats: formats}
	cmd.Flags().VarP(f, "output", "o", "output format: "+strings.Join(formats, ", "))
	CompleteFlag(cmd, "output", formats...)
}

func (f *outputFlag) String() string { return f.value }

func (f *outputFlag) Type() string { return "format" }

// Set accepts v if it is one of the formats.
func (f *outputFlag) Set(v string) error {
	if !slices.Contains(f.formats, v) {
		return fmt.Errorf("want one of %s%s", strings.Join(f.formats, ", "), DidYouMean(v, f.formats))
	}
	f.value = v
	return nil
}

// Output returns the format that -o gave cmd; "table" if cmd has no such flag.
func Output(cmd *cobra.Command) string {
	if f := cmd.Flag("output"); f != nil {
		return f.Value.String()
	}
	return "table"
}

// Print prints v as -o of cmd asks for: with printTable as a table, otherwise as data.
func Print(cmd *cobra.Command, v any, printTable func(io.Writer) error) error {
	if format := Output(cmd); format != "table" {
		return PrintData(cmd.OutOrStdout(), format, v)
	}
	return printTable(cmd.OutOrStdout())
}

// PrintData writes v as YAML if the format is "yaml", else as indented JSON.
func PrintData(out io.Writer, format string, v any) error {
	if format == "yaml" {
		text, err := yaml.Marshal(v)
		if err != nil {
			return err
		}
		_, err = out.Write(text)
		return err
	}
	e := json.NewEncoder(out)
	e.SetIndent("", "  ")
	return e.Encode(v)
}

// PrintRecord prints one value of a series: as a YAML document if the format is "yaml", else
// as a line of JSON.
func PrintRecord(out io.Writer, format string, v any) error {
	if format != "yaml" {
		return json.NewEncoder(out).Encode(v)
	}
	if _, err := fmt.Fprintln(out, "---"); err != nil {
		return err
	}
	return PrintData(out, format, v)
}

const (
	columnGap, smallColumnGap = 3, 2 // spaces between columns
	// uncutWidth is the width to which a column may always stay.
	uncutWidth = 20
)

// idPattern matches an ID, which is never cut: part of one is of no use.
var idPattern = regexp.MustCompile(`\b[a-z]+-[0-9a-z]{26}\b`)

// TerminalSize returns the size of the terminal that out is, in characters; 0 if it is none.
func TerminalSize(out io.Writer) (width, height int) {
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

// WriteTable writes a header and rows in columns. An empty cell becomes "-". On a terminal
// lines fit: it narrows the gaps and cuts long cells there. Elsewhere it cuts nothing.
func WriteTable(out io.Writer, header []string, rows [][]string) error {
	all := [][]string{header}
	for _, row := range rows {
		row = slices.Clone(row)
		for i, cell := range row {
			row[i] = cmp.Or(cell, "-")
		}
		all = append(all, row)
	}
	width, _ := TerminalSize(out)
	return WriteTableWithin(out, width, all)
}

// WriteTableWithin writes rows in columns, with lines of at most width characters if columns
// can be that narrow. A width of 0 is no bound.
func WriteTableWithin(out io.Writer, width int, rows [][]string) error {
	widths, between := fitColumns(rows, width)
	t := tabwriter.NewWriter(out, 0, 0, between, ' ', 0)
	for _, row := range rows {
		cells := make([]string, len(row))
		for i, cell := range row {
			cells[i] = Truncate(cell, widths[i])
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

// Truncate cuts text that has more than width characters, and ends it with an ellipsis.
func Truncate(text string, width int) string {
	if utf8.RuneCountInString(text) <= width {
		return text
	}
	return string([]rune(text)[:width-1]) + "…"
}
