package console

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/ccmlab/ccmlab/fakecloud/console"
	"github.com/ccmlab/ccmlab/fakecloud/console/scene"
	"github.com/ccmlab/ccmlab/lab"
	"github.com/ccmlab/ccmlab/lab/atomicfile"
	"github.com/ccmlab/ccmlab/lab/explain"
)

const (
	// addressFile says where a lab's page is served, and what opens it.
	addressFile = "console.json"

	readHeaderTimeout = 5 * time.Second
	idleTimeout       = time.Minute
	// linkLifetime is how long a link opens pages.
	linkLifetime = 24 * time.Hour
	// linkTimeout bounds how long an agent may take to make a link.
	linkTimeout = 5 * time.Second
	// maxActBytes is more than the body of any request.
	maxActBytes = 4 << 10
)

// address is the content of addressFile. Each agent makes it anew, so what somebody was sent who has taken the
// port of an agent that ended opens nothing.
type address struct {
	Address string `json:"address"`
	// Key opens the page, and ReadOnlyKey opens it to look only. They are for programs: see console.Guard.
	Key         string `json:"key"`
	ReadOnlyKey string `json:"readOnlyKey"`
}

// Link returns the URL that opens a lab's page; with readOnly, one that changes nothing. With renew, all earlier
// links and pages of the lab end.
func Link(ctx context.Context, l *lab.Lab, readOnly, renew bool) (url string, err error) {
	a, err := readAddress(l.State.Path())
	if errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("lab %q serves no page; `lab up --name %s` starts its agent", l.State.Name, l.State.Name)
	}
	if err != nil {
		return "", err
	}
	key, other := a.Key, a.ReadOnlyKey
	if readOnly {
		key, other = other, key
	}
	ctx, cancel := context.WithTimeout(ctx, linkTimeout)
	defer cancel()
	if renew {
		_, err = console.RequestLink(ctx, http.DefaultClient, a.url(), other, true)
	}
	if err == nil {
		url, err = console.RequestLink(ctx, http.DefaultClient, a.url(), key, renew)
	}
	if err != nil {
		return "", fmt.Errorf("the page of lab %q: %w; `lab up --name %s` starts its agent", l.State.Name, err, l.State.Name)
	}
	return url, nil
}

func (a address) url() string { return "http://" + a.Address + "/" }

func readAddress(dir string) (a address, err error) {
	file := filepath.Join(dir, addressFile)
	data, err := os.ReadFile(file)
	if err != nil {
		return a, err
	}
	if err := json.Unmarshal(data, &a); err != nil {
		return a, fmt.Errorf("%s is damaged: %w; `lab up` mends it", file, err)
	}
	return a, nil
}

// SceneFile is where the changes of a lab's scene are recorded.
func SceneFile(l *lab.Lab) string { return l.State.Path("scene.jsonl") }

// Picture has the objects as they are now.
type Picture interface {
	Get(id string) (t scene.Object, ok bool)
	Objects() []scene.Object
}

// Guide returns the lesson that takes place in the lab, as the page shows it beside the picture; nil if none
// does.
type Guide func(ctx context.Context) (any, error)

// Serve serves a lab's page until ctx ends. The port is another each time: a server that had it meanwhile may
// have left a service worker in the owner's browser, which would see what the page sends.
func Serve(ctx context.Context, l *lab.Lab, picture Picture, guide Guide, log *slog.Logger) error {
	var listenConfig net.ListenConfig
	listener, err := listenConfig.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	a := address{Address: listener.Addr().String(), Key: rand.Text(), ReadOnlyKey: rand.Text()}
	data, err := json.Marshal(a)
	if err == nil {
		err = atomicfile.Write(l.State.Path(addressFile), data)
	}
	if err != nil {
		return errors.Join(err, listener.Close())
	}
	defer func() { _ = os.Remove(l.State.Path(addressFile)) }() // Another program may take the port next.
	return serveUntilDone(ctx, listener, newHandler(l, a, picture, guide, log))
}

// ServeRecording serves a file of WriteRecording until ctx ends. It tells announce where: below a path that nobody
// can guess, and that is another each time.
func ServeRecording(ctx context.Context, file string, announce func(url string)) error {
	page, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	if !bytes.Contains(page, []byte(console.RecordingElement)) {
		return fmt.Errorf("%s is no recording; `lab record -o FILE` writes one", file)
	}
	var listenConfig net.ListenConfig
	listener, err := listenConfig.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	host, path := listener.Addr().String(), "/"+rand.Text()+"/"
	announce("http://" + host + path)
	return serveUntilDone(ctx, listener, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Host != host || subtle.ConstantTimeCompare([]byte(r.URL.Path), []byte(path)) != 1 {
			http.NotFound(w, r)
			return
		}
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		w.Header().Set("Referrer-Policy", "no-referrer")
		_, _ = w.Write(page) // To a browser that may be gone.
	}))
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

// newHandler serves the page.
func newHandler(l *lab.Lab, a address, picture Picture, guide Guide, log *slog.Logger) http.Handler {
	page := &console.Page{
		Title: pageTitle(l), Server: "the lab's agent", Guard: a.newGuard(l.State.Name), Log: log,
		Stream: func(ctx context.Context, _ console.Session, send func(console.Batch) error) error {
			return streamLab(ctx, l, send)
		},
		Explain: func(ctx context.Context, subject string) (any, error) {
			kind, name, _ := strings.Cut(subject, "/")
			namespace, rest, ok := strings.Cut(name, "/")
			if !ok {
				namespace, rest = "default", name
			}
			return explain.OfLab(ctx, l, kind, namespace, rest)
		},
		LogAbout: func(ctx context.Context, subject string) ([]string, error) {
			t, _ := picture.Get(subject)
			return logAbout(ctx, l, t)
		},
		Objects: picture.Objects,
		Guide:   guide,
		Acts: func(ctx context.Context, _ console.Session, subject string) ([]console.Act, error) {
			return actsOn(ctx, l, picture, subject)
		},
		Run: func(ctx context.Context, _ console.Session, command []string) error {
			return runCommand(ctx, l, command)
		},
	}
	return http.MaxBytesHandler(page.Handler(), maxActBytes)
}

// newGuard lets in who knows one of the keys, or has opened a link. The page has one name: what listens at
// "localhost" may be somebody else, on ::1.
func (a address) newGuard(lab string) console.Guard {
	isSame := func(x, y string) bool { return subtle.ConstantTimeCompare([]byte(x), []byte(y)) == 1 }
	return console.Guard{
		IsHost:       func(host string) bool { return host == a.Address },
		LinkLifetime: linkLifetime, LinkCommand: "lab console --name " + lab,
		Access: func(_ context.Context, key string) console.Access {
			switch {
			case isSame(key, a.Key):
				return console.MayChange
			case isSame(key, a.ReadOnlyKey):
				return console.MayRead
			}
			return console.NoAccess
		},
	}
}
