package classroom

// The page shows a View. The lessons' text is served beside it.

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
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/gorilla/mux"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/apimachinery/pkg/util/wait"

	cloudconsole "github.com/ccmlab/ccmlab/fakecloud/console"
	"github.com/ccmlab/ccmlab/fakecloud/console/scene"
	"github.com/ccmlab/ccmlab/fakecloud/hosts"
	"github.com/ccmlab/ccmlab/lab/console"
	"github.com/ccmlab/ccmlab/lab/lessons"
	"github.com/ccmlab/ccmlab/lab/lessons/site"
)

//go:embed page.html
var pageTemplate string

//go:embed page.css page.js
var assets embed.FS

// parsePageTemplate parses the page's template once, when it is first served: few
// commands need it.
var parsePageTemplate = sync.OnceValue(func() *template.Template {
	return template.Must(template.New("page").Funcs(template.FuncMap{
		"gigabytes": func(bytes uint64) string { return fmt.Sprintf("%.1f", float64(bytes)/(1<<30)) },
		"shape": func(l scene.Level) string {
			return map[scene.Level]string{
				scene.LevelOK: "●", scene.LevelBusy: "◐", scene.LevelBad: "▲", scene.LevelOff: "○", scene.LevelUnknown: "?",
			}[l]
		},
		"target": func(page string) string {
			if strings.HasPrefix(page, seatsPath) {
				return "large"
			}
			return "_blank" // Of another server, which this page may not frame.
		},
		"lateAfter": func() string { return duration.HumanDuration(lateAfter) },
	}).Parse(pageTemplate))
})

const (
	pollInterval = 2 * time.Second
	// readHeaderTimeout, readBodyTimeout and writeTimeout are how long a browser may take, idleTimeout how long it
	// may keep a connection for its next request.
	readHeaderTimeout = 5 * time.Second
	readBodyTimeout   = 5 * time.Second
	writeTimeout      = 30 * time.Second
	idleTimeout       = time.Minute
	shutdownTimeout   = 5 * time.Second
)

// listenTCP listens on a port. Its error names the flag that chooses another.
func listenTCP(address string, port int, portFlag string) (net.Listener, error) {
	on, err := net.Listen("tcp", net.JoinHostPort(address, strconv.Itoa(port)))
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return nil, fmt.Errorf("port %d is taken by another program: choose another port with %s (%w)", port, portFlag, err)
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return nil, fmt.Errorf("this machine has no address %s: choose another with --listen (%w)", address, err)
	}
	return on, err
}

// writeLessonsSite writes the lessons' site into an empty folder dir.
func writeLessonsSite(dir string) (string, error) {
	all, err := lessons.All()
	if err != nil {
		return "", err
	}
	if err := os.RemoveAll(dir); err != nil { // Another version's.
		return "", err
	}
	return dir, site.Write(dir, all)
}

// pollUntilDone calls look every pollInterval until ctx ends.
func pollUntilDone(ctx context.Context, look func(context.Context) error) error {
	_ = wait.PollUntilContextCancel(ctx, pollInterval, false, func(ctx context.Context) (bool, error) {
		if err := look(ctx); err != nil && ctx.Err() == nil {
			slog.Error("looking at the seats", "error", err)
		}
		return false, nil
	})
	return nil
}

// servePage serves the page until ctx ends.
func servePage(ctx context.Context, on net.Listener, page http.Handler) error {
	web := &http.Server{
		Handler:           withBodyTimeout(page),
		ReadHeaderTimeout: readHeaderTimeout, WriteTimeout: writeTimeout, IdleTimeout: idleTimeout,
	}
	ended := make(chan error, 1)
	defer context.AfterFunc(ctx, func() {
		bound, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownTimeout)
		defer cancel()
		ended <- ignoreError(web.Shutdown(bound), context.DeadlineExceeded)
	})()
	if err := ignoreError(web.Serve(on), http.ErrServerClosed); err != nil {
		return err
	}
	return <-ended
}

// withBodyTimeout bounds how long a body takes, which the server reads even if no handler does. Its ReadTimeout
// would end the streams of the labs' pages, too.
func withBodyTimeout(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ContentLength != 0 {
			_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(readBodyTimeout)) // Any connection can.
		}
		next.ServeHTTP(w, r)
	})
}

