package faultproxy

// Faults: what a call gets instead of its answer.

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/ccmlab/ccmlab/fakecloud/faults/effects"
	"github.com/ccmlab/ccmlab/lab/conformance"
	"github.com/ccmlab/ccmlab/lab/conformance/driver/protocol"
)

// statuses are those of the kinds that refuse a call.
var statuses = map[conformance.FaultKind]int{
	conformance.FaultUnauthorized:    http.StatusUnauthorized,
	conformance.FaultForbidden:       http.StatusForbidden,
	conformance.FaultForeignNotFound: http.StatusNotFound,
	conformance.FaultNotFound:        http.StatusNotFound,
	conformance.FaultConflict:        http.StatusConflict,
	conformance.FaultPrecondition:    http.StatusPreconditionFailed,
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
	conformance.FaultLost, conformance.FaultConflict, conformance.FaultPrecondition,
}

// refusalKinds lists the kinds for which a cloud may have answers of its own, for messages.
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
		if _, has := p.answers[string(kind)]; has {
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

// fault is a fault that is in force.
type fault struct {
	conformance.Fault
	proxy  *Proxy
	lifted context.Context
	lift   context.CancelFunc
	stale  effects.Answers // by question

	hits int   // guarded by the proxy's mu
	err  error // that it could not be made; likewise
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
	made := &fault{Fault: f, proxy: p}
	made.lifted, made.lift = context.WithCancel(context.Background())
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
	if f.Writes && reads {
		return false
	}
	switch f.Kind {
	case conformance.FaultEmptyList, conformance.FaultPartialList:
		return c.rule != nil && c.rule.List != nil
	case conformance.FaultMissingField:
		return c.rule != nil && reads && len(c.rule.StateFields) > 0
	case conformance.FaultStale:
		return reads && c.rule != nil // A stream of events never ends, and is nothing to keep.
	case conformance.FaultLost, conformance.FaultConflict, conformance.FaultPrecondition:
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
	r.Body = http.MaxBytesReader(w, r.Body, maxBody)
	if err := effects.ReadBody(r); err != nil {
		breakOff(w)
		return
	}
	delay := time.Duration(f.DelayMilliseconds) * time.Millisecond
	if f.Kind == conformance.FaultSlow {
		delay = p.slowDelay
	}
	if delay > 0 && !f.hold(r, delay) {
		breakOff(w)
		return
	}
	switch f.Kind {
	case conformance.FaultTimeout:
		f.hold(r, effects.HoldForever)
		breakOff(w)
	case conformance.FaultReset:
		breakOff(w)
	case conformance.FaultGarbage:
		w.Header().Set("Content-Type", "text/html")
		_, _ = io.WriteString(w, "<html><body>Welcome to this network. Please accept our terms.</body></html>")
	case conformance.FaultSlow:
		p.forward.ServeHTTP(w, r)
	case conformance.FaultLost:
		// It is carried out, whether its caller still waits or not.
		effects.CarryOut(p.forward, r.WithContext(context.WithoutCancel(r.Context())))
		f.hold(r, effects.HoldForever)
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
		writeAnswer(w, f.Kind, p.answers[string(f.Kind)])
	default:
		writeAnswer(w, f.Kind, p.answers[string(f.Kind)])
	}
}

// maxBody bounds what a fault keeps of a request, and of an answer.
const maxBody = 64 << 20

// hold keeps a call waiting for d, or until the fault is lifted. It returns false if the caller has gone
// away, or the proxy stops.
func (f *fault) hold(r *http.Request, d time.Duration) bool {
	return effects.Hold(r, d, f.lifted.Done(), f.proxy.stopping.Done())
}

// breakOff ends a call without an answer. What cannot be reset is closed.
func breakOff(w http.ResponseWriter) { _ = effects.BreakOff(w) }

// writeAnswer writes an answer of the cloud's own, or what a cloud would answer.
func writeAnswer(w http.ResponseWriter, kind conformance.FaultKind, a protocol.ProxyAnswer) {
	status := cmp.Or(a.Status, statuses[kind])
	w.Header().Set("Content-Type", "application/json")
	if status == http.StatusTooManyRequests {
		w.Header().Set("Retry-After", "1")
	}
	for name, value := range a.Headers {
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

// answerStale answers as the same question was first answered under the fault.
func (p *Proxy) answerStale(w http.ResponseWriter, r *http.Request, f *fault) {
	question := r.Method + " " + r.URL.RequestURI() + " " + r.Header.Get("Authorization")
	if !slices.Contains([]string{http.MethodGet, http.MethodHead}, r.Method) { // What is asked is in the body.
		body, _ := io.ReadAll(r.Body) // It is in memory.
		r.Body = io.NopCloser(bytes.NewReader(body))
		question += " " + string(body)
	}
	a, err := f.stale.GetOrCapture(question, func() (effects.Answer, error) {
		return effects.Capture(p.forward, r, maxBody)
	})
	sendCaptured(w, a, err)
}

// sendCaptured answers with what was captured. What was too long is broken off.
func sendCaptured(w http.ResponseWriter, a effects.Answer, err error) {
	if err != nil {
		breakOff(w)
		return
	}
	_ = a.Send(w)
}

// answerEdited answers with things, or fields of them, left out.
func (p *Proxy) answerEdited(w http.ResponseWriter, r *http.Request, c call, f *fault) {
	a, err := effects.Capture(p.forward, r, maxBody)
	if err == nil && a.Status < http.StatusMultipleChoices && r.Method != http.MethodHead {
		edited, err := c.rule.editAnswer(a.Body, f.Kind)
		if err != nil {
			err = fmt.Errorf("fault %s was not made: the answer to %s %s: %w", f.Kind, r.Method, r.URL.Path, err)
			p.mu.Lock()
			f.err = err
			p.mu.Unlock()
		} else {
			a.Body = edited
		}
	}
	sendCaptured(w, a, err)
}

// editAnswer leaves out of a JSON answer what a fault of this kind leaves out.
func (c *compiledRule) editAnswer(whole json.RawMessage, kind conformance.FaultKind) (json.RawMessage, error) {
	if err := json.Unmarshal(whole, new(json.RawMessage)); err != nil {
		return nil, fmt.Errorf("it is no JSON: %w", err)
	}
	if c.List == nil {
		return effects.ChangeAt(whole, c.Item, c.omitStates)
	}
	keep := map[conformance.FaultKind]int{
		conformance.FaultPartialList: 1, conformance.FaultMissingField: math.MaxInt,
	}[kind]
	whole, err := effects.ChangeAt(whole, *c.List, func(list json.RawMessage) (json.RawMessage, error) {
		list, err := effects.ShortenList(list, keep)
		if err != nil {
			return nil, fmt.Errorf("it has no list at %q", *c.List)
		}
		if kind == conformance.FaultMissingField {
			return c.omitStates(list)
		}
		return list, nil
	})
	if kind == conformance.FaultMissingField {
		return whole, err
	}
	for _, pointer := range c.NextPage { // Nothing says that there is more.
		if err == nil {
			whole, err = effects.RemoveField(whole, effects.PointerKeys(pointer)...)
		}
	}
	return whole, err
}

// omitStates leaves out of a thing, or each thing of a list, the fields that say what state it is in.
func (c *compiledRule) omitStates(value json.RawMessage) (json.RawMessage, error) {
	var err error
	for _, pointer := range c.StateFields {
		if value, err = effects.RemoveField(value, effects.PointerKeys(pointer)...); err != nil {
			return nil, err
		}
	}
	return value, nil
}
