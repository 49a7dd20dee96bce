package ui

import (
	"io"
	"os"

	"golang.org/x/term"
)

// Colored tells whether colour may go to w: to a terminal, and unless NO_COLOR
// is set (no-color.org).
func Colored(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd())) && os.Getenv("NO_COLOR") == ""
}

// Paint is text in a colour, by its SGR code, if color is.
func Paint(color bool, code, text string) string { return paint(color, code, text) }
