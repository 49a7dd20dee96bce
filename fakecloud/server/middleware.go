package server

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"path"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"github.com/gorilla/mux"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/cloud"
)

// requestRecord is what is known of a request; the layers fill it in.
type requestRecord struct {
	id        string
	start     time.Time
	head      bool             // a HEAD, which is served as a GET: net/http sends no body
	op        *operation       // noOperation until it is routed
	principal *cloud.Principal // nil until authenticated
	// secret is what who was known by, for calls that outlast an answer.
	secret string
	// authError is why there is no who.
	authError error
	// throttledFor is how long the caller's bucket will be empty; 0 when it was not.
	throttledFor time.Duration
	fault        string // the ID of the rule that was applied, or ""
	code         api.ProblemCode
	// onAnswer, when not nil, is told the status as the answer begins; 0 when the
	// call is broken off.
	onAnswer func(status int)
	// auditEntry is the call in the audit, with so many bytes; nil until counted.
	auditEntry   *journalEntry
	auditedBytes int64
	bytesIn      int64
}

// noOperation is that of a path that the API does not have.
var noOperation = &operation{id: "none", public: true}

type requestRecordKey struct{}

func recordOf(r *http.Request) *requestRecord {
	c, ok := r.Context().Value(requestRecordKey{}).(*requestRecord)
	if !ok {
		return &requestRecord{op: noOperation} // A request that did not come through ServeHTTP.
	}
	return c
}

// callerProject is the caller's. Handlers run only for authenticated callers.
func callerProject(r *http.Request) cloud.Project { return recordOf(r).principal.Project }

// responseRecorder remembers what was answered, and has it counted.
type responseRecorder struct {
	http.ResponseWriter
	call         *requestRecord
	status       int
	timeToAnswer time.Duration // after which the answer began
	bytes        int64
}

func (r *responseRecorder) beginAnswer(status int) {
	if r.status != 0 {
		return
	}
	r.status, r.timeToAnswer = status, time.Since(r.call.start)
	if r.call.onAnswer != nil {
		r.call.onAnswer(status)
	}
}

func (r *responseRecorder) WriteHeader(status int) {
	r.beginAnswer(status)
	r.ResponseWriter.WriteHeader(status)
}

func (r *responseRecorder) Write(b []byte) (int, error) {
	r.beginAnswer(http.StatusOK)
	if r.call.head {
		return len(b), nil
	}
	n, err := r.ResponseWriter.Write(b)
	r.bytes += int64(n)
	return n, err
}

// Unwrap lets http.ResponseController flush and set deadlines.
func (r *responseRecorder) Unwrap() http.ResponseWriter { return r.ResponseWriter }

// recordRequests gives the request an ID and tells the audit, the metrics and the log
// how it ended.
func (s *Server) recordRequests(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c := &requestRecord{id: strings.ToLower(rand.Text()), start: time.Now(), op: noOperation}
		r = r.WithContext(context.WithValue(r.Context(), requestRecordKey{}, c))
		if c.head = r.Method == http.MethodHead; c.head {
			r.Method = http.MethodGet // Of this copy: net/http goes by its own.
		}
		w.Header().Set("X-Request-Id", c.id)
		rec := &responseRecorder{ResponseWriter: w, call: c}
		s.callsUnderWay.Add(1)
		defer func() {
			s.callsUnderWay.Add(-1)
			took := time.Since(c.start)
			if rec.status == 0 {
				rec.timeToAnswer = took
			}
			s.metrics.countCall(c, rec)
			if c.auditEntry != nil && rec.bytes != c.auditedBytes {
				s.journal.amendEntry(c.auditEntry, rec.bytes-c.auditedBytes, took)
			}
			s.logCall(r, rec, took)
		}()
		next.ServeHTTP(rec, r)
	})
}

// logCall logs changes and what failed at info, and reads that went well, of
// which there are many, at debug.
func (s *Server) logCall(r *http.Request, rec *responseRecorder, took time.Duration) {
	level := slog.LevelInfo
	if rec.status != 0 && rec.status < http.StatusBadRequest && r.Method == http.MethodGet {
		level = slog.LevelDebug
	}
	if !s.log.Enabled(r.Context(), level) {
		return
	}
	c := rec.call
	attrs := []slog.Attr{
		slog.String("method", r.Method), slog.String("path", r.URL.Path), slog.Int("status", rec.status),
		slog.Duration("duration", took), slog.String("requestId", c.id), slog.String("userAgent", r.UserAgent()),
	}
	if c.principal != nil {
		attrs = append(attrs, slog.String("token", c.principal.Token), slog.String("project", c.principal.Project.Name))
	}
	if c.fault != "" {
		attrs = append(attrs, slog.String("fault", c.fault))
	}
	s.log.LogAttrs(r.Context(), level, "call", attrs...)
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
			s.log.Error("a handler panicked", "requestId", recordOf(r).id, "panic", err, "stack", string(debug.Stack()))
			if rec, ok := w.(*responseRecorder); ok && rec.status != 0 {
				panic(http.ErrAbortHandler) // The answer has begun: break it off.
			}
			s.answerProblem(w, r, http.StatusInternalServerError, api.Internal, "the cloud failed; its log has more under this request ID", nil)
		}()
		next.ServeHTTP(w, r)
	})
}

