package server

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/gorilla/mux"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
	"github.com/ccmlab/ccmlab/fakecloud/cloud"
	"github.com/ccmlab/ccmlab/fakecloud/faults"
)

// Front is another cloud's API on this cloud: a dialect. What a call of it does to the cloud, it
// does by calls of this API, which NativeClient makes. So there is one door: the call itself is
// authenticated, counted against the rate limit, and touched by faults; the native calls that it
// makes are checked, touched by faults and audited as the caller's own, and count against no limit
// again. A call that makes none is audited itself.
type Front struct {
	// Dialect is its name.
	Dialect string
	Calls   []FrontCall
	// BasicAuthPath, unless "", is where a token's secret may come as the password of HTTP Basic, with any user name,
	// both form-encoded (RFC 6749, section 2.3.1).
	BasicAuthPath string
	// ReadKeyID, unless nil, has the front take signatures: it reads whose key a signature's keyId names. The project
	// is given by its name or ID.
	ReadKeyID func(keyID string) (project, token, fingerprint string, ok bool)
	// Codes are the names of the other cloud's errors, with their statuses.
	Codes map[string]int
	// Describe says what the dialect is, and what of its clients' fields nobody read so far.
	Describe func() api.Dialect
	// Refuse answers with a problem as the other cloud would.
	Refuse func(w http.ResponseWriter, r *http.Request, p api.Problem)
	// RequestIDHeader, unless "", is the header in which answers have the request's ID as well.
	RequestIDHeader string
	// AnnounceLimit sets the headers that tell callers of their rate limit; nil if the other
	// cloud has none.
	AnnounceLimit func(h http.Header, l RateLimit)
}

// FrontCall is one call of a dialect.
type FrontCall struct {
	Method string
	Path   string // a template of gorilla/mux
	// ForViewers tells that viewers may make the call, which is no GET.
	ForViewers bool
	Serve      http.HandlerFunc
}

// Operation is how audits and faults call a call of a dialect that is meant itself, and not the
// native operations that it makes.
func (c FrontCall) Operation(dialect string) string { return dialect + " " + c.Method + " " + c.Path }

// FaultOperations gives what faults must know of the front's calls, by their operations.
func (f Front) FaultOperations() map[string]faults.Operation {
	all := map[string]faults.Operation{}
	for _, c := range f.Calls {
		all[c.Operation(f.Dialect)] = faults.Operation{
			Reads: c.Method == http.MethodGet, Codes: f.Codes, Answers: func(string) bool { return false },
		}
	}
	return all
}

// RateLimit is what is left of a token's rate limit.
type RateLimit struct {
	// Burst is how many calls a rested token may make at once.
	Burst, Remaining int
	// Rested is when it may do so again.
	Rested time.Time
}

// FrontHandler serves a front. It must be called before the server serves.
func (s *Server) FrontHandler(f Front) http.Handler {
	s.fronts = append(s.fronts, f)
	router := mux.NewRouter().SkipClean(true)
	router.NotFoundHandler = s.throttleRefusals(s.answerNoSuchCall)
	router.MethodNotAllowedHandler = router.NotFoundHandler
	for _, c := range f.Calls {
		op := &operation{
			id: c.Operation(f.Dialect), faultable: true, audited: true, role: cloud.Editor,
			faults: faults.Operation{Reads: c.Method == http.MethodGet},
		}
		if op.faults.Reads || c.ForViewers {
			op.role = cloud.Viewer
		}
		s.routes[router.Methods(c.Method).Path(c.Path).Handler(c.Serve)] = op
	}
	router.Use(s.admitCaller, s.injectFaults, s.requireRole)
	announced := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if f.AnnounceLimit != nil {
			s.announceLimit(w, r, f.AnnounceLimit)
		}
		router.ServeHTTP(w, r)
	})
	return s.recordRequestsOf(&f, s.recoverPanics(s.authenticateCaller(s.limitBody(s.checkSignedBody(announced)))))
}

func (s *Server) announceLimit(w http.ResponseWriter, r *http.Request, announce func(http.Header, RateLimit)) {
	who := recordOf(r).principal
	if who == nil {
		return
	}
	if limit, ok := s.limits.rateLimitOf(who.Project.ID, who.Token); ok {
		announce(w.Header(), limit)
	}
}

func (s *Server) answerNoSuchCall(w http.ResponseWriter, r *http.Request) {
	s.writeProblem(w, r, s.newProblem(
		r, http.StatusNotFound, api.NotFound,
		fmt.Sprintf("this imitation has no %s %s; `fakecloud dialects show %s` lists the calls that it has",
			r.Method, r.URL.Path, recordOf(r).front.Dialect), nil,
	))
}

// errBrokenOff is the error of a native call that a fault broke off. The caller's connection is
// gone by then.
var errBrokenOff = errors.New("the call was broken off")

