package server

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"path"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"github.com/gorilla/mux"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/cloud"
)

// requestRecord is what the layers that handle a request learn of it: each layer fills in
// its part, and those around it read the whole when the request has ended. It travels in
// the request's context. A middleware can hand on nothing but an http.Request, and the
// recorders of metrics, log and audit are the outermost layers, so there is no return
// value by which the inner ones could tell them. recordRequests makes it, recordOf finds
// it, and no other context value carries results.
type requestRecord struct {
	id        string
	start     time.Time
	isHead    bool             // a HEAD, which is served as a GET: net/http sends no body
	op        *operation       // noOperation until it is routed
	principal *cloud.Principal // nil until authenticated
	// secret is the bearer token's secret, for event streams, which authenticate again and
	// again.
	secret string
	// bodySigned is true if the caller's signature is about the body, too.
	bodySigned bool
	// authError is why there is no principal.
	authError error
	// throttledFor is how long the caller's bucket will be empty; 0 if it was not.
	throttledFor time.Duration
	fault        string // the ID of the rule that was applied, or ""
	code         api.ProblemCode
	// onAnswer, unless nil, is called with the status when the answer begins, and with 0
	// when the call is broken off.
	onAnswer func(status int)
	// auditEntry is the call in the audit, and auditedBytes how many bytes of its answer
	// are counted there; nil until the answer begins.
	auditEntry   *journalEntry
	auditedBytes int64
	bytesIn      int64

	// front is the dialect's whose call this is; nil for a native call. The four fields after
	// it are for the native calls that such a call makes, and madeNative is true once it has
	// made one.
	front                    *Front
	writer                   http.ResponseWriter
	remoteAddress, userAgent string
	wire                     string // dialect, method and path, of a front's call and of its native calls
	madeNative               bool
	within                   string // the operation of the front's call that makes this native one, or ""
}

// noOperation is the operation of paths that the API does not have.
var noOperation = &operation{id: "none", public: true}

type requestRecordKey struct{}

// recordOf gives the record of a request. It is empty for a request that did not come
// through ServeHTTP.
func recordOf(r *http.Request) *requestRecord {
	c, ok := r.Context().Value(requestRecordKey{}).(*requestRecord)
	if !ok {
		return &requestRecord{op: noOperation} // A request that did not come through ServeHTTP.
	}
	return c
}

// callerProject gives the caller's project. Handlers run for authenticated callers only.
func callerProject(r *http.Request) cloud.Project { return recordOf(r).principal.Project }

// responseRecorder records what was answered.
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
	if r.call.isHead {
		return len(b), nil
	}
	n, err := r.ResponseWriter.Write(b)
	r.bytes += int64(n)
	return n, err
}

// Unwrap lets http.ResponseController flush and set deadlines.
func (r *responseRecorder) Unwrap() http.ResponseWriter { return r.ResponseWriter }

// newRequestID returns an ID of hexadecimal digits, as clients of some clouds want them.
func newRequestID() string {
	var id [16]byte
	_, _ = rand.Read(id[:]) // It never fails.
	return hex.EncodeToString(id[:])
}

// recordRequests gives each request an ID and its record, and when the request has ended
// counts it in the metrics, completes its audit entry and logs it.
func (s *Server) recordRequests(next http.Handler) http.Handler { return s.recordRequestsOf(nil, next) }

// recordRequestsOf is recordRequests for the calls of a front, or native ones if that is nil.
func (s *Server) recordRequestsOf(front *Front, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c := &requestRecord{id: newRequestID(), start: time.Now(), op: noOperation}
		switch outer := recordOf(r); {
		case front != nil:
			c.beginFront(front, w, r)
		case outer.front != nil:
			c.beginNative(outer)
		}
		r = r.WithContext(context.WithValue(r.Context(), requestRecordKey{}, c))
		if c.isHead = r.Method == http.MethodHead; c.isHead {
			r.Method = http.MethodGet // This is a copy. net/http looks at its own.
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

// logCall logs changes and failed calls at level info. Reads that went well are logged at
// level debug, as there are many.
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
			s.answerProblem(
				w, r, http.StatusInternalServerError, api.Internal,
				"the cloud failed; its log has more under this request ID", nil,
			)
		}()
		next.ServeHTTP(w, r)
	})
}

// authenticateCaller finds out who calls and takes the call from the token's bucket, or
// from the address's bucket if there is no valid token. The spec says whether an operation
// needs a token. Health checks are not authenticated and never limited.
func (s *Server) authenticateCaller(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch c := recordOf(r); {
		case c.within != "": // The front's call was authenticated.
		case c.front == nil && isProbe(r):
		default:
			s.identifyCaller(r)
		}
		next.ServeHTTP(w, r)
	})
}

// isProbe tells whether it is asked for the server's health.
func isProbe(r *http.Request) bool { return r.URL.Path == "/healthz" || r.URL.Path == "/readyz" }

func (s *Server) identifyCaller(r *http.Request) {
	c := recordOf(r)
	scheme, secret, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	_, password, isBasic := r.BasicAuth()
	if isBasic && c.front != nil && c.front.BasicAuthPath == r.URL.Path {
		scheme = "Bearer"
		if secret, _ = url.QueryUnescape(password); secret == "" { // It is of a client that does not encode it.
			secret = password
		}
	}
	if secret == "" && c.front != nil && r.URL.IsAbs() { // It is asked as a proxy: see Request.Instance of package dialect.
		scheme = "Bearer"
		_, secret, _ = proxyAuth(r)
	}
	if strings.EqualFold(scheme, "Signature") && c.front != nil && c.front.ReadKeyID != nil {
		s.identifySigner(r, secret)
		return
	}
	if !strings.EqualFold(scheme, "Bearer") || secret == "" {
		s.refuseCaller(
			r, unauthenticated("this call needs a token: send the header \"Authorization: Bearer <token>\""),
		)
		return
	}
	c.secret = strings.TrimSpace(secret)
	s.findCaller(r, c.secret, s.cloud.Remembers, func() (cloud.Principal, error) {
		return s.cloud.Authenticate(r.Context(), c.secret)
	})
}

