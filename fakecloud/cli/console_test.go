package cli_test

import (
	"bufio"
	"encoding/json"
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/fakecloud/client"
	"github.com/ccmlab/ccmlab/fakecloud/console/scene"
	"github.com/ccmlab/ccmlab/fakecloud/console/story"
)

// pageVisit is a browser that has opened a cloud's page.
type pageVisit struct {
	http.Client
	base, content string
}

// openPage opens the address that `fakecloud console` prints.
func openPage(t *testing.T, address string) pageVisit {
	t.Helper()
	v := pageVisit{Client: http.Client{Jar: must(cookiejar.New(nil))(t)}}
	resp, err := v.Get(strings.TrimSpace(address))
	require.NoError(t, err)
	body := must(io.ReadAll(resp.Body))(t)
	require.NoError(t, resp.Body.Close())
	require.Equal(t, http.StatusOK, resp.StatusCode, "%s", body)
	assert.Empty(t, resp.Request.URL.RawQuery, "the token is not in the address bar")
	v.base, v.content = strings.TrimSuffix(resp.Request.URL.String(), "/"), string(body)
	return v
}

// await reads the page's stream until it has told all of these.
func (v pageVisit) await(t *testing.T, things map[string]string, operations ...string) {
	t.Helper()
	resp, err := v.Get(v.base + "/stream")
	require.NoError(t, err)
	defer func() { _ = resp.Body.Close() }()
	seen := scene.Scene{}
	var called []string
	stream := bufio.NewScanner(resp.Body)
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
	require.Fail(t, "the stream ended", "%v; %v", stream.Err(), seen.Things())
}

// act posts an act, as the page does unless origin is another's.
func (v pageVisit) act(t *testing.T, origin string, query url.Values) (status int, said string) {
	t.Helper()
	csrf := regexp.MustCompile(`name="csrf" content="([^"]+)"`).FindStringSubmatch(v.content)
	req := must(http.NewRequestWithContext(t.Context(), http.MethodPost, v.base+"/acts.json?"+query.Encode(), nil))(t)
	req.Header.Set("Origin", origin)
	if csrf != nil {
		req.Header.Set("X-Csrf-Token", csrf[1])
	}
	resp, err := v.Do(req)
	require.NoError(t, err)
	defer func() { _ = resp.Body.Close() }()
	return resp.StatusCode, string(must(io.ReadAll(resp.Body))(t))
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
		req := must(http.NewRequestWithContext(t.Context(), http.MethodGet, p.url+path, nil))(t)
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
	assert.NotContains(t, watcher.content, "csrf")
	status, _ = watcher.act(t, p.url, create)
	assert.Equal(t, http.StatusForbidden, status)
	watcher.await(t, map[string]string{"instance/a": "stopped"})
	for _, path := range []string{"/", "/page.js", "/stream", "/acts.json"} {
		resp, err := http.Get(page.base + path)
		require.NoError(t, err)
		assert.NoError(t, resp.Body.Close())
		assert.Equal(t, http.StatusUnauthorized, resp.StatusCode, path)
	}
	assert.Len(t, must(p.client.ListInstances(t.Context(), client.InstanceFilter{}))(t), 2)
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

	resp, err := page.Get(page.base + "/stream")
	require.NoError(t, err)
	defer func() { _ = resp.Body.Close() }()
	require.NoError(t, p.cmd.Process.Signal(syscall.SIGTERM))
	require.NoError(t, <-p.exited, "pages that are open are left")
}