// authenticateCaller finds out who calls, and takes the call from the token's bucket, or
// from the address's when there is no valid token. Whether a token is needed, the
// spec says. Who asks for the cloud's health is nobody, and never limited.
func (s *Server) authenticateCaller(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/healthz" && r.URL.Path != "/readyz" {
			s.identifyCaller(r)
		}
		next.ServeHTTP(w, r)
	})
}

func (s *Server) identifyCaller(r *http.Request) {
	c := recordOf(r)
	scheme, secret, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if !strings.EqualFold(scheme, "Bearer") || secret == "" {
		c.authError = &cloud.Error{Code: cloud.Unauthenticated, Message: "this call needs a token: send the header \"Authorization: Bearer <token>\""}
		c.throttledFor = s.limits.takeForAddress(r.RemoteAddr)
		return
	}
	c.secret = strings.TrimSpace(secret)
	// An address that guesses must not have the store read for each guess.
	if c.throttledFor = s.limits.addressWait(r.RemoteAddr); c.throttledFor > 0 && !s.cloud.Remembers(c.secret) {
		return
	}
	who, err := s.cloud.Authenticate(r.Context(), c.secret)
	if err != nil {
		c.authError = err
		c.throttledFor = s.limits.takeForAddress(r.RemoteAddr)
		return
	}
	c.principal = &who
	c.throttledFor = s.limits.takeForToken(who.Project.ID, who.Token)
}

// admitCaller lets in who is known, and not more often than the limits allow; it has
// the audit told of the call.
func (s *Server) admitCaller(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c := recordOf(r)
		if op := s.routes[mux.CurrentRoute(r)]; op != nil {
			c.op = op
		}
		if c.op.audited && c.principal != nil {
			c.onAnswer = func(status int) { s.recordAudit(w, r, status) }
		}
		switch {
		case s.answerThrottled(w, r):
		case c.principal == nil && !c.op.public:
			s.answerError(w, r, c.authError)
		default:
			next.ServeHTTP(w, r)
		}
	})
}

// recordAudit records a call whose answer begins.
func (s *Server) recordAudit(w http.ResponseWriter, r *http.Request, status int) {
	c := recordOf(r)
	if c.auditEntry != nil {
		return
	}
	vars := mux.Vars(r)
	resource := cmp.Or(vars["name"], vars["id"]) // A token's name, not its project's ID.
	if made := w.Header().Get("Location"); made != "" {
		resource = path.Base(made)
	}
	agent := r.UserAgent()
	if size, err := strconv.ParseInt(w.Header().Get("Content-Length"), 10, 64); err == nil && status != 0 && !c.head {
		c.auditedBytes = size
	}
	c.auditEntry = s.journal.recordCall(cloud.AuditEntry{
		Time: time.Now().UTC(), RequestID: c.id,
		AuditCaller: cloud.AuditCaller{
			Project: c.principal.Project.ID, Token: c.principal.Token, UserAgent: strings.ToValidUTF8(agent[:min(len(agent), agentLength)], "?"), Operation: c.op.id,
		},
		Resource: resource, Status: status, Code: string(c.code), Fault: c.fault,
		Duration: time.Since(c.start), BytesIn: c.bytesIn, BytesOut: c.auditedBytes,
	})
}

func (s *Server) limitBody(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ContentLength != 0 {
			// Not everything that serves requests has deadlines; then there is none.
			if err := http.NewResponseController(w).SetReadDeadline(time.Now().Add(bodyTimeout)); err != nil && !errors.Is(err, http.ErrNotSupported) {
				s.log.Warn("cannot bound reading a body", "err", err)
			}
			r.Body = &countedBody{ReadCloser: http.MaxBytesReader(w, r.Body, maxBody), call: recordOf(r)}
		}
		next.ServeHTTP(w, r)
	})
}

// countedBody counts what is read of a request's body.
type countedBody struct {
	io.ReadCloser
	call *requestRecord
}

func (b *countedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.call.bytesIn += int64(n)
	return n, err
}

// throttleRefusals answers for what is no operation of the API, as often as the limits
// allow.
func (s *Server) throttleRefusals(answer http.HandlerFunc) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !s.answerThrottled(w, r) {
			answer(w, r)
		}
	})
}

// answerNoSuchPath names no project: nothing was looked up in one, and a client must
// not take this for the definite absence of a resource.
func (s *Server) answerNoSuchPath(w http.ResponseWriter, r *http.Request) {
	s.writeProblem(w, r, s.newProblem(r, http.StatusNotFound, api.NotFound, "the API has no path "+r.URL.Path+"; GET /openapi.yaml lists those it has", nil))
}

// answerMethodNotAllowed names no project either: it needs no token, and must not tell
// whether there is a valid one.
func (s *Server) answerMethodNotAllowed(router *mux.Router) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		var allowed []string
		for _, m := range []string{http.MethodGet, http.MethodPost, http.MethodPatch, http.MethodDelete} {
			probe := *r
			probe.Method = m
			var match mux.RouteMatch
			if router.Match(&probe, &match) && match.MatchErr == nil {
				allowed = append(allowed, m)
				if m == http.MethodGet {
					allowed = append(allowed, http.MethodHead)
				}
			}
		}
		w.Header().Set("Allow", strings.Join(allowed, ", "))
		s.writeProblem(w, r, s.newProblem(r, http.StatusMethodNotAllowed, api.MethodNotAllowed, r.URL.Path+" does not take "+r.Method+", but "+strings.Join(allowed, ", "), nil))
	}
}