// proxyAuth gives the user and password that a client shows to its proxy (RFC 9110, section 11.7).
func proxyAuth(r *http.Request) (user, password string, ok bool) {
	shown := http.Request{Header: http.Header{"Authorization": r.Header.Values("Proxy-Authorization")}}
	return shown.BasicAuth()
}

// findCaller finds out who calls by a credential. An address that guesses credentials does not cause a read of the
// store for each guess.
func (s *Server) findCaller(
	r *http.Request,
	credential string,
	remembers func(credential string) bool,
	authenticate func() (cloud.Principal, error),
) {
	c := recordOf(r)
	c.throttledFor = s.limits.addressWait(r.RemoteAddr)
	if c.throttledFor > 0 && !remembers(credential) && !s.limits.reserve.takeLookup(credential, time.Now()) {
		return
	}
	who, err := authenticate()
	if err != nil {
		s.refuseCaller(r, err)
		return
	}
	c.principal = &who
	c.throttledFor = s.limits.takeForToken(who.Project.ID, who.Token)
}

// refuseCaller has admitCaller refuse a call, which counts against the limit of its address.
func (s *Server) refuseCaller(r *http.Request, err error) {
	c := recordOf(r)
	c.authError = err
	c.throttledFor = s.limits.takeForAddress(r.RemoteAddr)
}

// admitCaller refuses calls that exceed the limits, calls that lack a token, and calls that need
// none under a name that is not the server's, and
// prepares the audit entry of the others.
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
		case c.principal == nil && c.op.public && !s.IsOwnHost(r.Host):
			s.answerMisdirected(w, r)
		case c.principal == nil && !c.op.public:
			s.answerError(w, r, c.authError)
		default:
			next.ServeHTTP(w, r)
		}
	})
}

// recordAudit adds a call to the audit when its answer begins. Of a token's calls beyond
// its limit, the list has one a second, as it keeps a number of calls only.
func (s *Server) recordAudit(w http.ResponseWriter, r *http.Request, status int) {
	c := recordOf(r)
	if c.auditEntry != nil || c.front != nil && c.madeNative {
		return
	}
	vars := mux.Vars(r)
	resource := cmp.Or(vars["name"], vars["id"]) // A token's name, not its project's ID.
	if made := w.Header().Get("Location"); made != "" {
		resource = path.Base(made)
	}
	agent := r.UserAgent()
	if size, err := strconv.ParseInt(w.Header().Get("Content-Length"), 10, 64); err == nil && status != 0 && !c.isHead {
		c.auditedBytes = size
	}
	entry := cloud.AuditEntry{
		Time: time.Now().UTC(), RequestID: c.id,
		AuditCaller: cloud.AuditCaller{
			Project: c.principal.Project.ID, Token: c.principal.Token,
			UserAgent: strings.ToValidUTF8(agent[:min(len(agent), agentLength)], "?"), Operation: c.op.id,
		},
		Wire: c.wire, Resource: resource, Status: status, Code: string(c.code), Fault: c.fault,
		Duration: time.Since(c.start), BytesIn: c.bytesIn, BytesOut: c.auditedBytes,
	}
	if c.throttledFor > 0 && !s.limits.listsRefusal(entry.Project, entry.Token) {
		s.journal.countCall(entry)
		return
	}
	c.auditEntry = s.journal.recordCall(entry)
}

func (s *Server) limitBody(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ContentLength != 0 {
			// Some response writers have no deadlines.
			if err := http.NewResponseController(w).SetReadDeadline(time.Now().
				Add(bodyTimeout)); err != nil && !errors.Is(err, http.ErrNotSupported) {
				s.log.Warn("cannot bound reading a body", "err", err)
			}
			r.Body = &countedBody{ReadCloser: http.MaxBytesReader(w, r.Body, maxBody), call: recordOf(r)}
		}
		next.ServeHTTP(w, r)
	})
}

// countedBody counts how much of a request's body is read.
type countedBody struct {
	io.ReadCloser
	call *requestRecord
}

func (b *countedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.call.bytesIn += int64(n)
	return n, err
}

// throttleRefusals limits answers to what is no operation of the API as others are.
func (s *Server) throttleRefusals(answer http.HandlerFunc) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !s.answerThrottled(w, r) {
			answer(w, r)
		}
	})
}

// answerNoSuchPath names no project: nothing was looked up in one. A client must not
// mistake this answer for the definite absence of a resource.
func (s *Server) answerNoSuchPath(w http.ResponseWriter, r *http.Request) {
	s.writeProblem(w, r, s.newProblem(
		r, http.StatusNotFound, api.NotFound,
		"the API has no path "+r.URL.Path+"; GET /openapi.yaml lists those it has", nil,
	))
}

// answerMethodNotAllowed names no project either: the answer needs no token and must not
// say whether there is a valid one.
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
		s.writeProblem(w, r, s.newProblem(
			r, http.StatusMethodNotAllowed, api.MethodNotAllowed,
			r.URL.Path+" does not take "+r.Method+", but "+strings.Join(allowed, ", "), nil,
		))
	}
}
