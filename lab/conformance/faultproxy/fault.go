package faultproxy

// What a call gets instead of its answer.

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/ccmlab/ccmlab/lab/conformance"
)

// statuses of the faults that are refusals.
var statuses = map[conformance.FaultKind]int{
	conformance.FaultUnauthorized:    http.StatusUnauthorized,
	conformance.FaultForbidden:       http.StatusForbidden,
	conformance.FaultForeignNotFound: http.StatusNotFound,
	conformance.FaultNotFound:        http.StatusNotFound,
	conformance.FaultThrottled:       http.StatusTooManyRequests,
	conformance.FaultServerError:     http.StatusInternalServerError,
	conformance.FaultUnavailable:     http.StatusServiceUnavailable,
}

// ownAnswerOnly are kinds that are made only with an answer of the cloud's own: a 404 is the truth
// for a CCM unless something in it says whose project or account was looked at.
var ownAnswerOnly = []conformance.FaultKind{conformance.FaultForeignNotFound, conformance.FaultNotFound}

// alwaysKinds are made with any cloud.
var alwaysKinds = []conformance.FaultKind{
	conformance.FaultUnauthorized, conformance.FaultForbidden, conformance.FaultThrottled,
	conformance.FaultServerError, conformance.FaultUnavailable, conformance.FaultTimeout, conformance.FaultReset,
	conformance.FaultRefused, conformance.FaultGarbage, conformance.FaultStale, conformance.FaultSlow,
	conformance.FaultLost,
}

// refusalKinds are the kinds that an answer can be given for, as messages have them.
func refusalKinds() string {
	kinds := slices.Sorted(maps.Keys(statuses))
	names := make([]string, len(kinds))
	for i, kind := range kinds {
		names[i] = string(kind)
	}
	return strings.Join(names, ", ")
}

// FaultKinds implements conformance.FaultInjector.
func (p *Proxy) FaultKinds() []conformance.FaultKind {
	kinds := slices.Clone(alwaysKinds)
	for _, kind := range ownAnswerOnly {
		if _, has := p.config.Answers[kind]; has {
			kinds = append(kinds, kind)
		}
	}
	if slices.ContainsFunc(p.rules, func(r compiledRule) bool { return r.List != nil }) {
		kinds = append(kinds, conformance.FaultEmptyList, conformance.FaultPartialList)
	}
	if slices.ContainsFunc(p.rules, func(r compiledRule) bool { return len(r.StateFields) > 0 }) {
		kinds = append(kinds, conformance.FaultMissingField)
	}
	return kinds
}

// fault is one that is in force.
type fault struct {
	conformance.Fault
	proxy  *Proxy
	lifted context.Context
	lift   context.CancelFunc

	hits int   // guarded by the proxy's mu
	err  error // that it could not be made; likewise

	staleMu sync.Mutex
	stale   map[string]*bufferedAnswer // by question
}

// InjectFault implements conformance.FaultInjector.
func (p *Proxy) InjectFault(_ context.Context, f conformance.Fault) (conformance.Injection, error) {
	if !slices.Contains(p.FaultKinds(), f.Kind) {
		return nil, fmt.Errorf("the fault proxy makes no fault %q of this cloud", f.Kind)
	}
	if f.Kind == conformance.FaultNotFound && len(f.On) == 0 {
		return nil, fmt.Errorf("fault %s: it must say about which things", f.Kind)
	}
	if f.Kind == conformance.FaultRefused {
		return p.gate.Refuse()
	}
	made := &fault{Fault: f, proxy: p, stale: map[string]*bufferedAnswer{}}
	made.lifted, made.lift = context.WithCancel(p.stopping)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.faults = append(p.faults, made)
	return made, nil
}

// Hits implements conformance.Injection. An error says that the fault could not be made, though calls
// came that were to meet it.
func (f *fault) Hits(context.Context) (int, error) {
	f.proxy.mu.Lock()
	defer f.proxy.mu.Unlock()
	return f.hits, f.err
}

