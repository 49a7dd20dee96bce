package cli

import (
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
	"github.com/spf13/pflag"
	"golang.org/x/term"
	"sigs.k8s.io/yaml"
)

// addOutput gives a command the flag -o.
func (a *app) addOutput(cmd *cobra.Command) {
	cmd.Flags().StringVarP(&a.output, "output", "o", "table", "table, wide (a table of all columns), json or yaml")
	noFiles(cmd, map[string][]string{"output": {"table", "wide", "json", "yaml"}})
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

// noFiles completes flags with what they take, and nothing with file names.
func noFiles(cmd *cobra.Command, values map[string][]string) {
	for flag, v := range values {
		offer(cmd, flag, cobra.FixedCompletions(v, cobra.ShellCompDirectiveNoFileComp))
	}
}

// offer completes a flag, whatever the arguments are.
func offer(cmd *cobra.Command, flag string, with cobra.CompletionFunc) {
	if err := cmd.RegisterFlagCompletionFunc(flag, func(cmd *cobra.Command, _ []string, prefix string) ([]string, cobra.ShellCompDirective) {
		return with(cmd, nil, prefix)
	}); err != nil {
		panic(err) // The flag is missing: a mistake in this package.
	}
}

// takeFiles are the flags that name files.
var takeFiles = []string{"token-file", "ca-file", "data", "out", "filename", "tls-cert", "tls-key", "token"}

// offerNoFiles completes what has nothing else to offer: not with files.
func offerNoFiles(cmd *cobra.Command) {
	if cmd.ValidArgsFunction == nil {
		cmd.ValidArgsFunction = cobra.NoFileCompletions
	}
	cmd.LocalFlags().VisitAll(func(f *pflag.Flag) {
		if _, has := cmd.GetFlagCompletionFunc(f.Name); !has && !slices.Contains(takeFiles, f.Name) {
			offer(cmd, f.Name, cobra.NoFileCompletions)
		}
	})
	for _, sub := range cmd.Commands() {
		offerNoFiles(sub)
	}
}

// tagFilter adds --tag, which narrows a list.
func tagFilter(cmd *cobra.Command, tags *[]string) {
	cmd.Flags().StringArrayVar(tags, "tag", nil, "only those with this KEY or KEY=VALUE; repeatable")
}

// stateFlag adds --state, which takes the given states of something.
func stateFlag[T ~string](cmd *cobra.Command, given *[]T, of string, all ...T) {
	var names []string
	for _, s := range all {
		names = append(names, string(s))
	}
	choose := strings.Join(names, ", ")
	cmd.Flags().Var(&states[T]{given, func(s T) error {
		if !slices.Contains(all, s) {
			return fmt.Errorf("%q is no state of %s: choose of %s", string(s), of, choose)
		}
		return nil
	}}, "state", "only those in one of these states: "+choose)
	noFiles(cmd, map[string][]string{"state": names})
}

// states is the value of --state: words between commas, and repeatable.
type states[T ~string] struct {
	given *[]T
	check func(T) error
}

func (s *states[T]) Type() string   { return "strings" }
func (s *states[T]) String() string { return "" }

func (s *states[T]) Set(text string) error {
	for word := range strings.SplitSeq(text, ",") {
		if err := s.check(T(word)); err != nil {
			return err
		}
		*s.given = append(*s.given, T(word))
	}
	return nil
}

// narrowed leaves out the columns that are for -o wide: those with a + before
// their name.
func (a *app) narrowed(header string, rows [][]string) (string, [][]string) {
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

// print shows a value as JSON or YAML, or its rows as a table.
func (a *app) print(out io.Writer, value any, header string, rows [][]string) error {
	header, rows = a.narrowed(header, rows)
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
	return table(out, strings.Fields(header), rows, terminalWidth(out))
}

const (
	gap, smallGap = 3, 2 // spaces between columns
	// keepWhole is the width up to which a column is not cut.
	keepWhole = 20
)

// anID is of no use in part.
var anID = regexp.MustCompile(`\b[a-z]+-[0-9a-z]{26}\b`)

// terminalWidth is 0 when nobody looks, but a file or a program reads.
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

// table shows rows in columns, and moves them together and cuts long cells where
// lines would be wider than width; with width 0 nothing is cut.
func table(out io.Writer, header []string, rows [][]string, width int) error {
	all := append([][]string{header}, rows...)
	widths, between := columns(all, width)
	t := tabwriter.NewWriter(out, 0, 0, between, ' ', 0)
	for _, row := range all {
		cells := make([]string, len(row))
		for i, cell := range row {
			cells[i] = shorten(cell, widths[i])
		}
		if _, err := fmt.Fprintln(t, strings.Join(cells, "\t")); err != nil {
			return err
		}
	}
	return t.Flush()
}

// columns are the widths and the gap that let lines fit. The widest columns are
// made narrower, but none to less than keepWhole or its IDs.
func columns(rows [][]string, width int) (widths []int, between int) {
	var least []int
	for _, row := range rows {
		for i, cell := range row {
			if i == len(widths) {
				widths, least = append(widths, 0), append(least, keepWhole)
			}
			n := utf8.RuneCountInString(cell)
			widths[i] = max(widths[i], n)
			if anID.MatchString(cell) {
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
	if width == 0 || over(gap) <= 0 {
		return widths, gap
	}
	for n := over(smallGap); n > 0; n-- {
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
	return widths, smallGap
}

// shorten cuts what is longer, and shows that it did.
func shorten(cell string, width int) string {
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
