package console

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httputil"
	"time"

	"github.com/ccmlab/ccmlab/fakecloud/console/scene"
)

// windowTimeout bounds how long a lab may take to say how it is.
const windowTimeout = 2 * time.Second

// Window is a lab's page for others, who may look and change nothing.
type Window struct{ at address }

// OpenWindow returns the window of the lab in a folder, whose agent serves a page.
func OpenWindow(dir string) (Window, error) {
	a, err := readAddress(dir)
	return Window{a}, err
}

// Objects are what is in the picture now.
func (w Window) Objects(ctx context.Context) (objects []scene.Object, err error) {
	ctx, cancel := context.WithTimeout(ctx, windowTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, w.at.url()+"scene.json", nil)
	if err != nil {
		return nil, err
	}
	w.Authorize(req)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("the lab's page: %s", resp.Status)
	}
	return objects, json.NewDecoder(resp.Body).Decode(&objects)
}

// URL is where the page is; it ends with "/".
func (w Window) URL() string { return w.at.url() }

// Authorize lets a request look at the page.
func (w Window) Authorize(r *http.Request) { r.Header.Set("Authorization", "Bearer "+w.at.ReadOnlyKey) }

// Handler serves the page below a path of another server, which sets the Content-Security-Policy: of two headers, a
// browser obeys both.
func (w Window) Handler(path string) http.Handler {
	proxy := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.Out.URL.Scheme, r.Out.URL.Host, r.Out.Host = "http", w.at.Address, w.at.Address
			r.Out.URL.RawQuery = r.In.URL.Query().Encode()
			r.Out.Header.Del("Cookie")
			r.Out.Header.Del("Origin") // The other server's, which the lab's page would refuse.
			w.Authorize(r.Out)
		},
		ModifyResponse: func(resp *http.Response) error {
			resp.Header.Del("Content-Security-Policy")
			return nil
		},
	}
	return http.StripPrefix(path, http.HandlerFunc(func(out http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			http.Error(out, "this page may only be read", http.StatusMethodNotAllowed)
			return
		}
		// The stream has no end; the lab's own server bounds each of its messages. A test's writer has no deadline.
		_ = http.NewResponseController(out).SetWriteDeadline(time.Time{})
		proxy.ServeHTTP(out, r)
	}))
}
