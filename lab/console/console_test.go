package console

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"log/slog"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/fakecloud/console/scene"
	"github.com/ccmlab/ccmlab/lab"
	"github.com/ccmlab/ccmlab/lab/cluster"
	"github.com/ccmlab/ccmlab/lab/console/labscene"
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

func (quietCluster) Traits() cluster.Traits { return cluster.Traits{} }

func (quietCluster) Kubeconfig() string { return "kubeconfig" }

// newLab is a lab of which only records exist.
func newLab(t testing.TB) *lab.Lab {
	t.Helper()
	st, err := state.CreateDir(t.TempDir())
	require.NoError(t, err)
	st.StartedAt = time.Now()
	at := cluster.Cloud{URL: "http://127.0.0.1:1", Dir: st.Path()}
	l := &lab.Lab{State: st, Cluster: quietCluster{cloud: at}, Host: process.Host{Lab: st.Path()}}
	for _, caller := range []string{cluster.CallerLab, cluster.CallerOperator} {
		require.NoError(t, os.WriteFile(at.TokenFile(caller), []byte("token"), 0o600))
	}
	require.NoError(t, l.Timeline().Create())
	return l
}

// noteCommands puts a program fakecloud in the way that notes its arguments. It returns them, one command a
// line.
func noteCommands(t *testing.T) (noted func() string) {
	t.Helper()
	dir := t.TempDir()
	file := filepath.Join(dir, "noted")
	script := "#!/bin/sh\necho \"$@\" >> " + file + "\n"
	require.NoError(t, os.WriteFile(filepath.Join(dir, "fakecloud"), []byte(script), 0o700)) //nolint:gosec // It is run.
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	return func() string {
		text, err := os.ReadFile(file)
		if !errors.Is(err, fs.ErrNotExist) {
			require.NoError(t, err)
		}
		return string(text)
	}
}

// testGuide is a lesson of one task.
func testGuide(context.Context) (any, error) {
	return map[string]any{
		"title": "A lesson", "opening": "<p>It <em>begins</em>.</p>",
		"tasks": []map[string]any{{"title": "Do it", "do": "<p>Now.</p>", "current": true}, {"title": "Then"}},
	}, nil
}

// recorded is the picture as the lab's record has it.
type recorded struct {
	t   testing.TB
	lab *lab.Lab
}

func (r recorded) scene() scene.Scene {
	changes, err := labscene.Read(SceneFile(r.lab))
	assert.NoError(r.t, err)
	return scene.Fold(changes)
}

func (r recorded) Get(id string) (t scene.Thing, ok bool) { t, ok = r.scene()[id]; return t, ok }

func (r recorded) Things() []scene.Thing { return r.scene().Things() }

// serve serves the lab's page until the test ends, and returns where.
func serve(t testing.TB, l *lab.Lab) (url string) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- Serve(ctx, l, recorded{t, l}, testGuide, slog.New(slog.DiscardHandler)) }()
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

func bodyOf(t *testing.T, c *http.Client, url string) string {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	require.NoError(t, err)
	resp, err := c.Do(req)
	require.NoError(t, err)
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	return string(body)
}

func newBrowser(t *testing.T) *http.Client {
	t.Helper()
	jar, err := cookiejar.New(nil)
	require.NoError(t, err)
	return &http.Client{Jar: jar}
}

// The tokens are two, and the page has names of its own.
func TestPageIsGuarded(t *testing.T) {
	l := newLab(t)
	noted := noteCommands(t)
	log, err := labscene.OpenLog(SceneFile(l))
	require.NoError(t, err)
	require.NoError(t, log.Add(scene.Change{Time: time.Now(), Thing: machine("running", scene.LevelOK)}))
	url := serve(t, l)
	base, _, _ := strings.Cut(url, "?")
	a, err := readAddress(l.State.Path())
	require.NoError(t, err)
	assert.Equal(t, http.StatusUnauthorized, visit(t, newBrowser(t), base, nil).StatusCode)
	owner, viewer := newBrowser(t), newBrowser(t)
	visit(t, owner, url, nil)
	visit(t, viewer, a.urlWith(a.ReadOnlyToken), nil)
	assert.Equal(t, http.StatusOK, visit(t, viewer, base, nil).StatusCode)
	rebound := visit(t, owner, base, func(r *http.Request) { r.Host = "rebound.test" })
	assert.Equal(t, http.StatusMisdirectedRequest, rebound.StatusCode)
	csrf := regexp.MustCompile(`name="csrf" content="([^"]+)"`).FindStringSubmatch(bodyOf(t, owner, base))
	require.NotNil(t, csrf)
	stop := func(c *http.Client) int {
		return visit(t, c, base+"acts.json?subject=instance/node-1&verb=stop", func(r *http.Request) {
			r.Method = http.MethodPost
			r.Header.Set("Origin", strings.TrimSuffix(base, "/"))
			r.Header.Set("X-Csrf-Token", csrf[1])
		}).StatusCode
	}
	assert.Equal(t, http.StatusForbidden, stop(viewer))
	assert.Empty(t, noted())

	window, err := OpenWindow(l.State.Path())
	require.NoError(t, err)
	things, err := window.Things(t.Context())
	require.NoError(t, err)
	assert.Equal(t, []scene.Thing{*machine("running", scene.LevelOK)}, things)
	room := httptest.NewServer(window.Handler("/seats/a"))
	defer room.Close()
	shown := visit(t, http.DefaultClient, room.URL+"/seats/a/", nil)
	assert.Equal(t, http.StatusOK, shown.StatusCode)
	assert.Contains(t, shown.Header.Get("Content-Security-Policy"), "frame-ancestors 'self'")
	assert.NotContains(t, bodyOf(t, http.DefaultClient, room.URL+"/seats/a/"), "csrf")
	changing := visit(t, owner, room.URL+"/seats/a/acts.json?subject=instance/node-1&verb=stop", func(r *http.Request) {
		r.Method = http.MethodPost
	})
	assert.Equal(t, http.StatusMethodNotAllowed, changing.StatusCode)

	assert.Equal(t, http.StatusOK, stop(owner))
	assert.Equal(t, "instances stop node-1\n", noted())
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

// labBatch is a console.Batch as a page reads it.
type labBatch struct {
	Reset bool             `json:"reset"`
	Scene []scene.Change   `json:"scene"`
	Story []timeline.Entry `json:"story"`
}

// The stream has what was recorded, and then what comes.
func TestStream(t *testing.T) {
	l := newLab(t)
	log, err := labscene.OpenLog(SceneFile(l))
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
	seen := func(want func(labBatch) bool) {
		t.Helper()
		for stream.Scan() {
			data, ok := strings.CutPrefix(stream.Text(), "data: ")
			if !ok {
				continue
			}
			var b labBatch
			require.NoError(t, json.Unmarshal([]byte(data), &b))
			if want(b) {
				return
			}
		}
		require.Fail(t, "the stream ended", "%v", stream.Err())
	}
	has := func(state string) func(labBatch) bool {
		return func(b labBatch) bool { return len(b.Scene) > 0 && b.Scene[len(b.Scene)-1].Thing.State == state }
	}
	seen(func(b labBatch) bool { return b.Reset && has("waits")(b) })
	seen(func(b labBatch) bool { return len(b.Story) == 1 && b.Story[0].What == "happened" })
	show("Ready")
	seen(has("Ready"))
	require.NoError(t, os.Remove(SceneFile(l)))
	_, err = labscene.OpenLog(SceneFile(l))
	require.NoError(t, err)
	seen(func(b labBatch) bool { return b.Reset })
}
