package console

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/fakecloud/console/scene"
	"github.com/ccmlab/ccmlab/lab"
	"github.com/ccmlab/ccmlab/lab/cluster"
	"github.com/ccmlab/ccmlab/lab/cluster/local"
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
		"title": "A lesson", "opening": `<p style="color: rgb(1, 2, 3)">It <em>begins</em>.</p>`,
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

func (r recorded) Get(id string) (t scene.Object, ok bool) { t, ok = r.scene()[id]; return t, ok }

func (r recorded) Objects() []scene.Object { return r.scene().Objects() }

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
		url, err = Link(t.Context(), l, false, false)
		assert.NoError(c, err)
	}, bound, 10*time.Millisecond)
	return url
}

// ask sends a request with a secret, and returns the answer's status and body.
func ask(t *testing.T, method, url, secret string) (status int, body string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), bound) // A stream that opens has no end.
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, url, nil)
	require.NoError(t, err)
	req.Header.Set("Authorization", "Bearer "+secret)
	resp, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	defer func() { _ = resp.Body.Close() }()
	read, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	return resp.StatusCode, string(read)
}

// exchange exchanges a link for the secret of a session, as the page does.
func exchange(t *testing.T, link string) (base, secret string) {
	t.Helper()
	base, link, _ = strings.Cut(link, "#link=")
	_, body := ask(t, http.MethodPost, base+"session", link)
	var session struct{ Secret string }
	require.NoError(t, json.Unmarshal([]byte(body), &session), body)
	return base, session.Secret
}

// The page has one name. Its links are of two kinds, and a window shows it to everybody.
func TestPageIsGuarded(t *testing.T) {
	l := newLab(t)
	noted := noteCommands(t)
	log, err := labscene.OpenLog(SceneFile(l))
	require.NoError(t, err)
	require.NoError(t, log.Add(scene.Change{Time: time.Now(), Object: machine("running", scene.LevelOK)}))
	base, owner := exchange(t, serve(t, l))
	readOnly, err := Link(t.Context(), l, true, false)
	require.NoError(t, err)
	_, viewer := exchange(t, readOnly)
	status, _ := ask(t, http.MethodGet, base+"scene.json", "")
	assert.Equal(t, http.StatusUnauthorized, status)
	status, _ = ask(t, http.MethodGet, base+"scene.json", viewer)
	assert.Equal(t, http.StatusOK, status)
	status, _ = ask(t, http.MethodGet, strings.Replace(base, "127.0.0.1", "localhost", 1), owner)
	assert.Equal(t, http.StatusMisdirectedRequest, status, "localhost may be another server's ::1")
	const stop = "acts.json?subject=instance/node-1&verb=stop"
	status, _ = ask(t, http.MethodPost, base+stop, viewer)
	assert.Equal(t, http.StatusForbidden, status)
	assert.Empty(t, noted())

	window, err := OpenWindow(l.State.Path())
	require.NoError(t, err)
	objects, err := window.Objects(t.Context())
	require.NoError(t, err)
	assert.Equal(t, []scene.Object{*machine("running", scene.LevelOK)}, objects)
	room := httptest.NewServer(window.Handler("/seats/a"))
	defer room.Close()
	shown, err := http.Get(room.URL + "/seats/a/")
	require.NoError(t, err)
	require.NoError(t, shown.Body.Close())
	assert.Empty(t, shown.Header.Get("Content-Security-Policy"), "the room sets it")
	for path, want := range map[string]int{"scene.json": http.StatusOK, stop: http.StatusForbidden} {
		status, _ = ask(t, http.MethodGet, room.URL+"/seats/a/"+path, owner)
		assert.Equal(t, want, status, path)
	}
	status, _ = ask(t, http.MethodPost, room.URL+"/seats/a/"+stop, owner)
	assert.Equal(t, http.StatusMethodNotAllowed, status)

	status, _ = ask(t, http.MethodPost, base+stop, owner)
	assert.Equal(t, http.StatusOK, status)
	assert.Equal(t, "instances stop node-1\n", noted())
}

// assertOpenNothing checks that secrets open nothing of a page, which says what to type.
func assertOpenNothing(t *testing.T, page string, secrets []string) {
	t.Helper()
	for _, secret := range secrets {
		for path, method := range map[string]string{
			"scene.json": http.MethodGet, "stream": http.MethodGet, "links": http.MethodPost, "session": http.MethodPost,
			"acts.json?subject=instance/node-1&verb=stop": http.MethodPost,
		} {
			status, said := ask(t, method, page+path, secret)
			assert.Equal(t, http.StatusUnauthorized, status, "%s with %s", path, secret)
			assert.Contains(t, said, "type: lab console --name")
		}
	}
}

