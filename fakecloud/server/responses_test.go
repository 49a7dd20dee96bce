package server_test

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers"
	"github.com/getkin/kin-openapi/routers/gorillamux"
	"github.com/stretchr/testify/assert"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/internal/must"
)

// faultLog learns from the server's log which calls a fault was applied to: their
// answers need not fit the spec.
type faultLog struct {
	slog.Handler
	mu    sync.Mutex
	calls map[string]bool // by request ID
}

func newFaultLog() *faultLog {
	return &faultLog{
		Handler: slog.NewTextHandler(io.Discard, &slog.HandlerOptions{Level: slog.LevelDebug}),
		calls:   map[string]bool{},
	}
}

func (l *faultLog) Handle(_ context.Context, r slog.Record) error {
	id, faulty := "", false
	r.Attrs(func(a slog.Attr) bool {
		switch a.Key {
		case "requestId":
			id = a.Value.String()
		case "fault":
			faulty = true
		}
		return true
	})
	if faulty {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.calls[id] = true
	}
	return nil
}

func (l *faultLog) has(id string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.calls[id]
}

var specRouter = sync.OnceValues(func() (routers.Router, error) {
	spec, err := openapi3.NewLoader().LoadFromData(api.Spec)
	if err != nil {
		return nil, err
	}
	return gorillamux.NewRouter(spec)
})

// checkingAnswers is a handler whose answers have to fit the spec.
func checkingAnswers(t testing.TB, next http.Handler, log *faultLog) http.Handler {
	router := must.Do(specRouter())(t)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		route, params, err := router.FindRoute(r.Clone(r.Context()))
		if err != nil {
			next.ServeHTTP(w, r)
			return
		}
		copied := &copier{ResponseWriter: w}
		next.ServeHTTP(copied, r)
		if copied.status == 0 || copied.status == http.StatusNotModified || log.has(w.Header().Get("X-Request-Id")) {
			return
		}
		covered.note(route.Operation.OperationID, copied.status, copied.body.Bytes())
		err = openapi3filter.ValidateResponse(context.WithoutCancel(r.Context()), &openapi3filter.ResponseValidationInput{
			RequestValidationInput: &openapi3filter.RequestValidationInput{
				Request: r, PathParams: params, Route: route,
			},
			Status: copied.status, Header: w.Header(),
			Body: io.NopCloser(bytes.NewReader(copied.body.Bytes())),
			Options: &openapi3filter.Options{
				MultiError: true, IncludeResponseStatus: true,
				ExcludeResponseBody: !strings.Contains(w.Header().Get("Content-Type"), "json"),
			},
		})
		assert.NoError(t, err, "%s %s: %d %s", r.Method, r.URL, copied.status, copied.body.String())
	})
}

// copier keeps what is answered.
type copier struct {
	http.ResponseWriter
	status int
	body   bytes.Buffer
}

func (c *copier) WriteHeader(status int) {
	c.status = status
	c.ResponseWriter.WriteHeader(status)
}

func (c *copier) Write(b []byte) (int, error) {
	if c.status == 0 {
		c.status = http.StatusOK
	}
	if strings.Contains(c.Header().Get("Content-Type"), "json") {
		c.body.Write(b)
	}
	return c.ResponseWriter.Write(b)
}

func (c *copier) Unwrap() http.ResponseWriter { return c.ResponseWriter }

