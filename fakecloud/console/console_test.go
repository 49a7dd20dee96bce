package console

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/fakecloud/console/scene"
)

// newPage is a page of two tokens, on which one thing can be done. ran has the commands.
func newPage(ran *[][]string) *Page {
	return &Page{
		Title: "test", Log: slog.New(slog.DiscardHandler),
		Guard: Guard{
			Cookie: "session", IsHost: func(host string) bool { return host == "page.test" },
			Access: func(_ *http.Request, token string) Access {
				return map[string]Access{"reads": MayRead, "changes": MayChange}[token]
			},
		},
		Acts: func(context.Context, Session, string) ([]Act, error) {
			return []Act{{Verb: "stop", Command: []string{"program", "stop", "a"}}}, nil
		},
		Run: func(_ context.Context, _ Session, command []string) error {
			*ran = append(*ran, command)
			return nil
		},
		Stream: func(context.Context, Session, func(Batch) error) error { return errors.New("not in this test") },
	}
}

// The page opens with its tokens only, and under its own name only.
func TestPageIsGuarded(t *testing.T) {
	var ran [][]string
	page := newPage(&ran).Handler()
	get := func(path, host, cookie string) *httptest.ResponseRecorder {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+host+path, nil)
		r.AddCookie(&http.Cookie{Name: "session", Value: cookie})
		w := httptest.NewRecorder()
		page.ServeHTTP(w, r)
		return w
	}
	for _, path := range []string{"/", "/page.js", "/stream", "/acts.json"} {
		assert.Equal(t, http.StatusUnauthorized, get(path, "page.test", "guess").Code, path)
		assert.Equal(t, http.StatusMisdirectedRequest, get(path, "rebound.test", "reads").Code, path)
	}
	assert.Equal(t, http.StatusUnauthorized, get("/?token=guess", "page.test", "").Code)
	opened := get("/?token=reads", "page.test", "")
	assert.Equal(t, http.StatusSeeOther, opened.Code)
	assert.Equal(t, "/", opened.Header().Get("Location"))
	assert.Regexp(t, "^session=reads; Path=/; HttpOnly; SameSite=Strict$", opened.Header().Get("Set-Cookie"))
	shown := get("/", "page.test", "reads")
	assert.Equal(t, http.StatusOK, shown.Code)
	assert.Contains(t, shown.Header().Get("Content-Security-Policy"), "default-src 'self'")
	assert.NotContains(t, shown.Body.String(), "csrf")
	assert.Contains(t, get("/", "page.test", "changes").Body.String(), Session{Token: "changes"}.csrfToken())
}

// What changes something needs the page's own origin and its CSRF token, and more than a read-only page.
func TestActsAreGuarded(t *testing.T) {
	var ran [][]string
	page := newPage(&ran).Handler()
	post := func(cookie, verb, origin, csrf string) int {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "http://page.test/acts.json?verb="+verb, nil)
		r.AddCookie(&http.Cookie{Name: "session", Value: cookie})
		r.Header.Set("Origin", origin)
		r.Header.Set(csrfHeader, csrf)
		w := httptest.NewRecorder()
		page.ServeHTTP(w, r)
		return w.Code
	}
	const own = "http://page.test"
	csrf := Session{Token: "changes"}.csrfToken()
	for name, got := range map[string]int{
		"a read-only page":   post("reads", "stop", own, Session{Token: "reads"}.csrfToken()),
		"another site":       post("changes", "stop", "http://other.test", csrf),
		"no origin":          post("changes", "stop", "", csrf),
		"no token":           post("changes", "stop", own, ""),
		"a token of another": post("changes", "stop", own, Session{Token: "other"}.csrfToken()),
	} {
		assert.Equal(t, http.StatusForbidden, got, name)
	}
	assert.Equal(t, http.StatusInternalServerError, post("changes", "start", own, csrf), "it cannot be started")
	assert.Empty(t, ran)
	assert.Equal(t, http.StatusOK, post("changes", "stop", own, csrf))
	assert.Equal(t, [][]string{{"program", "stop", "a"}}, ran)
}

// What is written is one argument, and never a flag; what is chosen is one of the options.
func TestInputsOfActs(t *testing.T) {
	act := Act{Verb: "do", Command: []string{"program"}, Inputs: []Input{
		{Label: "zone", Options: []Option{{Label: "any"}, {"a", []string{"--zone", "a"}}}}, {Label: "name"},
	}}
	for _, c := range []struct {
		given   []string
		command []string
	}{
		{[]string{"any", "web"}, []string{"program", "web"}},
		{[]string{"a", " web; rm -rf / "}, []string{"program", "--zone", "a", "web; rm -rf /"}},
		{[]string{"b", "web"}, nil},
		{[]string{"a", "--help"}, nil},
		{[]string{"a", " "}, nil},
		{[]string{"a", string(make([]byte, maxInput+1))}, nil},
		{[]string{"a"}, nil},
	} {
		command, err := act.commandWith(c.given)
		assert.Equal(t, c.command, command, "%q", c.given)
		assert.Equal(t, c.command == nil, err != nil, "%q", c.given)
	}
}

// Texts of strangers stay text in a recording, too.
func TestRecordingEscapesTexts(t *testing.T) {
	const hostile = `</script><script>alert(1)</script>`
	var page bytes.Buffer
	require.NoError(t, Recording{
		Title: hostile, Scene: []scene.Change{{Thing: &scene.Thing{ID: "pod/" + hostile, Reason: hostile}}},
	}.Write(&page))
	assert.NotContains(t, page.String(), hostile)
	assert.Contains(t, page.String(), RecordingElement)
}