// Lift implements conformance.Injection.
func (f *fault) Lift(context.Context) error {
	f.proxy.mu.Lock()
	defer f.proxy.mu.Unlock()
	f.proxy.faults = slices.DeleteFunc(f.proxy.faults, func(other *fault) bool { return other == f })
	f.lift()
	return nil
}

// meets tells whether a call gets the fault.
func (f *fault) meets(c call, reads bool) bool {
	if len(f.On) > 0 && (c.rule == nil || !slices.Contains(f.On, c.rule.Thing)) {
		return false
	}
	switch f.Kind {
	case conformance.FaultEmptyList, conformance.FaultPartialList:
		return c.rule != nil && c.rule.List != nil
	case conformance.FaultMissingField:
		return c.rule != nil && reads && len(c.rule.StateFields) > 0
	case conformance.FaultStale:
		return reads && c.rule != nil // A stream of events never ends, and is nothing to keep.
	case conformance.FaultLost:
		return !reads
	case conformance.FaultNotFound:
		return c.rule != nil && (c.rule.List != nil || c.id != "")
	}
	return true
}

// counts tells whether a call that gets the fault is a hit. An empty list of a cloud that has lost its
// data is none: the CCM is to have asked for the one thing.
func (f *fault) counts(c call) bool {
	return f.Kind != conformance.FaultNotFound || c.rule.List == nil
}

// applyFault answers a call as its fault wants it.
func (p *Proxy) applyFault(w http.ResponseWriter, r *http.Request, c call, f *fault) {
	if err := readBody(r); err != nil {
		breakOff(w)
		return
	}
	switch f.Kind {
	case conformance.FaultTimeout:
		f.hold(r, 0)
		breakOff(w)
	case conformance.FaultReset:
		breakOff(w)
	case conformance.FaultGarbage:
		w.Header().Set("Content-Type", "text/html")
		_, _ = io.WriteString(w, "<html><body>Welcome to this network. Please accept our terms.</body></html>")
	case conformance.FaultSlow:
		if !f.hold(r, p.slowDelay) {
			breakOff(w)
			return
		}
		p.forward.ServeHTTP(w, r)
	case conformance.FaultLost:
		// It is carried out, whether its caller still waits or not.
		p.forward.ServeHTTP(newBufferedAnswer(), r.WithContext(context.WithoutCancel(r.Context())))
		f.hold(r, 0)
		breakOff(w)
	case conformance.FaultStale:
		p.answerStale(w, r, f)
	case conformance.FaultEmptyList, conformance.FaultPartialList, conformance.FaultMissingField:
		p.answerEdited(w, r, c, f)
	case conformance.FaultNotFound:
		if c.rule.List != nil {
			p.answerEdited(w, r, c, f)
			return
		}
		writeAnswer(w, f.Kind, p.config.Answers[f.Kind])
	default:
		writeAnswer(w, f.Kind, p.config.Answers[f.Kind])
	}
}

// maxBody bounds what a fault keeps of a request, and of an answer.
const maxBody = 64 << 20

// readBody reads a request's body into memory: that a caller has gone is noticed only when nothing of
// its request is left to read.
func readBody(r *http.Request) error {
	body, err := io.ReadAll(io.LimitReader(r.Body, maxBody))
	if err != nil {
		return err
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	r.ContentLength = int64(len(body))
	return nil
}

// hold keeps a call waiting for so long, or for ever if that is 0, until the fault is lifted. It returns
// false if the caller has gone away, or the proxy stops.
func (f *fault) hold(r *http.Request, d time.Duration) bool {
	var over <-chan time.Time
	if d > 0 {
		timer := time.NewTimer(d)
		defer timer.Stop()
		over = timer.C
	}
	select {
	case <-r.Context().Done():
		return false
	case <-f.lifted.Done():
		return f.proxy.stopping.Err() == nil
	case <-over:
		return true
	}
}

// breakOff ends a call without an answer: it resets the connection.
func breakOff(w http.ResponseWriter) {
	conn, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0) // Then closing resets it.
	}
	_ = conn.Close()
}