func ignoreError(err error, expected ...error) error {
	if slices.ContainsFunc(expected, func(e error) bool { return errors.Is(err, e) }) {
		return nil
	}
	return err
}

// seatsPath is where the pages of the seats' labs are, below the room's.
const seatsPath = "seats/"

// seatPath is where the page of a seat's lab is, below the room's.
func seatPath(seat string) string { return seatsPath + seat + "/" }

// newPageHandler serves the page, its JSON, the lessons' text, and the pages of the seats' labs, to look at,
// unless window is nil. Each answer carries the server's identity. It answers under its own names only.
func newPageHandler(
	now func() *View,
	window func(seat string) (console.Window, error),
	text, identity string,
	names []string,
) http.Handler {
	router := mux.NewRouter()
	var seatStreams seatViewers
	router.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		if err := parsePageTemplate().Execute(w, now()); err != nil {
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
	if window != nil {
		router.PathPrefix("/" + seatPath("{seat}")).HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			seat := mux.Vars(r)["seat"]
			v, err := window(seat)
			if err != nil {
				http.Error(w, "no lab of "+seat+" shows itself just now", http.StatusNotFound)
				return
			}
			path := strings.TrimSuffix("/"+seatPath(seat), "/")
			seatStreams.limit(seat, r.URL.Path == path+"/stream", v.Handler(path)).ServeHTTP(w, r)
		})
	}
	router.PathPrefix("/lessons/").Handler(http.StripPrefix("/lessons/", http.FileServer(http.Dir(text))))
	for _, name := range []string{"page.css", "page.js"} {
		router.Path("/" + name).Handler(http.FileServerFS(assets))
	}
	router.Use(withSecurityHeaders, withOwnHosts(names), func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set(roomHeader, identity)
			next.ServeHTTP(w, r)
		})
	})
	return router
}

// maxSeatViewers bounds the streams of a seat's lab. It is less than its own page's bound, so that those who look from
// here leave room for the lab's owner.
const maxSeatViewers = 32

// seatViewers are the viewers of each seat's lab. Here their addresses tell them apart; the lab sees this server's.
type seatViewers struct {
	mu     sync.Mutex
	bySeat map[string]*cloudconsole.Viewers
}

func (s *seatViewers) limit(seat string, isStream bool, next http.Handler) http.Handler {
	if !isStream {
		return next
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.bySeat == nil {
		s.bySeat = map[string]*cloudconsole.Viewers{}
	}
	if s.bySeat[seat] == nil {
		s.bySeat[seat] = cloudconsole.NewViewers(maxSeatViewers)
	}
	return s.bySeat[seat].Limit(func(*http.Request) string { return "" }, next)
}

// ownNames are the names of a page beside localhost and IP addresses: the host that it listens at, the machine's name,
// that of its URL for others, and more.
func ownNames(listen, pageURL string, more []string) []string {
	names := append([]string{listen}, more...)
	if machine, err := os.Hostname(); err == nil {
		names = append(names, machine)
	}
	if u, err := url.Parse(pageURL); err == nil {
		names = append(names, u.Host)
	}
	for i, name := range names {
		names[i] = hosts.Name(name)
	}
	return names
}

// withOwnHosts refuses names that are not the page's own: see hosts.IsOwn.
func withOwnHosts(names []string) mux.MiddlewareFunc {
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if !hosts.IsOwn(r.Host, names) {
				http.Error(w, fmt.Sprintf(
					"this page is not served under the name %.100q: use an IP address or localhost, or add the name by "+
						"--host of `lab classroom up` or `lab classroom page`", r.Host,
				), http.StatusMisdirectedRequest)
				return
			}
			next.ServeHTTP(w, r)
		})
	}
}

// withSecurityHeaders keeps a browser from loading anything from elsewhere, and other
// sites from framing a page. The room's own page frames those of the seats' labs.
func withSecurityHeaders(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ancestors := "'none'"
		if strings.HasPrefix(r.URL.Path, "/"+seatsPath) {
			ancestors = "'self'"
		}
		w.Header().Set("Content-Security-Policy", "default-src 'self'; style-src 'self' 'unsafe-inline'; "+
			"base-uri 'none'; form-action 'none'; frame-ancestors "+ancestors)
		w.Header().Set("X-Content-Type-Options", "nosniff")
		next.ServeHTTP(w, r)
	})
}
