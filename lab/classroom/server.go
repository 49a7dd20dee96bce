package classroom

// This file answers: what does the room's server do? It looks at the seats, shows how
// far they are, has the text of the lessons, and lets learners in.

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
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gliderlabs/ssh"
	"github.com/gorilla/mux"
	"golang.org/x/sync/errgroup"
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

// server is the room's.
type server struct {
	room *Room
	// nobody is compared with where there is no such seat, so that it takes as long.
	nobody string
	view   atomic.Pointer[View]
	// mu guards here, who is logged in, by seat.
	mu   sync.Mutex
	here map[string]int
}

// Serve has the room's page and seats be reached until ctx ends.
func (r *Room) Serve(ctx context.Context) error {
	s := &server{room: r, here: map[string]int{}}
	if err := s.look(ctx); err != nil {
		return err
	}
	text, err := s.text()
	if err != nil {
		return err
	}
	pages, err := s.listen(r.PagePort)
	if err != nil {
		return err
	}
	doors, err := s.listen(r.SSHPort)
	if err != nil {
		return errors.Join(err, pages.Close())
	}
	web := &http.Server{Handler: s.routes(text), ReadHeaderTimeout: headerBound, WriteTimeout: writeBound}
	door, err := s.door(ctx)
	if err != nil {
		return errors.Join(err, pages.Close(), doors.Close())
	}
	var parts errgroup.Group
	parts.Go(func() error { return unless(web.Serve(pages), http.ErrServerClosed) })
	parts.Go(func() error { return unless(door.Serve(doors), ssh.ErrServerClosed) })
	parts.Go(func() error { return s.keepLooking(ctx) })
	parts.Go(func() error {
		<-ctx.Done()
		bound, cancel := context.WithTimeout(context.WithoutCancel(ctx), endBound)
		defer cancel()
		return errors.Join(door.Close(), unless(web.Shutdown(bound), context.DeadlineExceeded))
	})
	slog.Info("the classroom is open", "page", r.Page(), "ssh", doors.Addr().String(), "seats", len(r.Seats))
	return parts.Wait()
}

func unless(err, expected error) error {
	if errors.Is(err, expected) {
		return nil
	}
	return err
}

func (s *server) listen(port int) (net.Listener, error) {
	return net.Listen("tcp", net.JoinHostPort(s.room.Listen, strconv.Itoa(port)))
}

// text writes the lessons' site, and returns its folder.
func (s *server) text() (string, error) {
	all, err := lessons.All()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(s.room.dir, "site")
	if err := os.RemoveAll(dir); err != nil { // Another version's.
		return "", err
	}
	return dir, site.Write(dir, "lab", all)
}

func (s *server) keepLooking(ctx context.Context) error {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		if err := s.look(ctx); err != nil && ctx.Err() == nil {
			slog.Error("looking at the seats", "error", err)
		}
	}
}

// look sees how far everybody is, at the seats that there are by now.
func (s *server) look(ctx context.Context) error {
	now := &Room{dir: s.room.dir}
	if err := now.read(); err != nil {
		return err
	}
	v, err := now.Look(ctx)
	if err != nil {
		return err
	}
	s.view.Store(v)
	return nil
}

func (s *server) routes(text string) http.Handler {
	router := mux.NewRouter()
	router.HandleFunc("/", s.page).Methods(http.MethodGet, http.MethodHead)
	router.HandleFunc("/progress.json", s.progress).Methods(http.MethodGet, http.MethodHead)
	router.PathPrefix("/lessons/").Handler(http.StripPrefix("/lessons/", http.FileServer(http.Dir(text))))
	for _, name := range []string{"page.css", "page.js"} {
		router.Path("/" + name).Handler(http.FileServerFS(assets))
	}
	router.Use(s.guarded)
	return router
}

// guarded has a browser load nothing from elsewhere, and no other site have it in a frame.
func (s *server) guarded(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set(roomHeader, s.room.identity())
		w.Header().Set("Content-Security-Policy", "default-src 'self'; style-src 'self' 'unsafe-inline'; frame-ancestors 'none'")
		w.Header().Set("X-Content-Type-Options", "nosniff")
		next.ServeHTTP(w, r)
	})
}

// now is the last view, with who is logged in.
func (s *server) now() *View {
	v := *s.view.Load()
	v.Seats = append([]SeatView{}, v.Seats...)
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range v.Seats {
		v.Seats[i].Here = s.here[v.Seats[i].Name]
	}
	return &v
}

func (s *server) page(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	if err := page().Execute(w, s.now()); err != nil {
		slog.Error("writing the page", "error", err)
	}
}

func (s *server) progress(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	if err := json.NewEncoder(w).Encode(s.now()); err != nil {
		slog.Error("writing the progress", "error", err)
	}
}