// AnswerError answers a call of a front with what an error means, the error of a native call
// among others.
func (s *Server) AnswerError(w http.ResponseWriter, r *http.Request, err error) {
	var native *client.Error
	switch {
	case errors.Is(err, errBrokenOff):
	case errors.As(err, &native) && native.Problem.Code != "":
		if native.RetryAfter > 0 {
			w.Header().Set("Retry-After", strconv.Itoa(int(native.RetryAfter.Seconds())))
		}
		recordOf(r).code = native.Problem.Code
		s.writeProblem(w, r, native.Problem)
	default:
		s.answerError(w, r, err)
	}
}

// AnswerJSON answers a call of a front.
func (s *Server) AnswerJSON(w http.ResponseWriter, r *http.Request, status int, body any) {
	s.answerJSON(w, r, status, body)
}

// AnswerText answers a call of a front.
func (s *Server) AnswerText(w http.ResponseWriter, r *http.Request, text string) {
	s.answerPlain(w, r, http.StatusOK, "text/plain; charset=utf-8", []byte(text))
}

// ProxyUser gives the user whom a front's caller names to the front as its proxy, or "".
func ProxyUser(r *http.Request) string {
	user, _, _ := proxyAuth(r)
	return user
}

// CallerProject gives the project of a front's caller.
func CallerProject(r *http.Request) cloud.Project { return callerProject(r) }

// CallerToken gives the name of the token of a front's caller.
func CallerToken(r *http.Request) string { return recordOf(r).principal.Token }

// CallerSecret gives the secret that a front's caller has shown.
func CallerSecret(r *http.Request) string { return recordOf(r).secret }

// NativeClient makes the native calls of fronts. Each must be made in the context of a front's
// call, for whose caller it is.
func (s *Server) NativeClient() (*client.Client, error) {
	return client.New(client.Config{
		URL: "http://fakecloud.invalid", Transport: nativeTransport{s},
		// A call ends with the front's call: a fault may hold it for long.
		Timeout: 24 * time.Hour,
	})
}

// nativeTransport hands native calls to the server, without a network.
type nativeTransport struct{ server *Server }

// RoundTrip implements http.RoundTripper.
func (t nativeTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	outer := recordOf(req)
	if outer.front == nil {
		return nil, errors.New("a native call outside of a dialect's call")
	}
	inner := req.Clone(req.Context())
	inner.RemoteAddr, inner.RequestURI = outer.remoteAddress, req.URL.RequestURI()
	inner.Header.Set("User-Agent", outer.userAgent)
	if inner.Body == nil {
		inner.Body = http.NoBody
	}
	answer := &nativeAnswer{outer: outer.writer, header: http.Header{}, status: http.StatusOK}
	t.server.ServeHTTP(answer, inner)
	if answer.hijacked {
		return nil, errBrokenOff
	}
	return &http.Response{
		Status: http.StatusText(answer.status), StatusCode: answer.status, Header: answer.header, Request: req,
		Body: io.NopCloser(&answer.body), ContentLength: int64(answer.body.Len()),
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
	}, nil
}

// nativeAnswer keeps the answer of a native call. Deadlines, and breaking the connection off,
// act on the connection of the front's call.
type nativeAnswer struct {
	outer    http.ResponseWriter
	header   http.Header
	status   int
	body     bytes.Buffer
	hijacked bool
}

func (a *nativeAnswer) Header() http.Header         { return a.header }
func (a *nativeAnswer) WriteHeader(status int)      { a.status = status }
func (a *nativeAnswer) Write(b []byte) (int, error) { return a.body.Write(b) }

// Unwrap lets http.ResponseController set deadlines.
func (a *nativeAnswer) Unwrap() http.ResponseWriter { return a.outer }

// Hijack implements http.Hijacker.
func (a *nativeAnswer) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	a.hijacked = true
	return http.NewResponseController(a.outer).Hijack()
}

// beginNative fills in what the record of a native call takes from the front's record.
func (c *requestRecord) beginNative(outer *requestRecord) {
	outer.madeNative = true
	c.id, c.wire, c.principal, c.secret, c.within = outer.id, outer.wire, outer.principal, outer.secret, outer.op.id
}

// beginFront fills in what the record of a front's call says of it.
func (c *requestRecord) beginFront(f *Front, w http.ResponseWriter, r *http.Request) {
	c.front, c.writer, c.remoteAddress, c.userAgent = f, w, r.RemoteAddr, r.UserAgent()
	c.wire = strings.Join([]string{f.Dialect, r.Method, r.URL.Path}, " ")
	c.wire = strings.ToValidUTF8(c.wire[:min(len(c.wire), agentLength)], "?")
	if f.RequestIDHeader != "" {
		w.Header().Set(f.RequestIDHeader, c.id)
	}
}

// ServeFront answers calls of a front until ctx ends, then lets those under way finish.
func (s *Server) ServeFront(ctx context.Context, h http.Handler, l net.Listener) error {
	return s.serve(ctx, h, l)
}

func (s *Server) listDialects(w http.ResponseWriter, r *http.Request) {
	s.answerJSON(w, r, http.StatusOK, api.DialectList{
		Items: mapSlice(s.fronts, func(f Front) api.Dialect { return f.Describe() }),
	})
}
