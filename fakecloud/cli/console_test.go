package cli_test

import (
	"bufio"
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/fakecloud/client"
	"github.com/ccmlab/ccmlab/fakecloud/console/scene"
	"github.com/ccmlab/ccmlab/fakecloud/console/story"
	"github.com/ccmlab/ccmlab/fakecloud/internal/must"
)

// pageVisit is a page that has a session.
type pageVisit struct {
	base, secret string
	changes      bool
}

// openPage opens the link that `fakecloud console` prints, as the page does.
func openPage(t *testing.T, link string) pageVisit {
	t.Helper()
	base, secret, ok := strings.Cut(strings.TrimSpace(link), "/#link=")
	require.True(t, ok, link)
	_, answer := pageVisit{base: base, secret: secret}.send(t, http.MethodPost, "/session", base[:strings.LastIndex(base, "/")])
	var session struct {
		Secret  string
		Changes bool
	}
	require.NoError(t, json.NewDecoder(answer).Decode(&session))
	return pageVisit{base, session.Secret, session.Changes}
}

// send sends a request of the page. Its answer's body is closed when the test ends.
func (v pageVisit) send(t *testing.T, method, path, origin string) (status int, body io.ReadCloser) {
	t.Helper()
	req := must.Do(http.NewRequestWithContext(t.Context(), method, v.base+path, nil))(t)
	req.Header.Set("Authorization", "Bearer "+v.secret)
	if origin != "" {
		req.Header.Set("Origin", origin)
	}
	resp, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	t.Cleanup(func() { _ = resp.Body.Close() })
	return resp.StatusCode, resp.Body
}

// awaitBound bounds how long the page may take to tell.
const awaitBound = time.Minute

// await reads the page's stream until it has told all of these.
func (v pageVisit) await(t *testing.T, things map[string]string, operations ...string) {
	t.Helper()
	_, body := v.send(t, http.MethodGet, "/stream", "")
	defer func() { _ = body.Close() }()
	defer time.AfterFunc(awaitBound, func() { _ = body.Close() }).Stop() // The stream has no end.
	seen := scene.Scene{}
	var called []string
	stream := bufio.NewScanner(body)
	stream.Buffer(nil, 1<<20)
	for stream.Scan() {
		data, isData := strings.CutPrefix(stream.Text(), "data: ")
		var b struct {
			Scene []scene.Change
			Story []story.Entry
		}
		if !isData {
			continue
		}
		require.NoError(t, json.Unmarshal([]byte(data), &b))
		for _, c := range b.Scene {
			seen.Apply(c)
		}
		for _, e := range b.Story {
			if e.Call != nil {
				called = append(called, e.Caller+" "+e.What)
			}
		}
		states := map[string]string{}
		for id := range things {
			states[id] = seen[id].State
		}
		if assert.ObjectsAreEqual(things, states) && len(called) >= len(operations) {
			assert.Subset(t, called, operations)
			return
		}
	}
	require.Fail(t, "the stream ended", "%v; %v", stream.Err(), seen.Objects())
}

// act posts an act, as the page does unless origin is another's.
func (v pageVisit) act(t *testing.T, origin string, query url.Values) (status int, said string) {
	t.Helper()
	status, body := v.send(t, http.MethodPost, "/acts.json?"+query.Encode(), origin)
	return status, string(must.Do(io.ReadAll(body))(t))
}

