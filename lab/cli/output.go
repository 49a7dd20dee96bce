package cli

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"golang.org/x/term"
	"sigs.k8s.io/yaml"

	"github.com/ccmlab/ccmlab/lab/ui"
)

// outputFlag is the flag -o. It accepts one of the command's formats; the first is the
// default.
type outputFlag struct {
	value   string
	formats []string
}

// addOutputFlag adds the flag -o to cmd, with completion of the formats.
func addOutputFlag(cmd *cobra.Command, formats ...string) {
	f := &outputFlag{value: formats[0], formats: formats}
	cmd.Flags().VarP(f, "output", "o", "output format: "+strings.Join(formats, ", "))
	completeValues(cmd, "output", formats...)
}

func (f *outputFlag) String() string { return f.value }

func (f *outputFlag) Type() string { return "format" }

// Set accepts v if it is one of the formats.
func (f *outputFlag) Set(v string) error {
	if !slices.Contains(f.formats, v) {
		return fmt.Errorf("want one of %s%s", strings.Join(f.formats, ", "), didYouMean(v, f.formats))
	}
	f.value = v
	return nil
}

// printOutput prints v as -o asks for: with printTable as a table, otherwise as data.
func printOutput(cmd *cobra.Command, v any, printTable func(io.Writer) error) error {
	if format := cmd.Flag("output").Value.String(); format != "table" {
		return printAs(cmd.OutOrStdout(), format, v)
	}
	return printTable(cmd.OutOrStdout())
}

// printColumns returns a printTable that prints a header and rows, whose cells are separated
// by tabs.
func printColumns(rows ...string) func(io.Writer) error {
	return func(w io.Writer) error {
		t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
		for _, row := range rows {
			_, _ = fmt.Fprintln(t, row)
		}
		return t.Flush()
	}
}

// printAs writes v as YAML if the format is "yaml", else as indented JSON.
func printAs(w io.Writer, format string, v any) error {
	if format == "yaml" {
		data, err := yaml.Marshal(v)
		if err != nil {
			return err
		}
		_, err = w.Write(data)
		return err
	}
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}

// dashIfEmpty returns s, or "-" for an empty cell of a table.
func dashIfEmpty(s string) string { return cmp.Or(s, "-") }

// screen prints lines. If it is not a terminal, it has neither a width nor colours.
type screen struct {
	w     io.Writer
	width func() int
	color bool
}

// screenOf returns the screen that writes to w.
func screenOf(w io.Writer) screen {
	f, ok := w.(*os.File)
	if !ok || !term.IsTerminal(int(f.Fd())) {
		return screen{w: w, width: func() int { return 0 }}
	}
	return screen{
		w: w, color: ui.Colored(f),
		width: func() int {
			width, _, err := term.GetSize(int(f.Fd())) // Read each time, because it changes.
			if err != nil {
				return 0
			}
			return width
		},
	}
}

// printLine prints text in a colour, cut to the width of the terminal. The colour "" is
// none.
func (s screen) printLine(color, text string) error {
	if width := s.width(); width > 1 {
		if runes := []rune(text); len(runes) > width {
			text = string(runes[:width-1]) + "…"
		}
	}
	_, err := fmt.Fprintln(s.w, s.paintText(color, text))
	return err
}

// paintText returns text in a colour if the screen has colours.
func (s screen) paintText(color, text string) string {
	return ui.Paint(s.color && color != "", color, text)
}

// paragraphWriter writes headings and paragraphs, and keeps the first error.
type paragraphWriter struct {
	w     io.Writer
	color bool
	err   error
}

// newParagraphWriter returns a paragraphWriter that writes to w.
func newParagraphWriter(w io.Writer) *paragraphWriter {
	return &paragraphWriter{w: w, color: ui.Colored(w)}
}

// printSection writes a heading and a wrapped paragraph. It writes nothing if text is
// empty.
func (p *paragraphWriter) printSection(heading, text string) {
	if text == "" {
		return
	}
	p.printLine("%s\n  %s\n", p.bold(heading), wrapHelpText(text))
}

// printLine writes a formatted line.
func (p *paragraphWriter) printLine(format string, args ...any) {
	if _, err := fmt.Fprintf(p.w, format+"\n", args...); p.err == nil {
		p.err = err
	}
}

func (p *paragraphWriter) bold(text string) string { return ui.Paint(p.color, "1", text) }

// wrapHelpText breaks text at spaces into lines of at most 76 columns. Each line but
// the first is indented by two.
func wrapHelpText(list string) string {
	out, width := "", 0
	for word := range strings.SplitSeq(list, " ") {
		if width += len(word) + 1; width > 76 {
			out, width = strings.TrimRight(out, " ")+"\n  ", len(word)+1
		}
		out += word + " "
	}
	return strings.TrimRight(out, " ")
}
