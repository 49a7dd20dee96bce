package server_test

import (
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"path"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jonboulle/clockwork"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/fakecloud"
	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
	"github.com/ccmlab/ccmlab/fakecloud/internal/must"
	"github.com/ccmlab/ccmlab/fakecloud/server"
)

// The headers that Oracle's SDKs sign with a body: those for Go, and for TypeScript.
const (
	signedByGo         = "date (request-target) host content-length content-type x-content-sha256"
	signedByTypeScript = "x-date (request-target) host Content-Type Content-Length x-content-sha256"
	signedByReads      = "date (request-target) host"
)

var signingKeys = sync.OnceValue(func() (keys [2]*rsa.PrivateKey) {
	for i := range keys {
		var err error
		if keys[i], err = rsa.GenerateKey(rand.Reader, 2048); err != nil {
			panic(err)
		}
	}
	return keys
})

// signedCall is a call that is signed by hand.
type signedCall struct {
	method, target, body string
	headers              string // that are signed
	keyID                string // PROJECT/TOKEN/FINGERPRINT
	key                  *rsa.PrivateKey
	date                 time.Time
	form                 string // of the header Authorization: of headers, keyId and signature
}

const goForm = `Signature version="1",headers="%[1]s",keyId="%[2]s",algorithm="rsa-sha256",signature="%[3]s"`

func (c signedCall) request(t testing.TB) *http.Request {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), c.method, c.target, strings.NewReader(c.body))
	r.Host = "oci.example:8474"
	hash := sha256.Sum256([]byte(c.body))
	for _, name := range strings.Fields(c.headers) {
		switch strings.ToLower(name) {
		case "date", "x-date":
			r.Header.Set(name, c.date.UTC().Format(http.TimeFormat))
		case "content-type":
			r.Header.Set(name, "application/json")
		case "x-content-sha256":
			r.Header.Set(name, base64.StdEncoding.EncodeToString(hash[:]))
		}
	}
	var lines []string
	for _, name := range strings.Fields(strings.ToLower(c.headers)) {
		value := r.Header.Get(name)
		switch name {
		case "(request-target)":
			value = strings.ToLower(c.method) + " " + c.target
		case "host":
			value = r.Host
		case "content-length":
			value = fmt.Sprint(len(c.body))
		}
		lines = append(lines, name+": "+value)
	}
	sum := sha256.Sum256([]byte(strings.Join(lines, "\n")))
	signature := must.Do(rsa.SignPKCS1v15(nil, c.key, crypto.SHA256, sum[:]))(t)
	r.Header.Set("Authorization", fmt.Sprintf(c.form, c.headers, c.keyID, base64.StdEncoding.EncodeToString(signature)))
	return r
}

// signedFront is a front that takes signatures, which answers with what it got. The keys are of tokens of the roles.
// The cloud's clock is not the machine's.
type signedFront struct {
	*rig
	http.Handler

	clock  *clockwork.FakeClock
	api    http.Handler // of the same server
	keyIDs map[api.Role]string
}

func newSignedFront(t *testing.T, cfg server.Config) signedFront {
	t.Helper()
	clock := clockwork.NewFakeClockAt(start)
	r := newRigWith(t, func(cfg *fakecloud.Config) { cfg.Cloud.Clock = clock })
	srv := r.newAPI(t, cfg)
	f := signedFront{rig: r, clock: clock, api: srv, keyIDs: map[api.Role]string{}}
	echo := func(w http.ResponseWriter, r *http.Request) {
		body := must.Do(io.ReadAll(r.Body))(t)
		srv.AnswerJSON(w, r, http.StatusOK, r.Method+" "+string(body))
	}
	front := server.Front{
		Dialect: "signed",
		ReadKeyID: func(keyID string) (project, token, fingerprint string, ok bool) {
			parts := strings.Split(keyID, "/")
			if len(parts) != 3 {
				return "", "", "", false
			}
			return parts[0], parts[1], parts[2], true
		},
		Refuse: func(w http.ResponseWriter, r *http.Request, p api.Problem) {
			srv.AnswerJSON(w, r, p.Status, p.Detail)
		},
	}
	for _, method := range []string{"GET", "POST", "PUT", "DELETE"} {
		front.Calls = append(front.Calls, server.FrontCall{Method: method, Path: "/things/{id}", Serve: echo})
	}
	f.Handler = srv.FrontHandler(front)
	for i, role := range []api.Role{api.RoleEditor, api.RoleViewer} {
		requireOK(t)(r.CreateToken(t.Context(), r.project.ID, api.TokenCreate{Name: string(role), Role: role}))
		k := must.Do(r.AddTokenKey(
			t.Context(), r.project.ID, string(role), api.TokenKeyCreate{PublicKey: publicPEM(t, &signingKeys()[i].PublicKey)},
		))(t)
		f.keyIDs[role] = strings.Join([]string{"default", string(role), k.Fingerprint}, "/")
	}
	return f
}

