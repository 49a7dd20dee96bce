package console

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/lab"
	"github.com/ccmlab/ccmlab/lab/cluster"
	"github.com/ccmlab/ccmlab/lab/console/scene"
	"github.com/ccmlab/ccmlab/lab/process"
	"github.com/ccmlab/ccmlab/lab/state"
	"github.com/ccmlab/ccmlab/lab/timeline"
)

const bound = 20 * time.Second

// quietCluster has no component.
type quietCluster struct {
	cluster.Cluster
	cloud cluster.Cloud
}

func (quietCluster) Components(context.Context) ([]cluster.Component, error) { return nil, nil }

func (q quietCluster) Cloud() cluster.Cloud { return q.cloud }

// fakeCloud notes what it is asked to change, and answers with an instance.
type fakeCloud struct {
	mu    sync.Mutex
	asked []string
}

func (f *fakeCloud) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if r.Method == http.MethodPost {
		f.asked = append(f.asked, r.URL.Path)
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write([]byte(`{"id": "i-1", "items": []}`))
}

func (f *fakeCloud) changes() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.asked)
}

// newLab is a lab of which only records exist.
func newLab(t *testing.T) *lab.Lab {
	t.Helper()
	l, _ := newLabWithCloud(t)
	return l
}

func newLabWithCloud(t *testing.T) (*lab.Lab, *fakeCloud) {
	t.Helper()
	cloud := &fakeCloud{}
	server := httptest.NewServer(cloud)
	t.Cleanup(server.Close)
	st, err := state.CreateDir(t.TempDir())
	require.NoError(t, err)
	st.StartedAt = time.Now()
	at := cluster.Cloud{URL: server.URL, Dir: st.Path()}
	l := &lab.Lab{State: st, Cluster: quietCluster{cloud: at}, Host: process.Host{Lab: st.Path()}}
	for _, caller := range []string{cluster.CallerLab, cluster.CallerOperator} {
		require.NoError(t, os.WriteFile(at.TokenFile(caller), []byte("token"), 0o600))
	}
	require.NoError(t, l.Timeline().Create())
	return l, cloud
}

// serve serves the lab's page until the test ends, and returns where.
func serve(t *testing.T, l *lab.Lab) (url string) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	thingNow := func(id string) (scene.Thing, bool) {
		changes, err := scene.Read(SceneFile(l))
		assert.NoError(t, err)
		thing, ok := scene.Fold(changes)[id]
		return thing, ok
	}
	go func() { done <- Serve(ctx, l, thingNow, slog.New(slog.DiscardHandler)) }()
	t.Cleanup(func() {
		cancel()
		assert.NoError(t, <-done)
	})
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		var err error
		url, err = PageURL(l, false)
		assert.NoError(c, err)
	}, bound, 10*time.Millisecond)
	return url
}

// visit gets a page, and returns the answer without its body.
func visit(t *testing.T, c *http.Client, url string, change func(*http.Request)) http.Response {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	require.NoError(t, err)
	if change != nil {
		change(req)
	}
	resp, err := c.Do(req)
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	return *resp
}

func newBrowser(t *testing.T) *http.Client {
	t.Helper()
	jar, err := cookiejar.New(nil)
	require.NoError(t, err)
	return &http.Client{Jar: jar}
}

// The page opens with its token only, under its own name only, and is only read.
func TestPageIsGuarded(t *testing.T) {
	url := serve(t, newLab(t))
	base, _, _ := strings.Cut(url, "?")
	status := func(c *http.Client, url string, change func(*http.Request)) int {
		return visit(t, c, url, change).StatusCode
	}
	for _, path := range []string{"", "page.js", "stream", "acts.json", "explain.json?subject=node/a"} {
		assert.Equal(t, http.StatusUnauthorized, status(newBrowser(t), base+path, nil), path)
	}
	assert.Equal(t, http.StatusUnauthorized, status(newBrowser(t), base+"?token=guess", nil))
	browser := newBrowser(t)
	opened := visit(t, browser, url, nil)
	assert.Equal(t, http.StatusOK, opened.StatusCode)
	assert.Empty(t, opened.Request.URL.RawQuery, "the token is not in the address bar")
	assert.Contains(t, opened.Header.Get("Content-Security-Policy"), "default-src 'self'")
	assert.Equal(t, http.StatusOK, status(browser, base+"page.js", nil))
	assert.Equal(t, http.StatusMisdirectedRequest, status(browser, base, func(r *http.Request) { r.Host = "rebound.test" }))
}

