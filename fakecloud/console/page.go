// Package console is a page on which a cloud is one picture that moves, and can be gone back in: a scene,
// and the story of what happened, on one clock. fakecloud serves it at Path; a lab serves the same page,
// with its cluster in it. Begin with Page.
package console

import (
	"context"
	"crypto/sha256"
	"embed"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"html/template"
	"io"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"github.com/gorilla/mux"

	"github.com/ccmlab/ccmlab/fakecloud/console/scene"
	"github.com/ccmlab/ccmlab/fakecloud/console/story"
)

//go:embed page.css page.js page.html icon.svg
var assets embed.FS

// RecordingElement is what a recording has, and no other page.
const RecordingElement = `<script type="application/json" id="recording">`

// maxViewers bounds the pages that are open at a time: each follows what happens by itself.
const maxViewers = 64

var parsePageTemplate = sync.OnceValue(func() *template.Template {
	return template.Must(template.ParseFS(assets, "page.html"))
})

// Page is what a console shows, and to whom. Stream and Access are required.
type Page struct {
	Title string
	// Server is what serves the page, in words: "the cloud".
	Server string
	Guard
	// Stream sends what has happened so far, and then what happens, until ctx ends or send fails.
	Stream func(ctx context.Context, s Session, send func(Batch) error) error
	// Objects, unless nil, returns the objects of the picture, for clients other than browsers.
	Objects func() []scene.Object
	// Explain, unless nil, says why a thing is as it is: an object with verdict, because and next.
	Explain func(ctx context.Context, subject string) (any, error)
	// LogAbout, unless nil, returns the lines of the CCM's log about a thing, the newest first.
	LogAbout func(ctx context.Context, subject string) ([]string, error)
	// Guide, unless nil, returns a text with tasks to show beside the picture: title and opening, and tasks
	// with title, do, current, done and seen. Opening and do are HTML that is no stranger's.
	Guide func(ctx context.Context) (any, error)
	// Acts are what can be done with a thing as it is now, or with the whole if subject is "". Run runs the
	// command of one. Both are nil on a page that changes nothing.
	Acts func(ctx context.Context, s Session, subject string) ([]Act, error)
	Run  func(ctx context.Context, s Session, command []string) error
	Log  *slog.Logger
}

// Batch is what a page is sent at a time.
type Batch struct {
	// Reset tells that the changes begin anew.
	Reset bool `json:"reset,omitempty"`
	// More tells that the next batch belongs to this one: until then the changes make a scene of the past.
	More  bool           `json:"more,omitempty"`
	Now   time.Time      `json:"now"`
	Scene []scene.Change `json:"scene,omitempty"`
	Story []story.Entry  `json:"story,omitempty"`
	// Note is what keeps the story from being complete.
	Note string `json:"note,omitempty"`
	Bounds
}

// isEmpty tells of a batch with nothing that a page does not know.
func (b Batch) isEmpty() bool {
	return !b.Reset && len(b.Scene) == 0 && len(b.Story) == 0 && b.Note == ""
}

// Bounds are what the calls of the cloud's API are compared with.
type Bounds struct {
	// Limit is how many calls a second each caller of the cloud may make; 0 is any number.
	Limit int `json:"limit,omitempty"`
	// Budget says in words how many calls there should be.
	Budget string `json:"budget,omitempty"`
}

// pageData fills the page. A recording has everything in it; a page that is served loads it.
type pageData struct {
	Title     string
	Server    string
	Command   string // for a new link
	Explains  bool
	Guides    bool
	Logs      bool
	Recording template.JS
	Style     template.CSS
	Script    template.JS
	Policy    string
}

func writePage(w io.Writer, data pageData) error { return parsePageTemplate().Execute(w, data) }

// Handler serves the page at its path: its shell to everybody, and all else to whoever the guard lets in.
func (p *Page) Handler() http.Handler {
	router := mux.NewRouter().PathPrefix(p.Path).Subrouter()
	router.Use(withHeaders, p.requireOwnOrigin)
	router.Path("/").HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		data := pageData{
			Title: p.Title, Server: p.Server, Command: p.LinkCommand, Explains: p.Explain != nil, Guides: p.Guide != nil, Logs: p.LogAbout != nil,
		}
		if err := writePage(w, data); err != nil {
			p.Log.Error("writing the page", "error", err)
		}
	})
	for _, name := range []string{"page.css", "page.js", "icon.svg"} {
		router.Path("/" + name).Handler(http.StripPrefix(p.Path, http.FileServerFS(assets)))
	}
	router.HandleFunc("/links", p.createLink).Methods(http.MethodPost)
	router.HandleFunc("/session", p.createSession).Methods(http.MethodPost)
	p.addGuardedRoutes(router.NewRoute().Subrouter())
	return router
}

// addGuardedRoutes adds what shows or changes something.
func (p *Page) addGuardedRoutes(router *mux.Router) {
	router.Use(p.requireAccess)
	router.Path("/stream").Handler(p.newStream())
	if p.Objects != nil {
		router.HandleFunc("/scene.json", func(w http.ResponseWriter, _ *http.Request) { answerJSON(w, p.Objects(), nil) })
	}
	if p.Explain != nil {
		router.HandleFunc("/explain.json", p.newExplanations())
	}
	if p.LogAbout != nil {
		router.HandleFunc("/log.json", func(w http.ResponseWriter, r *http.Request) {
			lines, err := p.LogAbout(r.Context(), r.URL.Query().Get("subject"))
			answerJSON(w, lines, err)
		})
	}
	if p.Guide != nil {
		router.HandleFunc("/guide.json", func(w http.ResponseWriter, r *http.Request) {
			guide, err := p.Guide(r.Context())
			answerJSON(w, guide, err)
		})
	}
	if p.Acts != nil {
		router.HandleFunc("/acts.json", p.serveActs)
	}
}

// withHeaders keeps a browser from loading anything from elsewhere, and other sites from framing the page.
func withHeaders(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'")
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cache-Control", "no-store")
		next.ServeHTTP(w, r)
	})
}

func answerJSON(w http.ResponseWriter, v any, err error) {
	status := http.StatusOK
	if err != nil {
		status, v = http.StatusInternalServerError, map[string]string{"error": err.Error()}
	}
	answerJSONStatus(w, status, v)
}

func answerJSONStatus(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v) // Of a browser that is gone.
}

// Recording is what a page that is a file has of what happened.
type Recording struct {
	Title string         `json:"title"`
	Until time.Time      `json:"until"`
	Scene []scene.Change `json:"scene"`
	Story []story.Entry  `json:"story"`
	Bounds
}

// Write writes the recording as a page that needs nothing else.
func (r Recording) Write(w io.Writer) error {
	data, err := json.Marshal(r) // It escapes what would end a script element.
	if err != nil {
		return err
	}
	style, err1 := assets.ReadFile("page.css")
	script, err2 := assets.ReadFile("page.js")
	if err1 != nil || err2 != nil {
		return fmt.Errorf("the page's parts: %w, %w", err1, err2)
	}
	policy := fmt.Sprintf("default-src 'none'; style-src '%s'; script-src '%s'", hashOf(style), hashOf(script))
	return writePage(w, pageData{
		Title: r.Title, Recording: template.JS(data), Policy: policy,
		Style: template.CSS(style), Script: template.JS(script),
	})
}

// hashOf names an inline element's content in a Content-Security-Policy.
func hashOf(content []byte) string {
	sum := sha256.Sum256(content)
	return "sha256-" + base64.StdEncoding.EncodeToString(sum[:])
}