// serveAt serves the lab's page at an address, as an agent does that is given the same port again.
func serveAt(t *testing.T, l *lab.Lab, listener net.Listener) (page string) {
	t.Helper()
	a := address{Address: listener.Addr().String(), Key: "k", ReadOnlyKey: "r"}
	next := httptest.NewUnstartedServer(newHandler(l, a, recorded{t, l}, testGuide, slog.New(slog.DiscardHandler)))
	require.NoError(t, next.Listener.Close())
	next.Listener = listener
	next.Start()
	t.Cleanup(next.Close)
	t.Cleanup(next.CloseClientConnections)
	return a.url()
}

// What opened the page opens nothing after its links were renewed, and nothing of the next agent's page.
func TestLinksAreReplaced(t *testing.T) {
	l := newLab(t)
	var secrets []string
	var old address
	t.Run("first agent", func(t *testing.T) {
		link := serve(t, l)
		readOnly, err := Link(t.Context(), l, true, false)
		require.NoError(t, err)
		for _, link := range []string{link, readOnly} {
			_, session := exchange(t, link)
			secrets = append(secrets, session, strings.SplitAfter(link, "#link=")[1])
		}
		link, err = Link(t.Context(), l, false, true)
		require.NoError(t, err)
		page, session := exchange(t, link)
		assertOpenNothing(t, page, secrets)
		old, err = readAddress(l.State.Path())
		require.NoError(t, err)
		secrets = append(secrets, session, strings.SplitAfter(link, "#link=")[1], old.Key, old.ReadOnlyKey)
	})
	_, err := Link(t.Context(), l, false, false)
	require.ErrorContains(t, err, "serves no page", "nobody who takes the port makes a link")
	listener, err := net.Listen("tcp", old.Address)
	require.NoError(t, err)
	assertOpenNothing(t, serveAt(t, l, listener), secrets)
	page, _, _ := strings.Cut(serve(t, l), "#")
	assert.NotEqual(t, old.url(), page)
	assertOpenNothing(t, page, secrets)
}

// A recording that is served is found by who knows its address.
func TestServedRecording(t *testing.T) {
	urls := make(chan string, 1)
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() {
		served <- ServeRecording(ctx, writePageFile(t, busyRecording()), func(url string) { urls <- url })
	}()
	url := <-urls
	status, page := ask(t, http.MethodGet, url, "")
	assert.Equal(t, http.StatusOK, status)
	assert.Contains(t, page, "Lab busy")
	for _, other := range []string{strings.Join(strings.Split(url, "/")[:3], "/") + "/", url + "x"} {
		status, _ = ask(t, http.MethodGet, other, "")
		assert.Equal(t, http.StatusNotFound, status, other)
	}
	status, _ = ask(t, http.MethodGet, strings.Replace(url, "127.0.0.1", "localhost", 1), "")
	assert.Equal(t, http.StatusNotFound, status)
	cancel()
	assert.NoError(t, <-served)
}

// A CCM is replaced by a program beside the lab's own. The page takes no path.
func TestCCMIsReplacedByAProgramOfTheLab(t *testing.T) {
	dir := t.TempDir()
	for name, mode := range map[string]fs.FileMode{
		"ccm": 0o700, "my-ccm": 0o700, "x-cloud-controller-manager": 0o700, "ccm-notes": 0o600, "evil.sh": 0o700,
	} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), nil, mode))
	}
	assert.Equal(t, []string{filepath.Join(dir, "my-ccm"), filepath.Join(dir, "x-cloud-controller-manager")}, ccmsIn(dir))

	l := newLab(t)
	log, err := labscene.OpenLog(SceneFile(l))
	require.NoError(t, err)
	require.NoError(t, log.Add(scene.Change{Time: time.Now(), Object: &scene.Object{
		ID: "component/ccm", Kind: labscene.KindComponent, Name: local.ComponentCCM, Level: scene.LevelOK,
	}}))
	page, owner := exchange(t, serve(t, l))
	for _, inputs := range [][]string{
		{filepath.Join(dir, "evil.sh"), "this cloud's API"}, {"this cloud's API", filepath.Join(dir, "evil.sh")},
	} {
		query := url.Values{"subject": {"component/ccm"}, "verb": {"replace the CCM"}, "input": inputs}
		status, said := ask(t, http.MethodPost, page+"acts.json?"+query.Encode(), owner)
		assert.Equal(t, http.StatusInternalServerError, status)
		assert.Contains(t, said, "there is no ")
	}
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
		require.NoError(t, log.Add(scene.Change{Time: time.Now(), Object: &scene.Object{ID: "node/a", State: state}}))
	}
	show("waits")
	require.NoError(t, l.Timeline().Add(timeline.Change{Source: timeline.SourceLab, Subject: "node/a", What: "happened"}))
	base, secret := exchange(t, serve(t, l))
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, base+"stream", nil)
	require.NoError(t, err)
	req.Header.Set("Authorization", "Bearer "+secret)
	resp, err := http.DefaultClient.Do(req)
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
		return func(b labBatch) bool { return len(b.Scene) > 0 && b.Scene[len(b.Scene)-1].Object.State == state }
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
