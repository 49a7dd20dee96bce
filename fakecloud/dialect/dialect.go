// Package dialect is the frame in which this cloud speaks other clouds' wire protocols, so that
// programs that were written for those run on it unmodified. A dialect is a table of calls; each
// reads its own cloud's JSON, does what it must by native operations, and answers in that cloud's
// JSON. The frame decodes, counts what was sent and nobody reads, and turns refusals into the
// other cloud's. A dialect knows the native API and its own wire types, and no other dialect.
// Begin with Dialect and Handle.
package dialect

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/gorilla/mux"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
	"github.com/ccmlab/ccmlab/fakecloud/cloud"
	"github.com/ccmlab/ccmlab/fakecloud/server"
)

// Dialect is another cloud's wire protocol.
type Dialect struct {
	Name string
	// Summary says in a sentence whose protocol it is, and Limits what the imitation records
	// only or refuses, a sentence each.
	Summary string
	Limits  []string
	Calls   []Call
	// ReadKeyID, unless nil, reads whose key a signature's keyId names: see server.Front.
	ReadKeyID func(keyID string) (project, token, fingerprint string, ok bool)
	// RequestIDHeader, unless "", is the header in which answers have the request's ID.
	RequestIDHeader string
	// Refusals are those of problems by their codes, and Other gives that of a problem with another code.
	Refusals map[api.ProblemCode]Refusal
	Other    Refusal
	// Codes are errors of the other cloud beside those of Refusals, by their names there, with their statuses. A fault
	// can answer with each of both.
	Codes map[string]int
	// Refuse gives the body of a refusal.
	Refuse func(p api.Problem, r Refusal) (body any)
	// AnnounceLimit sets the headers that tell callers of their rate limit; nil if there are none.
	AnnounceLimit func(h http.Header, l server.RateLimit)
}

// Call is one call of a dialect. Handle makes it.
type Call struct {
	Method string
	Path   string // a template of gorilla/mux
	query  []string
	// forViewers is as a front call's.
	forViewers bool
	// basicAuth tells that its path is the front's BasicAuthPath.
	basicAuth bool
	status    int
	decode    func(body []byte) (decoded any, unread []string, err error)
	do        func(ctx context.Context, r *Request, body any) (any, error)
}

// Handler makes a call. B is what is read of the request's body, struct{} if there is none, and T is the body of the
// answer, or an *Answer.
type Handler[B, T any] = func(ctx context.Context, r *Request, body B) (T, error)

// Handle is a call that do makes. Query are the parameters that are read; whatever else is sent counts as unread. The
// answer's status is 200 unless Answers gives another.
func Handle[B, T any](method, path string, query []string, do Handler[B, T]) Call {
	return Call{
		Method: method, Path: path, query: query, status: http.StatusOK,
		decode: func(raw []byte) (any, []string, error) {
			var body B
			if len(bytes.TrimSpace(raw)) == 0 {
				return body, nil, nil
			}
			if err := json.Unmarshal(raw, &body); err != nil {
				return body, nil, invalidBody(err)
			}
			unread, err := findUnread(raw, body)
			return body, unread, err
		},
		do: func(ctx context.Context, r *Request, body any) (any, error) { return do(ctx, r, body.(B)) },
	}
}

// Answers gives the call another status.
func (c Call) Answers(status int) Call {
	c.status = status
	return c
}

// Show has a call answer with what show makes of the native resource that do gives.
func Show[B, N, T any](show Handler[N, T], do Handler[B, N]) Handler[B, T] {
	return func(ctx context.Context, r *Request, body B) (shown T, err error) {
		native, err := do(ctx, r, body)
		if err != nil {
			return shown, err
		}
		return show(ctx, r, native)
	}
}

