package cli

import (
	"fmt"
	"io"
	"strings"

	"github.com/ccmlab/ccmlab/fakecloud/clikit"
	"github.com/ccmlab/ccmlab/lab/ui"
)

// screen prints lines. If it is not a terminal, it has neither a width nor colours.
type screen struct {
	w     io.Writer
	width func() int
	color bool
}

// screenOf returns the screen that writes to w.
func screenOf(w io.Writer) screen {
	return screen{w: w, color: ui.Colored(w), width: func() int {
		width, _ := clikit.TerminalSize(w) // Read each time, because it changes.
		return width
	}}
}

// printLine prints text in a colour, cut to the width of the terminal. The colour "" is
// none.
func (s screen) printLine(color, text string) error {
	if width := s.width(); width > 1 {
		text = clikit.Truncate(text, width)
	}
	_, err := fmt.Fprintln(s.w, s.paintText(color, text))
	return err
}

// paintText returns text in a colour if the screen has colours.
func (s screen) paintText(color, text string) string {
	return ui.Paint(s.color && color != "", color, text)
}

// paragraphWriter writes headings, paragraphs and tables, and keeps the first error.
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

// printTable writes a table.
func (p *paragraphWriter) printTable(header []string, rows [][]string) {
	if err := clikit.WriteTable(p.w, header, rows); p.err == nil {
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
