package console

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/fakecloud/console/scene"
)

// visitor is a page of two credentials, on which one thing can be done, and who visits it.
type visitor struct {
	t *testing.T
	*Page
	http.Handler
	mu sync.Mutex
	// access is what credentials open.
	access map[string]Access
	// ran has the commands.
	ran [][]string
}

func (v *visitor) accessOf(_ context.Context, credential string) Access {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.access[credential]
}

// revoke ends a credential.
func (v *visitor) revoke(credential string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	delete(v.access, credential)
}

func newVisitor(t *testing.T) *visitor {
	v := &visitor{t: t, access: map[string]Access{"reads": MayRead, "changes": MayChange}}
	v.Page = &Page{
		Title: "test", Log: slog.New(slog.DiscardHandler),
		Guard: Guard{
			IsHost:       func(host string) bool { return host == "page.test" || host == "alias.test" },
			Access:       v.accessOf,
			LinkLifetime: time.Hour, LinkCommand: "program link",
		},
		Acts: func(context.Context, Session, string) ([]Act, error) {
			return []Act{{Verb: "stop", Command: []string{"program", "stop", "a"}}}, nil
		},
		Run: func(_ context.Context, _ Session, command []string) error {
			v.ran = append(v.ran, command)
			return nil
		},
		Stream: func(ctx context.Context, _ Session, send func(Batch) error) error {
			assert.NoError(t, send(Batch{}))
			<-ctx.Done()
			return ctx.Err()
		},
	}
	v.Handler = v.Page.Handler()
	return v
}

// send sends a request to a host of the page. The header is Origin, unless origin is "".
func (v *visitor) send(method, url, secret, origin string) *httptest.ResponseRecorder {
	r := httptest.NewRequestWithContext(v.t.Context(), method, url, nil)
	if secret != "" {
		r.Header.Set("Authorization", "Bearer "+secret)
	}
	if origin != "" {
		r.Header.Set("Origin", origin)
	}
	w := httptest.NewRecorder()
	v.ServeHTTP(w, r)
	assert.Empty(v.t, w.Header().Values("Set-Cookie"), url)
	return w
}

// link gets a link by a credential.
func (v *visitor) link(credential, query string) (secret string) {
	var made newLink
	w := v.send(http.MethodPost, "http://page.test/links"+query, credential, "")
	require.NoError(v.t, json.Unmarshal(w.Body.Bytes(), &made), w.Body)
	return made.Link
}

// open exchanges a link for a session.
func (v *visitor) open(link string) (secret string) {
	var session struct{ Secret string }
	w := v.send(http.MethodPost, "http://page.test/session", link, "http://page.test")
	require.NoError(v.t, json.Unmarshal(w.Body.Bytes(), &session), w.Body)
	return session.Secret
}

func (v *visitor) status(path, secret string) int {
	return v.send(http.MethodGet, "http://page.test"+path, secret, "").Code
}

// The page's shell has no secret and is for everybody, under the page's own names. All else is not.
func TestPageIsGuarded(t *testing.T) {
	v := newVisitor(t)
	link := v.link("changes", "")
	session := v.open(link)
	for _, path := range []string{"/", "/page.js", "/page.css"} {
		shown := v.send(http.MethodGet, "http://page.test"+path, "", "")
		assert.Equal(t, http.StatusOK, shown.Code, path)
		assert.Contains(t, shown.Header().Get("Content-Security-Policy"), "default-src 'self'")
		assert.Equal(t, http.StatusMisdirectedRequest, v.send(http.MethodGet, "http://rebound.test"+path, session, "").Code)
	}
	for _, secret := range []string{"", "guess", link} {
		assert.Equal(t, http.StatusUnauthorized, v.status("/acts.json", secret), secret)
		assert.Equal(t, http.StatusUnauthorized, v.status("/stream", secret), secret)
	}
	for _, secret := range []string{"", "guess", session} {
		refused := v.send(http.MethodPost, "http://page.test/session", secret, "http://page.test")
		assert.Equal(t, http.StatusUnauthorized, refused.Code, secret)
		assert.Contains(t, refused.Body.String(), "expired or was revoked. For a link that opens it, type: program link")
		assert.Equal(t, http.StatusUnauthorized, v.send(http.MethodPost, "http://page.test/links", secret, "").Code, secret)
	}
	assert.Equal(t, http.StatusOK, v.status("/acts.json", session))
	other := v.send(http.MethodGet, "http://alias.test/acts.json", session, "")
	assert.Equal(t, http.StatusUnauthorized, other.Code, "a session is bound to the name under which it began")
	other = v.send(http.MethodPost, "http://alias.test/session", link, "")
	assert.Equal(t, http.StatusUnauthorized, other.Code, "as is a link")
}

