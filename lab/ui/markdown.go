package ui

// Text in Markdown, for a terminal.

import (
	"io"
	"os"
	"regexp"

	"charm.land/glamour/v2"
	"charm.land/glamour/v2/styles"
	"golang.org/x/term"
)

// Columns that text is wrapped to: where the terminal has more, lines would be too
// long to read.
const (
	fewestColumns = 40
	mostColumns   = 100
)

// Markdown writes text so that it reads well there: in colours and other weights on
// a terminal, as plain text elsewhere.
func Markdown(w io.Writer, text string) error {
	style, columns := styles.NoTTYStyle, mostColumns
	if Colored(w) {
		style = styles.DarkStyle
		if background := os.Getenv("COLORFGBG"); background == "0;15" {
			style = styles.LightStyle
		}
	}
	if f, ok := w.(*os.File); ok {
		if width, _, err := term.GetSize(int(f.Fd())); err == nil {
			columns = max(fewestColumns, min(mostColumns, width))
		}
	}
	r, err := glamour.NewTermRenderer(glamour.WithStandardStyle(style), glamour.WithWordWrap(columns))
	if err != nil {
		return err
	}
	out, err := r.Render(text)
	if err != nil {
		return err
	}
	if !Colored(w) { // Paper cannot follow a link, whose address is printed as well.
		out = hyperlink.ReplaceAllString(out, "")
	}
	_, err = io.WriteString(w, out)
	return err
}

// hyperlink begins or ends one, on terminals that have them (OSC 8).
var hyperlink = regexp.MustCompile("\x1b]8;[^\x07\x1b]*(?:\x07|\x1b\\\\)")
