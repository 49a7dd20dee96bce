// This file answers: what happens to every request before its handler?

package server

import (
	"context"
	"crypto/rand"
	"errors"
	"log/slog"
	"net/http"
	"runtime/debug"
	"strings"
	"time"

	"github.com/gorilla/mux"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/cloud"
)

// call is what is known of a request; the layers fill it in.
type call struct {
	id  string
	who *cloud.Principal // nil until authenticated
	// whyNot is why there is no who.
	whyNot error
	fault  string // the ID of the rule that was applied, or ""
	// request is what the headers of a change say; nil before that is known.
	request *cloud.Request
	// count, when not nil, is told the status as the answer begins; 0 when the
	// call is broken off.
	count func(status int)
}

type callKey struct{}

func callOf(r *http.Request) *call {
	c, ok := r.Context().Value(callKey{}).(*call)
	if !ok {
		return &call{} // A request that did not come through ServeHTTP.
	}
	return c
}

// project is the caller's. Handlers run only for authenticated callers.
func project(r *http.Request) cloud.Project { return callOf(r).who.Project }

// recorder remembers the status for the log, and has it counted.
type recorder struct {
	http.ResponseWriter
	call   *call
	status int
}

func (r *recorder) begin(status int) {
	if r.status != 0 {
		return
	}
	r.status = status
	if r.call.count != nil {
		r.call.count(status)
	}
}

func (r *recorder) WriteHeader(status int) {
	r.begin(status)
	r.ResponseWriter.WriteHeader(status)
}

func (r *recorder) Write(b []byte) (int, error) {
	r.begin(http.StatusOK)
	return r.ResponseWriter.Write(b)
}

// Unwrap lets http.ResponseController flush and set deadlines.
func (r *recorder) Unwrap() http.ResponseWriter { return r.ResponseWriter }

// observe gives the request an ID and logs how it ended.
func (s *Server) observe(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		start := time.Now()
		c := &call{id: strings.ToLower(rand.Text())}
		r = r.WithContext(context.WithValue(r.Context(), callKey{}, c))
		w.Header().Set("X-Request-Id", c.id)
		rec := &recorder{ResponseWriter: w, call: c}
		defer func() {
			level := slog.LevelInfo
			if r.URL.Path == "/healthz" || r.URL.Path == "/readyz" {
				level = slog.LevelDebug
			}
			attrs := []any{
				"method", r.Method, "path", r.URL.Path, "status", rec.status,
				"duration", time.Since(start), "requestId", c.id, "userAgent", r.UserAgent(),
			}
			if c.who != nil {
				attrs = append(attrs, "token", c.who.Token, "project", c.who.Project.Name)
			}
			if c.fault != "" {
				attrs = append(attrs, "fault", c.fault)
			}
			s.log.Log(r.Context(), level, "call", attrs...)
		}()
		next.ServeHTTP(rec, r)
	})
}

func (s *Server) recoverPanics(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() {
			err := recover()
			if err == nil {
				return
			}
			if err == http.ErrAbortHandler { //nolint:errorlint // net/http's own sentinel, compared as it does.
				panic(err)
			}
			s.log.Error("a handler panicked", "requestId", callOf(r).id, "panic", err, "stack", string(debug.Stack()))
			if rec, ok := w.(*recorder); ok && rec.status != 0 {
				panic(http.ErrAbortHandler) // The answer has begun: break it off.
			}
			s.problem(w, r, http.StatusInternalServerError, api.Internal, "the cloud failed; its log has more under this request ID", nil)
		}()
		next.ServeHTTP(w, r)
	})
}

// authenticate finds out who calls. Whether that is needed, the spec says.
func (s *Server) authenticate(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c := callOf(r)
		scheme, secret, _ := strings.Cut(r.Header.Get("Authorization"), " ")
		if !strings.EqualFold(scheme, "Bearer") || secret == "" {
			c.whyNot = &cloud.Error{Code: cloud.Unauthenticated, Message: "this call needs a token: send the header \"Authorization: Bearer <token>\""}
			next.ServeHTTP(w, r)
			return
		}
		who, err := s.cloud.Authenticate(r.Context(), strings.TrimSpace(secret))
		if err != nil {
			c.whyNot = err
		} else {
			c.who = &who
		}
		next.ServeHTTP(w, r)
	})
}

func (s *Server) limitBody(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ContentLength != 0 {
			// Not everything that serves requests has deadlines; then there is none.
			if err := http.NewResponseController(w).SetReadDeadline(time.Now().Add(bodyTimeout)); err != nil && !errors.Is(err, http.ErrNotSupported) {
				s.log.Warn("cannot bound reading a body", "err", err)
			}
		}
		r.Body = http.MaxBytesReader(w, r.Body, maxBody)
		next.ServeHTTP(w, r)
	})
}

// noSuchPath names no project: nothing was looked up in one, and a client must
// not take this for the definite absence of a resource.
func (s *Server) noSuchPath(w http.ResponseWriter, r *http.Request) {
	s.write(w, r, s.newProblem(r, http.StatusNotFound, api.NotFound, "the API has no path "+r.URL.Path+"; GET /openapi.yaml lists those it has", nil))
}

func (s *Server) methodNotAllowed(router *mux.Router) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var allowed []string
		for _, m := range []string{http.MethodGet, http.MethodPost, http.MethodPatch, http.MethodDelete} {
			probe := *r
			probe.Method = m
			var match mux.RouteMatch
			if router.Match(&probe, &match) && match.MatchErr == nil {
				allowed = append(allowed, m)
			}
		}
		w.Header().Set("Allow", strings.Join(allowed, ", "))
		s.problem(w, r, http.StatusMethodNotAllowed, api.MethodNotAllowed, r.URL.Path+" does not take "+r.Method+", but "+strings.Join(allowed, ", "), nil)
	})
}
