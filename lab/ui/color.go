package ui

import (
	"io"
	"os"

	"golang.org/x/term"
)

// Terminal tells whether f is one that lines can be drawn over and coloured on.
func Terminal(f *os.File) bool { return term.IsTerminal(int(f.Fd())) && os.Getenv("TERM") != "dumb" }

// Colored tells whether colour may go to w: to such a terminal, and unless
// NO_COLOR is set (no-color.org).
func Colored(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && Terminal(f) && os.Getenv("NO_COLOR") == ""
}

// Paint is text in a colour, by its SGR code, if color is.
func Paint(color bool, code, text string) string { return paint(color, code, text) }