// FuzzRequests sends anything anywhere: the answer is always one that the API
// promises, and never that the cloud failed.
func FuzzRequests(f *testing.F) {
	for _, seed := range [][4]string{
		{"GET", "/v1/instances?limit=2&tag=a%3Db&state=running", "", ""},
		{"POST", "/v1/instances", "application/json", `{"name":"a","tags":{"b":"c"}}`},
		{"POST", "/v1/instances", "application/json", `{"name":"a","name":"b"} {}`},
		{"POST", "/v1/instances", "text/yaml; charset", "name: a"},
		{
			"POST", "/v1/load-balancers", "application/json",
			`{"name":"a","listeners":[{"protocol":"tcp","port":1,"targetPort":1}],"healthCheck":{"protocol":"http","port":1,"path":"/"}}`,
		},
		{"PATCH", "/v1/load-balancers/lb-1", "application/json", `{"targets":[{"instanceId":"i-1"}]}`},
		{"POST", "/v1/routes", "application/json", `{"name":"a","destination":"10.0.0.0/8","instanceId":"i-1"}`},
		{"DELETE", "/v1/routes/r-1", "", ""},
		{"GET", "/v1/events?follow=false&resource=route&tag=a&id=i-1", "", ""},
		{"GET", "/v1/audit?status=4xx&since=2026-01-02T15:04:05Z", "", ""},
		{"GET", "/v1/audit/summary?groupBy=token&groupBy=operation", "", ""},
		{"GET", "/v1/instances/%2e%2e/%00?;", "", ""},
		{"PUT", "//v1//zones", "", "[[[[[["},
		{"GET", "/docs/x?y", "", ""},
		{"OPTIONS", "*", "", ""},
	} {
		f.Add(seed[0], seed[1], seed[2], seed[3])
	}
	r := newRig(f)
	f.Fuzz(func(t *testing.T, method, target, contentType, body string) {
		r.anything(t, method, target, body, "Content-Type", contentType)
	})
}

// anything sends a request past the network, with a token, and looks at whether
// the answer is as it should be.
func (r *rig) anything(t *testing.T, method, target, body string, header ...string) int {
	bound := patience
	if strings.HasPrefix(target, "/v1/events") {
		bound = 50 * streamBeat // A stream ends with its reader only.
	}
	ctx, cancel := context.WithTimeout(t.Context(), bound)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, target, strings.NewReader(body))
	if err != nil || method == http.MethodPost && strings.HasPrefix(req.URL.Path, "/v1/faults") {
		t.Skip() // No request, or one that would make later ones go wrong.
	}
	req.Header.Set("Authorization", "Bearer "+secret)
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	checkingAnswers(t, r.srv, newFaultLog()).ServeHTTP(w, req)
	if w.Code >= 400 && w.Code != http.StatusServiceUnavailable {
		assert.Equal(t, "application/problem+json", w.Header().Get("Content-Type"))
	}
	assert.NotEqual(t, http.StatusInternalServerError, w.Code, "%s %s: %s", method, target, w.Body)
	return w.Code
}

// FuzzFilters asks lists for anything.
func FuzzFilters(f *testing.F) {
	for _, seed := range []string{
		"name=a&zone=b&limit=500", "tag=a%3Db&tag=c", "state=running&state=stopped", "limit=0", "limit=1e3",
		"pageToken=aS0x", "name=%ff%00", "a;b", "tag==", "state=running,stopped", "since=2026-01-02T15:04:05%2B01:00",
	} {
		f.Add(seed)
	}
	r := newRig(f)
	f.Fuzz(func(t *testing.T, query string) {
		for _, list := range []string{
			"/v1/instances", "/v1/load-balancers", "/v1/routes", "/v1/audit", "/v1/audit/summary",
		} {
			assert.Contains(
				t, []int{200, 400}, r.anything(t, http.MethodGet, list+"?"+strings.ReplaceAll(query, "#", ""), ""),
			)
		}
	})
}

// FuzzPageTokens hands lists tokens that they did not give.
func FuzzPageTokens(f *testing.F) {
	for _, seed := range []string{
		"", "aS0x", "YXVkaXQtMQ", "YXVkaXQtLTE", "!", "bGItMQ", "ci0x", strings.Repeat("A", 300),
	} {
		f.Add(seed)
	}
	r := newRig(f)
	f.Fuzz(func(t *testing.T, token string) {
		for _, list := range []string{"/v1/instances", "/v1/load-balancers", "/v1/routes", "/v1/audit"} {
			assert.Contains(
				t, []int{200, 400}, r.anything(t, http.MethodGet, list+"?pageToken="+url.QueryEscape(token), ""),
			)
		}
	})
}
