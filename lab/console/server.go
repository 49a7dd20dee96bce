package console

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/subtle"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/gorilla/mux"

	"github.com/ccmlab/ccmlab/lab"
	"github.com/ccmlab/ccmlab/lab/atomicfile"
	"github.com/ccmlab/ccmlab/lab/console/scene"
	"github.com/ccmlab/ccmlab/lab/explain"
)

//go:embed page.css page.js
var assets embed.FS

// recordingElement is what no other page has.
const recordingElement = `<script type="application/json" id="recording">`

const (
	// addressFile says where a lab's page is served, and what opens it.
	addressFile = "console.json"

	readHeaderTimeout = 5 * time.Second
	idleTimeout       = time.Minute
	// maxViewers bounds the pages that are open at a time: each follows the cloud's audit.
	maxViewers = 16
)

// address is the content of addressFile.
type address struct {
	Address string `json:"address"`
	// Token opens the page, and ReadOnlyToken opens one that changes nothing. It is in the URL once, and
	// becomes a cookie.
	Token         string `json:"token"`
	ReadOnlyToken string `json:"readOnlyToken"`
}

func (a address) urlWith(token string) string {
	return fmt.Sprintf("http://%s/?token=%s", a.Address, token)
}

// PageURL is where a lab's page is, with the token that opens it; with readOnly, one that changes nothing.
func PageURL(l *lab.Lab, readOnly bool) (string, error) {
	a, err := readAddress(l)
	if errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("lab %q serves no page; `lab up --name %s` starts its agent", l.State.Name, l.State.Name)
	}
	if readOnly {
		return a.urlWith(a.ReadOnlyToken), err
	}
	return a.urlWith(a.Token), err
}

func readAddress(l *lab.Lab) (a address, err error) {
	data, err := os.ReadFile(l.State.Path(addressFile))
	if err != nil {
		return a, err
	}
	if err := json.Unmarshal(data, &a); err != nil {
		return a, fmt.Errorf("%s is damaged: %w; `lab up` mends it", l.State.Path(addressFile), err)
	}
	return a, nil
}

// SceneFile is where the changes of a lab's scene are recorded.
func SceneFile(l *lab.Lab) string { return l.State.Path("scene.jsonl") }

// ThingNow returns a thing as it is now, by its ID.
type ThingNow func(id string) (t scene.Thing, ok bool)

// Serve serves a lab's page until ctx ends: where it was before, if that is free, so that a page that is
// open finds it again.
func Serve(ctx context.Context, l *lab.Lab, thingNow ThingNow, log *slog.Logger) error {
	a, _ := readAddress(l) // One that is missing or damaged is made anew.
	var listenConfig net.ListenConfig
	listener, err := listenConfig.Listen(ctx, "tcp", a.Address)
	if a.Address == "" || err != nil {
		if listener, err = listenConfig.Listen(ctx, "tcp", "127.0.0.1:0"); err != nil {
			return err
		}
	}
	a.Address = listener.Addr().String()
	if a.Token == "" || a.ReadOnlyToken == "" {
		a.Token, a.ReadOnlyToken = rand.Text(), rand.Text()
	}
	data, err := json.Marshal(a)
	if err == nil {
		err = atomicfile.Write(l.State.Path(addressFile), data)
	}
	if err != nil {
		return errors.Join(err, listener.Close())
	}
	return serveUntilDone(ctx, listener, newHandler(l, a, thingNow, log))
}

// ServeRecording serves a file of WriteRecording until ctx ends. It tells announce where.
func ServeRecording(ctx context.Context, file string, announce func(url string)) error {
	page, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	if !bytes.Contains(page, []byte(recordingElement)) {
		return fmt.Errorf("%s is no recording; `lab record -o FILE` writes one", file)
	}
	var listenConfig net.ListenConfig
	listener, err := listenConfig.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	a := address{Address: listener.Addr().String(), Token: rand.Text()}
	announce(a.urlWith(a.Token))
	return serveUntilDone(ctx, listener, a.requireToken(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		_, _ = w.Write(page) // To a browser that may be gone.
	})))
}