// post is a valid call of the editor.
func (f signedFront) post() signedCall {
	return signedCall{
		method: "POST", target: "/things/a%20b?name=x%20y&name=z", body: `{"a": 1}`, headers: signedByGo,
		keyID: f.keyIDs[api.RoleEditor], key: signingKeys()[0], date: time.Now(), form: goForm,
	}
}

func (f signedFront) answer(r *http.Request) (status int, text string) {
	w := httptest.NewRecorder()
	f.ServeHTTP(w, r)
	return w.Code, w.Body.String()
}

func TestSignatures(t *testing.T) {
	f := newSignedFront(t, server.Config{})
	viewer := f.keyIDs[api.RoleViewer]
	const notSigned = "or not of what came here"
	reads := func(c *signedCall) { c.method, c.body, c.headers = "GET", "", signedByReads }
	later := func(by time.Duration) func(*signedCall) { return func(c *signedCall) { c.date = c.date.Add(by) } }
	inForm := func(old, to string) func(*signedCall) {
		return func(c *signedCall) { c.form = strings.Replace(c.form, old, to, 1) }
	}
	inKeyID := func(old, to string) func(*signedCall) {
		return func(c *signedCall) { c.keyID = strings.Replace(c.keyID, old, to, 1) }
	}
	unsigned := func(name string) func(*signedCall) {
		return func(c *signedCall) { c.headers = strings.Replace(c.headers+" ", name+" ", "", 1) }
	}
	header := func(name, value string) func(*http.Request) {
		return func(r *http.Request) { r.Header.Set(name, value) }
	}
	nextMinute := time.Now().UTC().Add(time.Minute).Format(http.TimeFormat)
	requestURI := func(is string) func(*http.Request) { return func(r *http.Request) { r.RequestURI = is } }
	for name, test := range map[string]struct {
		change func(*signedCall)   // before it is signed
		tamper func(*http.Request) // afterwards
		want   string              // of the refusal; "" if there is none
		status int                 // of the refusal, unless 401
	}{
		"Go SDK":                 {},
		"Go SDK, read":           {change: reads},
		"Go SDK, HEAD":           {change: func(c *signedCall) { reads(c); c.method = "HEAD" }},
		"TypeScript SDK":         {change: func(c *signedCall) { c.headers = signedByTypeScript }},
		"no body":                {change: func(c *signedCall) { c.body = "" }},
		"a header that is empty": {change: func(c *signedCall) { c.headers += " opc-retry-token" }},
		"project by ID":          {change: inKeyID("default", f.project.ID)},
		"another order and spacing": {change: func(c *signedCall) {
			c.form = `signature  signature="%[3]s" , algorithm=rsa-sha256,keyId="%[2]s", HEADERS = "%[1]s",version=1`
		}},
		"4 minutes old": {change: later(-4 * time.Minute)},
		"bearer":        {tamper: header("Authorization", "Bearer "+secret)},

		"other body": {tamper: func(r *http.Request) {
			r.Body = io.NopCloser(strings.NewReader(`{"a": 2}`))
		}, want: "the received body has the SHA-256"},
		"longer body":  {tamper: func(r *http.Request) { r.ContentLength++ }, want: notSigned},
		"other hash":   {tamper: header("X-Content-Sha256", "AAAA"), want: notSigned},
		"other path":   {tamper: requestURI("/things/c?name=x%20y&name=z"), want: notSigned},
		"decoded path": {tamper: requestURI("/things/a b?name=x%20y&name=z"), want: notSigned},
		"other query":  {tamper: requestURI("/things/a%20b?name=x%20y&name=w"), want: notSigned},
		"other host":   {tamper: func(r *http.Request) { r.Host = "other.example" }, want: `host \"other.example\"`},
		"other method": {tamper: func(r *http.Request) { r.Method = "PUT" }, want: notSigned},
		"other type":   {tamper: header("Content-Type", "text/plain"), want: notSigned},
		"other date":   {tamper: header("Date", nextMinute), want: notSigned},
		"a read with a body": {change: func(c *signedCall) {
			c.method, c.headers = "GET", signedByReads
		}, want: "content-length is not signed"},
		"header twice": {
			tamper: func(r *http.Request) { r.Header.Add("Content-Type", "text/plain") },
			want:   "content-type is signed and comes 2 times",
		},
		"6 minutes old": {change: later(-6 * time.Minute), want: "the header date differs by -6m"},
		"6 minutes early": {change: func(c *signedCall) {
			c.date, c.headers = c.date.Add(6*time.Minute), signedByTypeScript
		}, want: "the header x-date differs by"},
		"no date":            {tamper: header("Date", "today"), want: "the header date is not an HTTP date"},
		"algorithm":          {change: inForm("rsa-sha256", "hmac-sha256"), want: "algorithm is"},
		"version":            {change: inForm(`"1"`, `"2"`), want: "version is"},
		"parameter twice":    {change: inForm("Signature ", `Signature keyId="a/b/c",`), want: "has keyid twice"},
		"unreadable":         {change: inForm(`",keyId`, ",keyId"), want: "cannot be read"},
		"no base64":          {change: inForm(`="%[3]s`, `="%%%[3]s`), want: "is not base64"},
		"header named twice": {change: func(c *signedCall) { c.headers += " Date" }, want: "names the header date twice"},

		"unsigned date":           {change: unsigned("date"), want: "date is not signed"},
		"unsigned target":         {change: unsigned("(request-target)"), want: "(request-target) is not signed"},
		"unsigned host":           {change: unsigned("host"), want: "host is not signed"},
		"unsigned content-length": {change: unsigned("content-length"), want: "content-length is not signed"},
		"unsigned content-type":   {change: unsigned("content-type"), want: "content-type is not signed"},
		"unsigned hash":           {change: unsigned("x-content-sha256"), want: "x-content-sha256 is not signed"},

		"no keyId of this cloud": {change: func(c *signedCall) { c.keyID = "a" }, want: "is not known here"},
		"unknown key": {change: func(c *signedCall) {
			c.keyID = "default/editor/aa:bb"
		}, want: `the key \"aa:bb\"`},
		"another's key": {change: func(c *signedCall) { c.key = signingKeys()[1] }, want: notSigned},
		"key of another token": {change: func(c *signedCall) {
			c.keyID, c.key = strings.Replace(viewer, "viewer", "editor", 1), signingKeys()[1]
		}, want: `no token \"editor\"`},
		"key of another project": {change: inKeyID("default", "other"), want: `in a project \"other\"`},
		"viewer": {change: func(c *signedCall) {
			c.keyID, c.key = viewer, signingKeys()[1]
		}, want: "needs the role editor", status: http.StatusForbidden},
		"a secret as signature":   {tamper: header("Authorization", "Signature "+secret), want: "cannot be read"},
		"a fingerprint as secret": {tamper: header("Authorization", "Bearer "+path.Base(viewer)), want: "not known here"},
	} {
		t.Run(name, func(t *testing.T) {
			call := f.post()
			if test.change != nil {
				test.change(&call)
			}
			r := call.request(t)
			if test.tamper != nil {
				test.tamper(r)
			}
			status, text := f.answer(r)
			if test.want == "" {
				assert.Equal(t, http.StatusOK, status, text)
				return
			}
			assert.Contains(t, text, test.want)
			if test.status == 0 {
				test.status = http.StatusUnauthorized
			}
			assert.Equal(t, test.status, status, text)
		})
	}
	for token, want := range map[string]int{"editor": http.StatusOK, "viewer": http.StatusForbidden} {
		audit := newClient(t, serve(t, f.api), secret)
		calls := must.Do(audit.ListAudit(t.Context(), client.AuditFilter{Token: token}, 1))(t)
		require.Len(t, calls, 1)
		assert.Equal(t, want, calls[0].Status)
	}
}