// writeAnswer writes an answer of the cloud's own, or what a cloud would answer.
func writeAnswer(w http.ResponseWriter, kind conformance.FaultKind, a Answer) {
	status := cmp.Or(a.Status, statuses[kind])
	w.Header().Set("Content-Type", "application/json")
	if status == http.StatusTooManyRequests {
		w.Header().Set("Retry-After", "1")
	}
	for name, value := range a.Header {
		w.Header().Set(name, value)
	}
	w.WriteHeader(status)
	_, _ = io.WriteString(w, cmp.Or(a.Body, sentence(fmt.Sprintf("%s: the fault proxy says so", http.StatusText(status)))))
}

// sentence is the body of an answer that has nothing but a sentence.
func sentence(text string) string {
	body, _ := json.Marshal(map[string]string{"message": text}) // A map of texts cannot fail.
	return string(body)
}

// bufferedAnswer is an http.ResponseWriter that keeps an answer instead of sending it.
type bufferedAnswer struct {
	header http.Header
	status int
	body   bytes.Buffer
}

func newBufferedAnswer() *bufferedAnswer { return &bufferedAnswer{header: http.Header{}} }

// Header implements http.ResponseWriter.
func (a *bufferedAnswer) Header() http.Header { return a.header }

// WriteHeader implements http.ResponseWriter.
func (a *bufferedAnswer) WriteHeader(status int) {
	if a.status == 0 && status >= http.StatusOK {
		a.status = status
	}
}

var errTooLong = errors.New("the answer is too long for a fault to keep or change")

// Write implements http.ResponseWriter.
func (a *bufferedAnswer) Write(b []byte) (int, error) {
	a.WriteHeader(http.StatusOK)
	if a.body.Len()+len(b) > maxBody {
		return 0, errTooLong
	}
	return a.body.Write(b)
}

func (a *bufferedAnswer) send(w http.ResponseWriter) {
	maps.Copy(w.Header(), a.header)
	w.Header().Set("Content-Length", strconv.Itoa(a.body.Len())) // It may have been edited.
	w.WriteHeader(cmp.Or(a.status, http.StatusOK))
	_, _ = w.Write(a.body.Bytes())
}

// capture asks the cloud for an answer that is whole, and not compressed.
func (p *Proxy) capture(r *http.Request) *bufferedAnswer {
	for _, name := range []string{"Accept-Encoding", "If-None-Match", "If-Modified-Since", "Range"} {
		r.Header.Del(name)
	}
	a := newBufferedAnswer()
	p.forward.ServeHTTP(a, r)
	return a
}

// answerStale answers as the same question was first answered under the fault.
func (p *Proxy) answerStale(w http.ResponseWriter, r *http.Request, f *fault) {
	question := r.Method + " " + r.URL.RequestURI() + " " + r.Header.Get("Authorization")
	if !slices.Contains([]string{http.MethodGet, http.MethodHead}, r.Method) { // What is asked is in the body.
		body, _ := io.ReadAll(r.Body) // It is in memory.
		r.Body = io.NopCloser(bytes.NewReader(body))
		question += " " + string(body)
	}
	f.staleMu.Lock()
	known := f.stale[question]
	f.staleMu.Unlock()
	if known == nil {
		known = p.capture(r)
		f.staleMu.Lock()
		if first := f.stale[question]; first != nil { // Another was quicker.
			known = first
		}
		f.stale[question] = known
		f.staleMu.Unlock()
	}
	known.send(w)
}

// answerEdited answers with things, or fields of them, left out.
func (p *Proxy) answerEdited(w http.ResponseWriter, r *http.Request, c call, f *fault) {
	a := p.capture(r)
	if a.status < http.StatusMultipleChoices && r.Method != http.MethodHead {
		edited, err := editAnswer(a.body.Bytes(), c.rule.Rule, f.Kind)
		if err != nil {
			err = fmt.Errorf("fault %s was not made: the answer to %s %s: %w", f.Kind, r.Method, r.URL.Path, err)
			p.mu.Lock()
			f.err = err
			p.mu.Unlock()
		} else {
			a.body = *bytes.NewBuffer(edited)
		}
	}
	a.send(w)
}
