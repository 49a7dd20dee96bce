// Package site makes a static site of the lessons: pages to read in a browser, from
// a file or a server, and to print. It needs nothing from anywhere else.
package site

import (
	"bytes"
	"cmp"
	"embed"
	"errors"
	"html/template"
	"os"
	"path/filepath"
	"strings"

	"github.com/bep/goat"
	"github.com/yuin/goldmark"
	"github.com/yuin/goldmark/ast"
	"github.com/yuin/goldmark/extension"
	"github.com/yuin/goldmark/renderer"
	"github.com/yuin/goldmark/renderer/html"
	"github.com/yuin/goldmark/util"

	"github.com/ccmlab/ccmlab/lab/cluster"
	"github.com/ccmlab/ccmlab/lab/lessons"
)

//go:embed pages.html
var pages string

// assets are copied as they are.
//
//go:embed site.css site.js
var assets embed.FS

// texts are pages beside the lessons.
//
//go:embed pages/*.md
var texts embed.FS

// pageTemplates parses the pages' templates.
func pageTemplates() (*template.Template, error) {
	return template.New("").Funcs(template.FuncMap{
		"markdown": renderMarkdown,
		"add":      func(a, b int) int { return a + b },
		"cluster":  func(l *lessons.Lesson) string { return cmp.Or(l.Cluster, cluster.KindEmbedded) },
		"parts":    func() []string { return lessons.Parts },
		"title":    func(word string) string { return strings.ToUpper(word[:1]) + word[1:] },
		"folded":   func(l *lessons.Lesson) shownLesson { return shownLesson{Lesson: l, Folded: true} },
		"whole":    func(l *lessons.Lesson) shownLesson { return shownLesson{Lesson: l} },
	}).Parse(pages)
}

// shownLesson is a lesson as a page shows it. Folded says that what follows a task is
// hidden until the reader opens it, because it may tell the task's answer.
type shownLesson struct {
	*lessons.Lesson
	Folded bool
}

// page is what a template is given.
type page struct {
	// Title is the page's, not the site's.
	Title string
	// Kind is the template, and a class of the body.
	Kind string
	// Lessons are all; Lesson is that of the page, At its place.
	Lessons []*lessons.Lesson
	Lesson  *lessons.Lesson
	At      int
	// Text is the Markdown of a page that is not a lesson.
	Text string
}

// Write writes the site of these lessons into a folder: index.html, a page for each
// lesson, one with all of them for printing, and one with the trainer's notes.
func Write(dir string, all []*lessons.Lesson) error {
	t, err := pageTemplates()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	var errs []error
	for _, name := range []string{"site.css", "site.js"} {
		data, err := assets.ReadFile(name)
		errs = append(errs, err, os.WriteFile(filepath.Join(dir, name), data, 0o644))
	}
	write := func(name string, p page) { errs = append(errs, p.writePage(t, filepath.Join(dir, name))) }
	write("index.html", page{Title: "Lessons", Kind: "index", Lessons: all})
	write("print.html", page{Title: "Hand-out", Kind: "print", Lessons: all})
	write("trainer.html", page{Title: "Trainer's notes", Kind: "trainer", Lessons: all})
	for _, name := range []string{"migration", "not-a-ccm"} {
		data, err := texts.ReadFile("pages/" + name + ".md")
		errs = append(errs, err)
		title, _, _ := strings.Cut(strings.TrimPrefix(string(data), "# "), "\n")
		write(name+".html", page{Title: title, Kind: "text", Text: string(data)})
	}
	for i, l := range all {
		write(l.ID+".html", page{Title: l.Title, Kind: "lesson", Lessons: all, Lesson: l, At: i})
	}
	return errors.Join(errs...)
}

func (p page) writePage(t *template.Template, file string) error {
	var out bytes.Buffer
	if err := t.ExecuteTemplate(&out, "page", p); err != nil {
		return err
	}
	return os.WriteFile(file, out.Bytes(), 0o644)
}

// Previous and Following are its neighbours; nil at the ends.
func (p page) Previous() *lessons.Lesson { return p.neighbourLesson(-1) }

// Following is the lesson after it.
func (p page) Following() *lessons.Lesson { return p.neighbourLesson(1) }

func (p page) neighbourLesson(by int) *lessons.Lesson {
	if i := p.At + by; i >= 0 && i < len(p.Lessons) {
		return p.Lessons[i]
	}
	return nil
}

// reader turns Markdown into HTML.
var reader = goldmark.New(
	goldmark.WithExtensions(extension.Table, extension.Strikethrough),
	goldmark.WithRendererOptions(renderer.WithNodeRenderers(util.Prioritized(blocks{}, 100))),
)

func renderMarkdown(text string) (template.HTML, error) {
	var out bytes.Buffer
	err := reader.Convert([]byte(text), &out)
	return template.HTML(tableScrolls.Replace(out.String())), err //nolint:gosec // It is the project's own text, and raw HTML in it is left out.
}

// tableScrolls puts a table into a region that scrolls if the window is narrower.
var tableScrolls = strings.NewReplacer(
	"<table>", `<div class="wide" tabindex="0" role="region" aria-label="Table"><table>`, "</table>", "</table></div>",
)

// blocks renders blocks of code: diagrams as drawings, and commands so that they can
// be copied.
type blocks struct{}

// RegisterFuncs implements renderer.NodeRenderer.
func (b blocks) RegisterFuncs(r renderer.NodeRendererFuncRegisterer) {
	r.Register(ast.KindFencedCodeBlock, b.render)
	r.Register(ast.KindCodeBlock, b.render)
}

func (blocks) render(w util.BufWriter, source []byte, n ast.Node, entering bool) (ast.WalkStatus, error) {
	if !entering {
		return ast.WalkContinue, nil
	}
	var text strings.Builder
	for i := range n.Lines().Len() {
		line := n.Lines().At(i)
		text.Write(line.Value(source))
	}
	language := "sh" // What is only indented is typed.
	if fenced, ok := n.(*ast.FencedCodeBlock); ok {
		language = string(fenced.Language(source))
	}
	switch language {
	case "goat":
		return ast.WalkSkipChildren, renderDiagram(w, text.String())
	case "sh":
		_, _ = w.WriteString(`<div class="typed"><button type="button" class="copy" hidden>copy</button><pre tabindex="0"><code>`)
	default:
		_, _ = w.WriteString(`<div class="shown"><pre tabindex="0"><code>`)
	}
	html.DefaultWriter.RawWrite(w, []byte(strings.TrimRight(text.String(), "\n")))
	_, err := w.WriteString("</code></pre></div>\n")
	return ast.WalkSkipChildren, err
}

// renderDiagram writes a diagram as SVG, and as the characters it was drawn from for who
// cannot see it.
func renderDiagram(w util.BufWriter, text string) error {
	svg := goat.BuildSVG(strings.NewReader(text))
	_, err := w.WriteString(`<figure class="wide" tabindex="0" aria-label="` + template.HTMLEscapeString(strings.TrimSpace(text)) + `">` +
		svg.String() + "</figure>\n")
	return err
}
