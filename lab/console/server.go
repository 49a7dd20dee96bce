package console

import (
	"bytes"
	"context"
	"crypto/rand"
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
	// maxActBytes is more than the body of any request.
	maxActBytes = 4 << 10
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
	a, err := readAddress(l.State.Path())
	if errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("lab %q serves no page; `lab up --name %s` starts its agent", l.State.Name, l.State.Name)
	}
	if readOnly {
		return a.urlWith(a.ReadOnlyToken), err
	}
	return a.urlWith(a.Token), err
}

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

// Picture has the things as they are now.
type Picture interface {
	Get(id string) (t scene.Thing, ok bool)
	Things() []scene.Thing
}

// Guide returns the lesson that takes place in the lab, as the page shows it beside the picture; nil if none
// does.
type Guide func(ctx context.Context) (any, error)

// Serve serves a lab's page until ctx ends: where it was before, if that is free, so that a page that is
// open finds it again.
func Serve(ctx context.Context, l *lab.Lab, picture Picture, guide Guide, log *slog.Logger) error {
	a, _ := readAddress(l.State.Path()) // One that is missing or damaged is made anew.
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
	return serveUntilDone(ctx, listener, newHandler(l, a, picture, guide, log))
}

// ServeRecording serves a file of WriteRecording until ctx ends. It tells announce where.
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
	a := address{Address: listener.Addr().String(), Token: rand.Text()}
	announce(a.urlWith(a.Token))
	return serveUntilDone(ctx, listener, a.newGuard().RequireToken(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
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

// newHandler serves the page to whoever has a token.
func newHandler(l *lab.Lab, a address, picture Picture, guide Guide, log *slog.Logger) http.Handler {
	page := &console.Page{
		Title: pageTitle(l), Guard: a.newGuard(), Log: log,
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
		Things: picture.Things,
		Guide:  guide,
		Acts: func(ctx context.Context, _ console.Session, subject string) ([]console.Act, error) {
			return actsOn(ctx, l, picture, subject)
		},
		Run: func(ctx context.Context, _ console.Session, command []string) error {
			return runCommand(ctx, l, command)
		},
	}
	return http.MaxBytesHandler(page.Handler(), maxActBytes)
}

// newGuard lets in who knows one of the tokens, under the page's own names.
func (a address) newGuard() console.Guard {
	_, port, _ := net.SplitHostPort(a.Address)
	return console.Guard{
		Cookie:    "ccmlab-console-" + port,
		IsHost:    func(host string) bool { return host == a.Address || host == "localhost:"+port },
		HowToOpen: "`lab console` prints the address that opens this page",
		Access: func(_ *http.Request, token string) console.Access {
			switch {
			case console.IsSame(token, a.Token):
				return console.MayChange
			case console.IsSame(token, a.ReadOnlyToken):
				return console.MayRead
			}
			return console.NoAccess
		},
	}
}
