package console

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/cookiejar"
	"os"
	"path/filepath"
	"strings"
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

// quietCluster has no component, and a cloud that does not answer.
type quietCluster struct {
	cluster.Cluster
	token string
}

func (quietCluster) Components(context.Context) ([]cluster.Component, error) { return nil, nil }

func (q quietCluster) Cloud() cluster.Cloud {
	return cluster.Cloud{URL: "http://127.0.0.1:1", Dir: filepath.Dir(q.token)}
}

// newLab is a lab of which only records exist.
func newLab(t *testing.T) *lab.Lab {
	t.Helper()
	st, err := state.CreateDir(t.TempDir())
	require.NoError(t, err)
	st.StartedAt = time.Now()
	l := &lab.Lab{State: st, Cluster: quietCluster{token: st.Path("cloud")}, Host: process.Host{Lab: st.Path()}}
	require.NoError(t, os.WriteFile(l.Cluster.Cloud().TokenFile(cluster.CallerLab), []byte("token"), 0o600))
	require.NoError(t, l.Timeline().Create())
	return l
}

// serve serves the lab's page until the test ends, and returns where.
func serve(t *testing.T, l *lab.Lab) (url string) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- Serve(ctx, l, slog.New(slog.DiscardHandler)) }()
	t.Cleanup(func() {
		cancel()
		assert.NoError(t, <-done)
	})
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		var err error
		url, err = PageURL(l)
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
	for _, path := range []string{"", "page.js", "stream", "scene.json", "explain.json?subject=node/a"} {
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
	assert.Equal(t, http.StatusMethodNotAllowed, status(browser, base, func(r *http.Request) { r.Method = http.MethodPost }))
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
