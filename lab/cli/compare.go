package cli

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/ccmlab/ccmlab/fakecloud/clikit"
	"github.com/ccmlab/ccmlab/lab/compare"
	"github.com/ccmlab/ccmlab/lab/state"
	"github.com/ccmlab/ccmlab/lab/ui"
)

func newCompare() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "compare A B",
		Short: "Show two labs side by side: what differs, and why",
		Long: `compare looks at two labs that are up and shows what is a matter of cloud
providers: the components' flags, taints, provider IDs, labels, addresses, the
demo's pods and its Service, and what the CCM asked of the cloud. What differs is
marked ≠ and explained, with the place in upstream's code that makes it so.
It exits with 0 whether anything differs or not.`,
		Example: `  lab up --name plain --cloud-provider none   # without an external cloud provider
  lab up --name tainted --without-ccm         # with one, and no CCM
  lab up                                      # with one, and a CCM
  lab compare plain tainted
  lab compare tainted lab
  lab compare plain lab -o json`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 2 {
				return clikit.Usagef("compare which two labs? want `lab compare A B`; `lab list` shows what there is")
			}
			return nil
		},
		ValidArgsFunction: completeLabs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			for _, name := range args {
				if _, err := state.Dir(name); err != nil {
					return clikit.Usage(err)
				}
			}
			if args[0] == args[1] {
				return clikit.Usagef("%s and %s are one lab; give two", args[0], args[1])
			}
			c, err := compare.Labs(cmd.Context(), args[0], args[1])
			if err != nil {
				return err
			}
			return clikit.Print(cmd, c, func(w io.Writer) error { return printComparison(w, c, ui.Colored(w)) })
		},
	}
	clikit.AddOutput(cmd, "table", "json", "yaml")
	return cmd
}

// Widths of the comparison's columns: a mark, a title, and one column for each lab. The
// table is 100 columns wide.
const (
	markWidth    = 2
	titleWidth   = 24
	valueWidth   = 36
	gapWidth     = 2
	whyIndent    = 4
	compareWidth = markWidth + titleWidth + 2*valueWidth + gapWidth
)

const (
	colorDiffers = "33"
	colorHeading = "1"
	colorAside   = "2"
)

// printComparison prints two labs side by side, and then the reasons of what differs.
func printComparison(w io.Writer, c *compare.Comparison, color bool) error {
	var b strings.Builder
	line := func(code, mark, title string, values [2]string) {
		for _, l := range sideBySide(mark, title, values) {
			b.WriteString(ui.Paint(color && code != "", code, l) + "\n")
		}
	}
	line(colorHeading, "", "", [2]string{c.Labs[0].Name, c.Labs[1].Name})
	section := ""
	for _, r := range c.Rows {
		if r.Section != section {
			section = r.Section
			b.WriteString("\n" + ui.Paint(color, colorHeading, strings.ToUpper(section)) + "\n")
		}
		if r.Differs {
			line(colorDiffers, "≠", r.What, r.Values)
		} else {
			line("", "", r.What, r.Values)
		}
	}
	b.WriteString("\n")
	printReasons(&b, c.Rows, color)
	_, err := io.WriteString(w, b.String())
	return err
}

// printReasons writes why rows differ, with the sources of the reasons.
func printReasons(b *strings.Builder, rows []compare.Row, color bool) {
	differ := slices.DeleteFunc(slices.Clone(rows), func(r compare.Row) bool { return !r.Differs })
	if len(differ) == 0 {
		b.WriteString("Nothing differs that is compared here.\n")
		return
	}
	b.WriteString(ui.Paint(color, colorHeading, "WHY") + "\n")
	indent := strings.Repeat(" ", whyIndent)
	for _, r := range differ {
		b.WriteString(ui.Paint(color, colorDiffers, "≠ "+r.What) + "\n")
		for _, sentence := range r.Why {
			for _, l := range wrapLines(sentence, compareWidth-whyIndent) {
				b.WriteString(indent + l + "\n")
			}
		}
		if r.Source != "" {
			for _, l := range wrapLines("("+r.Source+")", compareWidth-whyIndent) {
				b.WriteString(indent + ui.Paint(color, colorAside, l) + "\n")
			}
		}
	}
}

// sideBySide formats a row of the table. It returns as many lines as the longest cell
// needs.
func sideBySide(mark, title string, values [2]string) []string {
	cells := [][]string{
		wrapLines(title, titleWidth-1), wrapLines(values[0], valueWidth), wrapLines(values[1], valueWidth),
	}
	cell := func(column, row int) string {
		if row < len(cells[column]) {
			return cells[column][row]
		}
		return ""
	}
	var lines []string
	for i := range max(len(cells[0]), len(cells[1]), len(cells[2])) {
		if i > 0 {
			mark = ""
		}
		lines = append(lines, strings.TrimRight(fmt.Sprintf(
			"%-*s%-*s%-*s%s", markWidth, mark, titleWidth, cell(0, i), valueWidth+gapWidth, cell(1, i), cell(2, i),
		), " "))
	}
	return lines
}

// wrapLines breaks text into lines of at most width characters. It breaks at spaces. A
// word longer than a line is broken after a slash, or anywhere if it has none.
func wrapLines(text string, width int) []string {
	var lines []string
	line := ""
	for _, word := range strings.Fields(text) {
		if line != "" && utf8.RuneCountInString(line)+1+utf8.RuneCountInString(word) <= width {
			line += " " + word
			continue
		}
		if line != "" {
			lines = append(lines, line)
		}
		for line = word; utf8.RuneCountInString(line) > width; {
			head := string([]rune(line)[:width])
			if slash := strings.LastIndexByte(head, '/'); slash >= 0 {
				head = head[:slash+1]
			}
			lines, line = append(lines, head), line[len(head):]
		}
	}
	if line != "" {
		lines = append(lines, line)
	}
	return lines
}