// The page of a cloud alone shows what happens, and its buttons do what their commands do. A viewer's
// token opens one without buttons.
func TestPageOfTheCloud(t *testing.T) {
	p := startServe(t, t.TempDir(), "--profile", "instant")
	ok, _ := p.commandRunners(t)
	ok("instances", "create", "a", "--wait")
	ok("faults", "create", "--token", "ccm", "--status", "503")
	page := openPage(t, ok("console"))
	page.await(t, map[string]string{"instance/a": "running"}, "operator createInstance")
	for _, path := range []string{"/console/", "/openapi.yaml"} {
		req := must.Do(http.NewRequestWithContext(t.Context(), http.MethodGet, p.url+path, nil))(t)
		req.Host = "rebound.example"
		resp, err := http.DefaultClient.Do(req)
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		assert.Equal(t, http.StatusMisdirectedRequest, resp.StatusCode, path)
	}

	create := url.Values{"verb": {"create an instance"}, "input": {"nebula-1b", "large"}}
	status, said := page.act(t, "http://other.test", create)
	assert.Equal(t, http.StatusForbidden, status, said)
	status, said = page.act(t, p.url, url.Values{"verb": {"create an instance"}, "input": {"nebula-9", "large"}})
	assert.Equal(t, http.StatusInternalServerError, status)
	assert.Contains(t, said, "nebula-9")
	status, said = page.act(t, p.url, create)
	assert.Equal(t, http.StatusOK, status, said)
	assert.Contains(t, ok("instances", "list"), "nebula-1b")
	status, said = page.act(t, p.url, url.Values{"subject": {"instance/a"}, "verb": {"stop"}})
	assert.Equal(t, http.StatusOK, status, said)
	page.await(t, map[string]string{"instance/a": "stopped"}, "operator stopInstance")

	viewer := filepath.Join(t.TempDir(), "viewer")
	ok("tokens", "create", "watcher", "--role", "viewer", "--out", viewer)
	watcher := openPage(t, ok("console", "--token-file", viewer))
	assert.True(t, page.changes)
	assert.False(t, watcher.changes)
	status, _ = watcher.act(t, p.url, create)
	assert.Equal(t, http.StatusForbidden, status)
	watcher.await(t, map[string]string{"instance/a": "stopped"})
	assert.Len(t, must.Do(p.client.ListInstances(t.Context(), client.InstanceFilter{}))(t), 2)
}

// A page ends with the token whose link opened it, its open stream included, and when its links are renewed.
func TestPageEndsWithItsToken(t *testing.T) {
	p := startServe(t, t.TempDir(), "--profile", "instant")
	ok, _ := p.commandRunners(t)
	for name, end := range map[string]func(token, file string){
		"deleted": func(token, _ string) { ok("tokens", "delete", token) },
		"renewed": func(_, file string) { ok("console", "--renew", "--token-file", file) },
	} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "viewer")
			ok("tokens", "create", name, "--role", "viewer", "--out", file)
			link := ok("console", "--token-file", file)
			assert.NotContains(t, link, strings.TrimSpace(string(must.Do(os.ReadFile(file))(t))))
			page := openPage(t, link)
			status, stream := page.send(t, http.MethodGet, "/stream", "")
			require.Equal(t, http.StatusOK, status)
			end(name, file)
			must.Do(io.Copy(io.Discard, stream))(t)
			status, refusal := page.send(t, http.MethodGet, "/stream", "")
			assert.Equal(t, http.StatusUnauthorized, status)
			assert.Contains(t, string(must.Do(io.ReadAll(refusal))(t)), "type: fakecloud console")
		})
	}
}

// A fault by which all calls fail is seen on the page, and ended there.
func TestPageWhileAllCallsFail(t *testing.T) {
	p := startServe(t, t.TempDir(), "--profile", "instant")
	ok, fails := p.commandRunners(t)
	ok("instances", "create", "a", "--wait")
	address := ok("console")
	id := strings.TrimSpace(ok("faults", "create", "--status", "503", "-o", "json"))
	var fault struct{ ID string }
	require.NoError(t, json.Unmarshal([]byte(id), &fault))
	fails(1, "503", "instances", "list")
	page := openPage(t, address)
	page.await(t, map[string]string{"fault/" + fault.ID: "in force", "instance/a": ""})
	status, said := page.act(t, p.url, url.Values{"subject": {"fault/" + fault.ID}, "verb": {"end"}})
	require.Equal(t, http.StatusOK, status, said)
	page.await(t, map[string]string{"fault/" + fault.ID: "", "instance/a": "running"})

	status, _ = page.send(t, http.MethodGet, "/stream", "")
	require.Equal(t, http.StatusOK, status)
	require.NoError(t, p.cmd.Process.Signal(syscall.SIGTERM))
	require.NoError(t, <-p.exited, "pages that are open are left")
}