// What changes something needs the page's own origin and its CSRF token, and more than a read-only page.
func TestActsAreGuarded(t *testing.T) {
	l, cloud := newLabWithCloud(t)
	log, err := scene.OpenLog(SceneFile(l))
	require.NoError(t, err)
	require.NoError(t, log.Add(scene.Change{Time: time.Now(), Thing: machine("running", scene.LevelOK)}))
	url := serve(t, l)
	base, _, _ := strings.Cut(url, "?")
	a, err := readAddress(l)
	require.NoError(t, err)
	owner, viewer := newBrowser(t), newBrowser(t)
	visit(t, owner, url, nil)
	visit(t, viewer, a.urlWith(a.ReadOnlyToken), nil)
	post := func(c *http.Client, verb, origin, csrf string) int {
		return visit(t, c, base+"acts.json?subject=instance/node-1&verb="+verb, func(r *http.Request) {
			r.Method = http.MethodPost
			r.Header.Set("Origin", origin)
			r.Header.Set(csrfHeader, csrf)
		}).StatusCode
	}
	own := strings.TrimSuffix(base, "/")
	for name, got := range map[string]int{
		"a read-only page":   post(viewer, "stop", own, a.csrfToken()),
		"another site":       post(owner, "stop", "http://other.test", a.csrfToken()),
		"no origin":          post(owner, "stop", "", a.csrfToken()),
		"no token":           post(owner, "stop", own, ""),
		"a token of another": post(owner, "stop", own, address{Token: "other"}.csrfToken()),
	} {
		assert.Equal(t, http.StatusForbidden, got, name)
	}
	assert.Equal(t, http.StatusInternalServerError, post(owner, "start", own, a.csrfToken()), "it runs")
	assert.Empty(t, cloud.changes())
	assert.Equal(t, http.StatusOK, post(owner, "stop", own, a.csrfToken()))
	assert.Equal(t, []string{"/v1/instances/i-1/stop"}, cloud.changes())
}

// A page that is open finds the next agent's at the same address, with the same cookie.
func TestPageKeepsItsAddress(t *testing.T) {
	l := newLab(t)
	var urls []string
	for range 2 {
		t.Run("", func(t *testing.T) { urls = append(urls, serve(t, l)) })
	}
	assert.Equal(t, urls[0], urls[1])
}

// The stream has what was recorded, and then what comes.
func TestStream(t *testing.T) {
	l := newLab(t)
	log, err := scene.OpenLog(SceneFile(l))
	require.NoError(t, err)
	show := func(state string) {
		require.NoError(t, log.Add(scene.Change{Time: time.Now(), Thing: &scene.Thing{ID: "node/a", State: state}}))
	}
	show("waits")
	require.NoError(t, l.Timeline().Add(timeline.Change{Source: timeline.SourceLab, Subject: "node/a", What: "happened"}))
	url := serve(t, l)
	browser := newBrowser(t)
	visit(t, browser, url, nil)
	base, _, _ := strings.Cut(url, "?")
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, base+"stream", nil)
	require.NoError(t, err)
	resp, err := browser.Do(req)
	require.NoError(t, err)
	defer func() { _ = resp.Body.Close() }()
	stream := bufio.NewScanner(resp.Body)
	stream.Buffer(nil, 1<<20)
	seen := func(want func(batch) bool) {
		t.Helper()
		for stream.Scan() {
			data, ok := strings.CutPrefix(stream.Text(), "data: ")
			if !ok {
				continue
			}
			var b batch
			require.NoError(t, json.Unmarshal([]byte(data), &b))
			if want(b) {
				return
			}
		}
		require.Fail(t, "the stream ended", "%v", stream.Err())
	}
	has := func(state string) func(batch) bool {
		return func(b batch) bool { return len(b.Scene) > 0 && b.Scene[len(b.Scene)-1].Thing.State == state }
	}
	seen(func(b batch) bool { return b.Reset && has("waits")(b) })
	seen(func(b batch) bool { return len(b.Story) == 1 && b.Story[0].What == "happened" })
	show("Ready")
	seen(has("Ready"))
	require.NoError(t, os.Remove(SceneFile(l)))
	_, err = scene.OpenLog(SceneFile(l))
	require.NoError(t, err)
	seen(func(b batch) bool { return b.Reset })
}

// Texts of strangers stay text in a recording, too.
func TestRecordingEscapesTexts(t *testing.T) {
	const hostile = `</script><script>alert(1)</script>`
	var page bytes.Buffer
	require.NoError(t, writeRecording(&page, recording{
		Lab: hostile, Scene: []scene.Change{{Thing: &scene.Thing{ID: "pod/" + hostile, Reason: hostile}}},
	}))
	assert.NotContains(t, page.String(), hostile)
	assert.Contains(t, page.String(), recordingElement)
}
