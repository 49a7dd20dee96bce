package ui

import (
	"io"
	"net/url"
	"os"
	"regexp"
	"strings"
	"unicode/utf8"

	"charm.land/glamour/v2"
	"charm.land/glamour/v2/ansi"
	"charm.land/glamour/v2/styles"
	"github.com/yuin/goldmark"
	"github.com/yuin/goldmark/ast"
	gmtext "github.com/yuin/goldmark/text"

	"github.com/ccmlab/ccmlab/fakecloud/clikit"
)

// The columns at which text is wrapped. Longer lines are hard to read, even if the terminal has
// more columns.
const (
	minColumns = 40
	maxColumns = 100
)

// Markdown writes a text in Markdown so that people can read it: on a terminal in colours and
// different weights, elsewhere as plain text.
func Markdown(w io.Writer, text string) error {
	style, columns := plainStyle(), maxColumns
	if Colored(w) {
		style = styles.DarkStyleConfig
		if background := os.Getenv("COLORFGBG"); background == "0;15" {
			style = styles.LightStyleConfig
		}
	}
	if width, _ := clikit.TerminalSize(w); width > 0 {
		columns = max(minColumns, min(maxColumns, width))
	}
	r, err := glamour.NewTermRenderer(glamour.WithStyles(style), glamour.WithWordWrap(columns))
	if err != nil {
		return err
	}
	text, restore := withStandIns(text, columns-blockMargins)
	out, err := r.Render(text)
	if err != nil {
		return err
	}
	out = restore(out)
	if !Colored(w) { // Links are of no use there. Their addresses are printed in any case.
		out = padding.ReplaceAllString(hyperlink.ReplaceAllString(out, ""), "")
	}
	_, err = io.WriteString(w, out)
	return err
}

// plainStyle is the style without colours. Code is marked. Emphasis is not, because wrapping
// would separate the marks around it.
func plainStyle() ansi.StyleConfig {
	style := styles.NoTTYStyleConfig
	style.Emph, style.Strong = ansi.StylePrimitive{}, ansi.StylePrimitive{}
	style.Code.Prefix, style.Code.Suffix = "`", "`"
	return style
}

// Private-use characters that stand for parts of the text while it is wrapped.
const (
	standInHyphen = '\uE000'
	// For the first line; the next ones follow. A single character cannot be divided by colours.
	standInLine = '\uE001'
)

// blockMargins is how many columns the renderer adds beside code.
const blockMargins = 8

// address matches a URL.
var address = regexp.MustCompile("https?://[^\\s)>`]+")

// withStandIns prevents the renderer from wrapping code and addresses, because a command that is
// broken in two is another command. Hyphens, where it would break, and lines of code longer than
// columns, which the terminal is to wrap, are replaced by stand-ins. restore puts them back.
func withStandIns(text string, columns int) (hidden string, restore func(string) string) {
	source, at := []byte(text), 0
	var (
		out   strings.Builder
		lines []string
	)
	replace := func(s gmtext.Segment, with string) {
		out.Write(source[at:s.Start])
		out.WriteString(with)
		at = s.Stop
	}
	_ = ast.Walk(goldmark.DefaultParser().
		Parse(gmtext.NewReader(source)), func(n ast.Node, entering bool) (ast.WalkStatus, error) {
		if !entering {
			return ast.WalkContinue, nil
		}
		switch n.Kind() {
		case ast.KindCodeBlock, ast.KindFencedCodeBlock:
			for _, s := range n.Lines().Sliced(0, n.Lines().Len()) {
				s = s.TrimRightSpace(source)
				if utf8.RuneCount(s.Value(source)) > columns {
					replace(s, string(standInLine+rune(len(lines))))
					lines = append(lines, string(s.Value(source)))
				}
			}
		case ast.KindText:
			if s := n.(*ast.Text).Segment; n.Parent().Kind() == ast.KindCodeSpan {
				replace(s, strings.ReplaceAll(string(s.Value(source)), "-", string(standInHyphen)))
			}
		}
		return ast.WalkContinue, nil
	})
	out.Write(source[at:])
	hidden = address.ReplaceAllStringFunc(out.String(), func(s string) string {
		return strings.ReplaceAll(s, "-", string(standInHyphen))
	})
	return hidden, func(s string) string {
		s = strings.ReplaceAll(s, url.PathEscape(string(standInHyphen)), string(standInHyphen)) // In links.
		for i, line := range lines {
			s = strings.ReplaceAll(s, string(standInLine+rune(i)), line)
		}
		return strings.ReplaceAll(s, string(standInHyphen), "-")
	}
}

// padding matches the spaces with which the renderer fills up lines for a background colour.
var padding = regexp.MustCompile(`(?m)[ ]+$`)

// hyperlink matches the sequence that begins or ends a hyperlink on a terminal (OSC 8).
var hyperlink = regexp.MustCompile("\x1b]8;[^\x07\x1b]*(?:\x07|\x1b\\\\)")