// What a signed call says is what its handler gets. A server that takes no signatures asks for a token.
func TestSignedCallsReachTheirHandler(t *testing.T) {
	f := newSignedFront(t, server.Config{})
	status, text := f.answer(f.post().request(t))
	require.Equal(t, http.StatusOK, status, text)
	assert.Contains(t, text, `POST {\"a\": 1}`)
	w := httptest.NewRecorder()
	r := f.post().request(t)
	r.Method, r.URL.Path, r.RequestURI = "GET", "/v1/zones", "/v1/zones"
	f.srv.ServeHTTP(w, r)
	assert.Equal(t, http.StatusUnauthorized, w.Code)
	assert.Contains(t, w.Body.String(), "this call needs a token")
	long := f.post()
	long.body = strings.Repeat("x", 1<<20+1)
	status, text = f.answer(long.request(t))
	assert.Equal(t, http.StatusBadRequest, status)
	assert.Contains(t, text, "the body cannot be read")
}

func TestSignaturesOfKeysThatAreGone(t *testing.T) {
	f := newSignedFront(t, server.Config{})
	ctx, p := t.Context(), f.project.ID
	until := f.clock.Now().Add(time.Hour)
	key := api.TokenKeyCreate{PublicKey: publicPEM(t, &signingKeys()[0].PublicKey)}
	call := f.post()
	answers := func(want int, says string) {
		t.Helper()
		status, text := f.answer(call.request(t))
		require.Equal(t, want, status, text)
		assert.Contains(t, text, says)
	}
	for range 2 {
		answers(http.StatusOK, "")
	}
	fingerprint := path.Base(call.keyID)
	require.NoError(t, f.DeleteTokenKey(ctx, p, "editor", fingerprint))
	answers(http.StatusUnauthorized, "")
	requireOK(t)(f.CreateToken(ctx, p, api.TokenCreate{Name: "late", Role: api.RoleEditor, ExpiresAt: &until}))
	requireOK(t)(f.AddTokenKey(ctx, p, "late", key))
	call.keyID = "default/late/" + fingerprint
	answers(http.StatusOK, "")
	f.clock.Advance(time.Hour)
	answers(http.StatusUnauthorized, `token \"late\" expired`)
	require.NoError(t, f.DeleteToken(ctx, p, "late"))
	answers(http.StatusUnauthorized, `no token \"late\"`)
}

