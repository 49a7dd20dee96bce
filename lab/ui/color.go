package ui

import (
	"io"
	"os"

	"golang.org/x/term"
)

// Terminal tells whether f is a terminal on which lines can be overwritten and coloured.
func Terminal(f *os.File) bool { return term.IsTerminal(int(f.Fd())) && os.Getenv("TERM") != "dumb" }

// Colored tells whether output to w may be coloured: if w is such a terminal, and NO_COLOR is not
// set (no-color.org).
func Colored(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && Terminal(f) && os.Getenv("NO_COLOR") == ""
}

// Paint is text in a colour, which is an SGR code, or the plain text if color is false.
func Paint(color bool, code, text string) string { return paint(color, code, text) }
