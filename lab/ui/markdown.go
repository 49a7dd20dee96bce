package ui

// Text in Markdown, for a terminal.

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
	style, columns := onPaper(), mostColumns
	if Colored(w) {
		style = styles.DarkStyleConfig
		if background := os.Getenv("COLORFGBG"); background == "0;15" {
			style = styles.LightStyleConfig
		}
	}
	if f, ok := w.(*os.File); ok {
		if width, _, err := term.GetSize(int(f.Fd())); err == nil {
			columns = max(fewestColumns, min(mostColumns, width))
		}
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
	if !Colored(w) { // Paper cannot follow a link, whose address is printed as well.
		out = padding.ReplaceAllString(hyperlink.ReplaceAllString(out, ""), "")
	}
	_, err = io.WriteString(w, out)
	return err
}

// onPaper is the style without colours. Names and commands are marked; marks around
// what is emphasised would be torn apart where it is wrapped.
func onPaper() ansi.StyleConfig {
	style := styles.NoTTYStyleConfig
	style.Emph, style.Strong = ansi.StylePrimitive{}, ansi.StylePrimitive{}
	style.Code.Prefix, style.Code.Suffix = "`", "`"
	return style
}

// What stands in for parts of the text while it is wrapped: characters that have no meaning.
const (
	standInHyphen = '\uE000'
	standInLine   = '\uE001' // Of the first line; each is one character, which no colours can divide.
)

// blockMargins is what the renderer puts beside code.
const blockMargins = 8

// address is one to copy.
var address = regexp.MustCompile("https?://[^\\s)>`]+")

// withStandIns hides from the renderer where it would break code and addresses, but a
// command that is broken in two is another: at hyphens, and in lines longer than columns,
// which are the terminal's to wrap. restore puts them back.
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
	_ = ast.Walk(goldmark.DefaultParser().Parse(gmtext.NewReader(source)), func(n ast.Node, entering bool) (ast.WalkStatus, error) {
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
	hidden = address.ReplaceAllStringFunc(out.String(), func(s string) string { return strings.ReplaceAll(s, "-", string(standInHyphen)) })
	return hidden, func(s string) string {
		s = strings.ReplaceAll(s, url.PathEscape(string(standInHyphen)), string(standInHyphen)) // In links.
		for i, line := range lines {
			s = strings.ReplaceAll(s, string(standInLine+rune(i)), line)
		}
		return strings.ReplaceAll(s, string(standInHyphen), "-")
	}
}

// padding fills lines up, for a background colour that is not there.
var padding = regexp.MustCompile(`(?m)[ ]+$`)

// hyperlink begins or ends one, on terminals that have them (OSC 8).
var hyperlink = regexp.MustCompile("\x1b]8;[^\x07\x1b]*(?:\x07|\x1b\\\\)")