// Guessed keys and wrong signatures count against the address, as wrong secrets do. A key that is known gets in.
func TestWrongSignaturesAreThrottled(t *testing.T) {
	f := newSignedFront(t, server.Config{RateLimit: 1000, RateBurst: 1000})
	good := f.post()
	status, text := f.answer(good.request(t))
	require.Equal(t, http.StatusOK, status, text)
	for name, change := range map[string]func(*signedCall){
		"guessed key":     func(c *signedCall) { c.keyID = "default/editor/aa:bb" },
		"wrong signature": func(c *signedCall) { c.key = signingKeys()[1] },
		"too old":         func(c *signedCall) { c.date = c.date.Add(-time.Hour) },
		"wrong body":      func(c *signedCall) { c.body = "other" },
	} {
		wrong := f.post()
		change(&wrong)
		sent := wrong.request(t)
		status = 0
		for i := 0; i < 300 && status != http.StatusTooManyRequests; i++ {
			again := sent.Clone(t.Context())
			again.RemoteAddr = name + ":1"
			again.Body = io.NopCloser(strings.NewReader("another"))
			status, text = f.answer(again)
			require.NotEqual(t, http.StatusOK, status, name)
		}
		assert.Equal(t, http.StatusTooManyRequests, status, name)
		assert.Contains(t, text, "calls without a valid token from this address", name)
		r := good.request(t)
		r.RemoteAddr = name + ":2"
		status, text = f.answer(r)
		assert.Equal(t, http.StatusOK, status, "%s: %s", name, text)
	}
}

func FuzzSignatures(f *testing.F) {
	f.Add(`version="1",headers="date (request-target) host",keyId="a/b/c",algorithm="rsa-sha256",signature="AAAA"`)
	f.Add(`signature="AA==" , keyid=a,HEADERS = "",version=1,algorithm=rsa-sha256,`)
	f.Add(`headers="date`)
	f.Fuzz(func(t *testing.T, text string) {
		keyID, headers, err := server.ParseSignature(text)
		if err != nil {
			require.ErrorContains(t, err, "signature")
			return
		}
		assert.Contains(t, text, keyID)
		assert.LessOrEqual(t, len(headers), len(text))
	})
}