// What changes something needs a page that is not read-only, and is none of another site's.
func TestActsAreGuarded(t *testing.T) {
	v := newVisitor(t)
	post := func(secret, verb, origin string) int {
		return v.send(http.MethodPost, "http://page.test/acts.json?verb="+verb, secret, origin).Code
	}
	const own = "http://page.test"
	changes, reads := v.open(v.link("changes", "")), v.open(v.link("reads", ""))
	assert.Equal(t, http.StatusForbidden, post(reads, "stop", own))
	assert.Equal(t, http.StatusForbidden, v.status("/acts.json", reads))
	assert.Equal(t, http.StatusForbidden, post(changes, "stop", "http://other.test"))
	assert.Equal(t, http.StatusForbidden, post(changes, "stop", "https://page.test"))
	assert.Equal(t, http.StatusUnauthorized, post("", "stop", own))
	assert.Equal(t, http.StatusInternalServerError, post(changes, "start", own), "it cannot be started")
	assert.Empty(t, v.ran)
	assert.Equal(t, http.StatusOK, post(changes, "stop", own))
	assert.Equal(t, [][]string{{"program", "stop", "a"}}, v.ran)
}

// Links and sessions end: by their age, when they are renewed, and with their credential. So do open streams.
func TestSessionsEnd(t *testing.T) {
	for name, c := range map[string]struct {
		end                func(v *visitor)
		link, session, all int
	}{
		"a link by its age": {func(*visitor) { time.Sleep(time.Hour) }, http.StatusUnauthorized, http.StatusOK, http.StatusOK},
		"a session by its age": {
			func(*visitor) { time.Sleep(SessionLifetime) }, http.StatusUnauthorized, http.StatusUnauthorized,
			http.StatusUnauthorized,
		},
		"renewed": {
			func(v *visitor) { v.link("changes", "?renew") }, http.StatusUnauthorized, http.StatusUnauthorized, http.StatusOK,
		},
		"its credential is revoked": {
			func(v *visitor) { v.revoke("changes") }, http.StatusUnauthorized, http.StatusUnauthorized, http.StatusOK,
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				v := newVisitor(t)
				link, other := v.link("changes", ""), v.open(v.link("reads", ""))
				session := v.open(link)
				streamed := make(chan int, 1)
				go func() { streamed <- v.status("/stream", session) }()
				synctest.Wait()
				c.end(v)
				time.Sleep(2 * recheckInterval)
				synctest.Wait()
				assert.Equal(t, c.session == http.StatusOK, len(streamed) == 0, "the stream goes on as long as the session")
				assert.Equal(t, c.link, v.send(http.MethodPost, "http://page.test/session", link, "http://page.test").Code)
				assert.Equal(t, c.session, v.status("/acts.json", session))
				if c.all == http.StatusOK {
					assert.Equal(t, http.StatusForbidden, v.status("/acts.json", other), "that of another goes on")
				}
				v.revoke("changes") // It ends the stream.
				<-streamed
			})
		})
	}
}

// A link opens so many sessions at a time: then the oldest ends, and none of another credential.
func TestSessionsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := newVisitor(t)
		link, other := v.link("reads", ""), v.open(v.link("changes", ""))
		var sessions []string
		for range maxGrants + 1 {
			sessions = append(sessions, v.open(link))
			time.Sleep(time.Second) // Of the bubble's clock: which is the oldest.
		}
		assert.Equal(t, http.StatusUnauthorized, v.status("/acts.json", sessions[0]))
		for _, session := range []string{sessions[1], sessions[maxGrants]} {
			assert.Equal(t, http.StatusForbidden, v.status("/acts.json", session), "it may look on")
		}
		assert.Equal(t, http.StatusOK, v.status("/acts.json", other))
	})
}

// What answers at the address of a page need not be its server: nothing that it answers reaches a terminal as it is.
func TestLinksOfAStrangerAreEscaped(t *testing.T) {
	const hostile = "\x1b[31mred\x1b]0;title\x07 #&"
	for _, status := range []int{http.StatusOK, http.StatusTeapot} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(status)
			assert.NoError(t, json.NewEncoder(w).Encode(newLink{hostile}))
			_, _ = io.WriteString(w, hostile)
		}))
		link, err := RequestLink(t.Context(), server.Client(), server.URL+"/", "changes", false)
		server.Close()
		assert.Equal(t, status == http.StatusOK, err == nil)
		said := link + fmt.Sprint(err)
		assert.Contains(t, said, "red")
		assert.NotContains(t, said, "\x1b")
	}
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
		Title: hostile, Scene: []scene.Change{{Object: &scene.Object{ID: "pod/" + hostile, Reason: hostile}}},
	}.Write(&page))
	assert.NotContains(t, page.String(), hostile)
	assert.Contains(t, page.String(), RecordingElement)
}