func serveUntilDone(ctx context.Context, on net.Listener, handler http.Handler) error {
	web := &http.Server{
		Handler: handler, ReadHeaderTimeout: readHeaderTimeout, IdleTimeout: idleTimeout,
		BaseContext: func(net.Listener) context.Context { return ctx }, // It ends the streams.
	}
	defer context.AfterFunc(ctx, func() { _ = web.Close() })()
	if err := web.Serve(on); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// newHandler serves the page to whoever has the token.
func newHandler(l *lab.Lab, a address, thingNow ThingNow, log *slog.Logger) http.Handler {
	router := mux.NewRouter()
	router.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		data := pageData{Lab: l.State.Name}
		if a.mayChange(r) {
			data.CSRF = a.csrfToken()
		}
		if err := writePage(w, data); err != nil {
			log.Error("writing the page", "error", err)
		}
	})
	for _, name := range []string{"page.css", "page.js"} {
		router.Path("/" + name).Handler(http.FileServerFS(assets))
	}
	router.Handle("/stream", newStream(l))
	router.HandleFunc("/explain.json", func(w http.ResponseWriter, r *http.Request) {
		kind, name, _ := strings.Cut(r.URL.Query().Get("subject"), "/")
		namespace, rest, ok := strings.Cut(name, "/")
		if !ok {
			namespace, rest = "default", name
		}
		x, err := explain.OfLab(r.Context(), l, kind, namespace, rest)
		answerJSON(w, x, err)
	})
	router.Handle("/acts.json", newActs(l, thingNow, log))
	router.Use(withHeaders, a.requireToken)
	return http.MaxBytesHandler(router, maxActBytes)
}

// cookieName is the cookie's that has the token. Cookies do not tell ports apart.
func (a address) cookieName() string {
	_, port, _ := net.SplitHostPort(a.Address)
	return "ccmlab-console-" + port
}

func isSame(a, b string) bool {
	return b != "" && subtle.ConstantTimeCompare([]byte(a), []byte(b)) == 1
}

// mayChange tells whether a request has the token of a page that is not read-only.
func (a address) mayChange(r *http.Request) bool {
	cookie, err := r.Cookie(a.cookieName())
	return err == nil && isSame(cookie.Value, a.Token)
}

// requireToken lets in who knows a token: by the URL, which it then hides, or by the cookie. A Host that is
// not the page's own is that of another site, whose name was made to lead here. What changes something
// needs more: see mayPost.
func (a address) requireToken(next http.Handler) http.Handler {
	_, port, _ := net.SplitHostPort(a.Address)
	isToken := func(s string) bool { return isSame(s, a.Token) || isSame(s, a.ReadOnlyToken) }
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Host != a.Address && r.Host != "localhost:"+port {
			http.Error(w, "this page is served as http://"+a.Address+"/ only", http.StatusMisdirectedRequest)
			return
		}
		if token := r.URL.Query().Get("token"); isToken(token) && r.Method == http.MethodGet {
			http.SetCookie(w, &http.Cookie{
				Name: a.cookieName(), Value: token, Path: "/", HttpOnly: true, SameSite: http.SameSiteStrictMode,
			})
			http.Redirect(w, r, r.URL.Path, http.StatusSeeOther)
			return
		}
		cookie, err := r.Cookie(a.cookieName())
		if err != nil || !isToken(cookie.Value) {
			http.Error(w, "`lab console` prints the address that opens this page", http.StatusUnauthorized)
			return
		}
		if r.Method != http.MethodGet && r.Method != http.MethodHead && !a.mayPost(r) {
			http.Error(w, "this page may only be read", http.StatusForbidden)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// mayPost tells whether a request that changes something comes from the page itself.
func (a address) mayPost(r *http.Request) bool {
	return r.Method == http.MethodPost && a.mayChange(r) && r.Header.Get("Origin") == "http://"+r.Host &&
		isSame(r.Header.Get(csrfHeader), a.csrfToken())
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
	w.Header().Set("Content-Type", "application/json")
	if err != nil {
		w.WriteHeader(http.StatusInternalServerError)
		v = map[string]string{"error": err.Error()}
	}
	_ = json.NewEncoder(w).Encode(v) // Of a browser that is gone.
}
