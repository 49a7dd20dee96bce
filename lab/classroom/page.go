package classroom

// This file answers: how does a view become a page? The text of the lessons is beside it.

import (
	"context"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"html/template"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/gorilla/mux"
	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/ccmlab/ccmlab/lab/lessons"
	"github.com/ccmlab/ccmlab/lab/lessons/site"
)

//go:embed page.html
var pages string

//go:embed page.css page.js
var assets embed.FS

// page is made when it is first asked for: few commands do.
var page = sync.OnceValue(func() *template.Template {
	return template.Must(template.New("page").Funcs(template.FuncMap{
		"gigabytes": func(bytes uint64) string { return fmt.Sprintf("%.1f", float64(bytes)/(1<<30)) },
		"ago":       func(since, now time.Time) string { return duration.HumanDuration(now.Sub(since)) },
		"late":      func(l *LessonView, now time.Time) bool { return l.Current() != nil && now.Sub(l.Since) >= lateAfter },
		"lateAfter": func() string { return duration.HumanDuration(lateAfter) },
	}).Parse(pages))
})

// lateAfter is how long somebody may be on a task before a trainer might ask: a lesson
// of fifteen minutes has some five.
const lateAfter = 10 * time.Minute

const (
	lookEvery = 2 * time.Second
	// headerBound and writeBound are how long a browser may take.
	headerBound = 5 * time.Second
	writeBound  = 30 * time.Second
	endBound    = 5 * time.Second
)

func listen(address string, port int) (net.Listener, error) {
	return net.Listen("tcp", net.JoinHostPort(address, strconv.Itoa(port)))
}

// writeText writes the lessons' site into a folder of its own.
func writeText(dir string) (string, error) {
	all, err := lessons.All()
	if err != nil {
		return "", err
	}
	if err := os.RemoveAll(dir); err != nil { // Another version's.
		return "", err
	}
	return dir, site.Write(dir, "lab", all)
}

// keepLooking looks every other second, until ctx ends.
func keepLooking(ctx context.Context, look func(context.Context) error) error {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		if err := look(ctx); err != nil && ctx.Err() == nil {
			slog.Error("looking at the seats", "error", err)
		}
	}
}

// servePage has the page be there until ctx ends.
func servePage(ctx context.Context, on net.Listener, page http.Handler) error {
	web := &http.Server{Handler: page, ReadHeaderTimeout: headerBound, WriteTimeout: writeBound}
	ended := make(chan error, 1)
	defer context.AfterFunc(ctx, func() {
		bound, cancel := context.WithTimeout(context.WithoutCancel(ctx), endBound)
		defer cancel()
		ended <- unless(web.Shutdown(bound), context.DeadlineExceeded)
	})()
	if err := unless(web.Serve(on), http.ErrServerClosed); err != nil {
		return err
	}
	return <-ended
}

func unless(err, expected error) error {
	if errors.Is(err, expected) {
		return nil
	}
	return err
}

// routes are those of a page and of the lessons' text. Each answer says whose it is.
func routes(now func() *View, text, identity string) http.Handler {
	router := mux.NewRouter()
	router.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		if err := page().Execute(w, now()); err != nil {
			slog.Error("writing the page", "error", err)
		}
	}).Methods(http.MethodGet, http.MethodHead)
	router.HandleFunc("/progress.json", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Cache-Control", "no-store")
		if err := json.NewEncoder(w).Encode(now()); err != nil {
			slog.Error("writing the progress", "error", err)
		}
	}).Methods(http.MethodGet, http.MethodHead)
	router.PathPrefix("/lessons/").Handler(http.StripPrefix("/lessons/", http.FileServer(http.Dir(text))))
	for _, name := range []string{"page.css", "page.js"} {
		router.Path("/" + name).Handler(http.FileServerFS(assets))
	}
	router.Use(guarded, func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set(roomHeader, identity)
			next.ServeHTTP(w, r)
		})
	})
	return router
}

// guarded has a browser load nothing from elsewhere, and no other site have it in a frame.
func guarded(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Security-Policy", "default-src 'self'; style-src 'self' 'unsafe-inline'; frame-ancestors 'none'")
		w.Header().Set("X-Content-Type-Options", "nosniff")
		next.ServeHTTP(w, r)
	})
}