// ShowEach gives what show makes of each of the native resources.
func ShowEach[N, T any](ctx context.Context, r *Request, natives []N, show Handler[*N, T]) ([]T, error) {
	all := make([]T, len(natives))
	for i := range natives {
		var err error
		if all[i], err = show(ctx, r, &natives[i]); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// UnreadableBody refuses what is no JSON. A dialect may have a refusal of its own for it; else it is an invalid
// request.
const UnreadableBody api.ProblemCode = "unreadable-body"

// invalidBody refuses a body that is no JSON, or of other types than the call's.
func invalidBody(err error) error {
	if syntax := (*json.SyntaxError)(nil); errors.As(err, &syntax) {
		return &cloud.Error{Code: cloud.Code(UnreadableBody), Message: "the body is no JSON: " + err.Error()}
	}
	field := "body"
	var mismatch *json.UnmarshalTypeError
	if errors.As(err, &mismatch) && mismatch.Field != "" {
		field = mismatch.Field
	}
	return Invalid(field, "cannot be read: %v", err)
}

// Invalid refuses a request for what is wrong with a field of it.
func Invalid(field, format string, args ...any) error {
	message := fmt.Sprintf(format, args...)
	return &cloud.Error{
		Code: cloud.InvalidRequest, Message: field + " " + message,
		Fields: []cloud.Field{{Path: field, Message: message}},
	}
}

// NotFound refuses a request for a thing that is not there.
func NotFound(format string, args ...any) error {
	return &cloud.Error{Code: cloud.NotFound, Message: fmt.Sprintf(format, args...)}
}

// IsGone tells whether an instance is one that other clouds do not know any more: they keep none that has ended.
func IsGone(in api.Instance) bool { return in.State == api.InstanceTerminated }

// Refusal is another cloud's status and code of a refusal.
type Refusal struct {
	Status int
	Code   string
}

// findRefusal gives the refusal of a problem. A fault's status stays, as it says more than its code.
func (d Dialect) findRefusal(p api.Problem) Refusal {
	refusal, known := d.Refusals[p.Code]
	if p.Code == UnreadableBody && !known {
		refusal, known = d.Refusals[api.InvalidRequest]
	}
	if !known {
		refusal = d.Other
		if status, itsOwn := d.allCodes()[string(p.Code)]; itsOwn {
			refusal = Refusal{status, string(p.Code)}
		}
	}
	if p.Status >= http.StatusInternalServerError {
		refusal.Status = p.Status
	}
	return refusal
}

func (d Dialect) allCodes() map[string]int {
	all := maps.Clone(d.Codes)
	if all == nil {
		all = map[string]int{}
	}
	for _, r := range d.Refusals {
		all[r.Code] = r.Status
	}
	return all
}

// Answer is an answer with more than a body. No body is sent if that is nil, and the call's status if that is 0.
type Answer struct {
	Status int
	Header http.Header
	Body   any
}

// Text is the body of an answer that is no JSON.
type Text string

// Request is a call that is being made. Its embedded client makes native calls for the caller,
// and needs the context that the call is made with.
type Request struct {
	*client.Client
	HTTP    *http.Request
	Project cloud.Project
	// Cloud is for names and numbers alone, which the native API's answers refer to: what is
	// read here, nobody counts, and no fault touches.
	Cloud *cloud.Cloud

	instances map[string]cloud.Instance
	addresses []cloud.ReservedAddress
	balancers []cloud.LoadBalancer
	networks  map[string]int64
	records   map[string][]cloud.DialectRecord
}

// Var gives a variable of the call's path.
func (r *Request) Var(name string) string { return mux.Vars(r.HTTP)[name] }

// InPath gives what the call's path refers to: its variable id.
func InPath(r *Request) string { return r.Var("id") }

// Now is the cloud's time.
func (r *Request) Now() time.Time {
	now, _ := r.Cloud.Now()
	return now
}

// Serial reads a serial number from the call's path. What is no number is not found.
func (r *Request) Serial() (int64, error) {
	text := InPath(r)
	serial, err := strconv.ParseInt(text, 10, 64)
	if err != nil || serial < 1 {
		return 0, NotFound("nothing has the ID %q", text)
	}
	return serial, nil
}

// ResourceID gives the native ID of the caller's resource of a kind that has the serial number.
func (r *Request) ResourceID(ctx context.Context, kind cloud.Resource, serial int64) (string, error) {
	id, err := r.Cloud.ResourceID(ctx, r.Project, kind, serial)
	if err == nil && id == "" {
		err = NotFound("no %s has the ID %d", kind, serial)
	}
	return id, err
}

// all has no bound.
var all = cloud.Filter{Limit: cloud.NoLimit}

// Instances gives the caller's instances by their native IDs, for their names and numbers. As all that is read for
// those, they are read once for a call.
func (r *Request) Instances(ctx context.Context) (map[string]cloud.Instance, error) {
	if r.instances != nil {
		return r.instances, nil
	}
	found, _, err := r.Cloud.ListInstances(ctx, r.Project, all)
	r.instances = make(map[string]cloud.Instance, len(found))
	for _, in := range found {
		r.instances[in.ID] = in
	}
	return r.instances, err
}

// Addresses gives the caller's reserved addresses, for their names and numbers.
func (r *Request) Addresses(ctx context.Context) (_ []cloud.ReservedAddress, err error) {
	if r.addresses == nil {
		r.addresses, _, err = r.Cloud.Addresses.List(ctx, r.Project, all)
	}
	return r.addresses, err
}

// LoadBalancers gives the caller's load balancers, for what they refer to.
func (r *Request) LoadBalancers(ctx context.Context) (_ []cloud.LoadBalancer, err error) {
	if r.balancers == nil {
		r.balancers, _, err = r.Cloud.ListLoadBalancers(ctx, r.Project, all)
	}
	return r.balancers, err
}

// Records gives the caller's records of a type.
func (r *Request) Records(ctx context.Context, kind string) (_ []cloud.DialectRecord, err error) {
	if _, read := r.records[kind]; !read {
		if r.records == nil {
			r.records = map[string][]cloud.DialectRecord{}
		}
		of := cloud.Filter{States: []string{kind}, Limit: cloud.NoLimit}
		r.records[kind], _, err = r.Cloud.DialectRecords.List(ctx, r.Project, of)
	}
	return r.records[kind], err
}

// NetworkSerials gives the serial numbers of the caller's networks by their native IDs.
func (r *Request) NetworkSerials(ctx context.Context) (map[string]int64, error) {
	if r.networks != nil {
		return r.networks, nil
	}
	found, _, err := r.Cloud.Networks.List(ctx, r.Project, all)
	r.networks = make(map[string]int64, len(found))
	for _, n := range found {
		r.networks[n.ID] = n.Serial
	}
	return r.networks, err
}

// Operation reads an operation that a native call began. It is a zero one if the call began none, as what it
// changed took no time: its ID is "".
func (r *Request) Operation(ctx context.Context, id string) (op cloud.Operation, err error) {
	if id != "" {
		op, err = r.Cloud.GetOperation(ctx, r.Project, id)
	}
	return op, err
}

// RecordOperation puts what the dialect calls a change into its operation, as the domain's method does.
func (r *Request) RecordOperation(ctx context.Context, op cloud.Operation) (cloud.Operation, error) {
	ctx = cloud.WithRequest(ctx, cloud.Request{Token: server.CallerToken(r.HTTP)})
	return r.Cloud.RecordOperation(ctx, r.Project, op)
}

// Served is a dialect that a server speaks.
type Served struct {
	Dialect
	http.Handler

	server *server.Server
	cloud  *cloud.Cloud
	native *client.Client
	unread unreadCounts
}

// Front gives the dialect's front, which has no handlers before Serve made them.
func (d Dialect) Front() server.Front {
	f := server.Front{
		Dialect: d.Name, ReadKeyID: d.ReadKeyID, RequestIDHeader: d.RequestIDHeader, AnnounceLimit: d.AnnounceLimit,
		Codes: d.allCodes(),
	}
	for _, c := range d.Calls {
		if c.basicAuth {
			f.BasicAuthPath = c.Path
		}
		f.Calls = append(f.Calls, server.FrontCall{Method: c.Method, Path: c.Path, ForViewers: c.forViewers})
	}
	return f
}

// Serve makes a server speak the dialect at a URL, by the handler that it returns.
func (d Dialect) Serve(s *server.Server, c *cloud.Cloud, url string) (*Served, error) {
	native, err := s.NativeClient()
	if err != nil {
		return nil, err
	}
	served := &Served{Dialect: d, server: s, cloud: c, native: native}
	front := d.Front()
	front.Refuse = func(w http.ResponseWriter, r *http.Request, p api.Problem) {
		refusal := d.findRefusal(p)
		s.AnswerJSON(w, r, refusal.Status, d.Refuse(p, refusal))
	}
	for i, c := range d.Calls {
		front.Calls[i].Serve = func(w http.ResponseWriter, r *http.Request) { served.serveCall(w, r, c) }
	}
	front.Describe = func() api.Dialect { return served.describe(front, url) }
	served.Handler = s.FrontHandler(front)
	return served, nil
}

func (s *Served) serveCall(w http.ResponseWriter, r *http.Request, c Call) {
	answer, err := s.do(r, c)
	if err != nil {
		s.server.AnswerError(w, r, err)
		return
	}
	maps.Copy(w.Header(), answer.Header)
	switch body := answer.Body.(type) {
	case nil:
		w.WriteHeader(answer.Status)
	case Text:
		s.server.AnswerText(w, r, string(body))
	default:
		s.server.AnswerJSON(w, r, answer.Status, body)
	}
}

func (s *Served) do(r *http.Request, c Call) (*Answer, error) {
	raw, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, Invalid("body", "cannot be read: %v", err)
	}
	body, unread, err := c.decode(raw)
	if err != nil {
		return nil, err
	}
	for name := range r.URL.Query() {
		if !slices.Contains(c.query, name) {
			unread = append(unread, "?"+name)
		}
	}
	s.unread.add(c, unread)
	// A dialect's client repeats calls by itself; the native ones are made once.
	ctx := client.OneAttempt(r.Context())
	given, err := c.do(ctx, &Request{Client: s.native, HTTP: r, Project: server.CallerProject(r), Cloud: s.cloud}, body)
	if err != nil {
		return nil, err
	}
	answer, isAnswer := given.(*Answer)
	if !isAnswer {
		answer = &Answer{Body: given}
	}
	answer.Status = cmp.Or(answer.Status, c.status)
	return answer, nil
}

func (s *Served) describe(f server.Front, url string) api.Dialect {
	out := api.Dialect{Name: s.Name, Summary: s.Summary, URL: url, Limits: s.Limits, Unread: s.unread.list()}
	for _, c := range f.Calls {
		out.Calls = append(out.Calls, c.Operation(f.Dialect))
	}
	return out
}
