package faultproxy

// Faults: what a call gets instead of its answer.

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ccmlab/ccmlab/fakecloud/faults/effects"
	"github.com/ccmlab/ccmlab/lab/conformance"
	"github.com/ccmlab/ccmlab/lab/conformance/driver/protocol"
)

// ownAnswerOnly are kinds that are made only with an answer of the cloud's own: a 404 is the truth
// for a CCM unless something in it says whose project or account was looked at.
var ownAnswerOnly = []conformance.FaultKind{conformance.FaultForeignNotFound, conformance.FaultNotFound}

// alwaysKinds are made with any cloud.
var alwaysKinds = []conformance.FaultKind{
	conformance.FaultUnauthorized, conformance.FaultForbidden, conformance.FaultThrottled,
	conformance.FaultServerError, conformance.FaultUnavailable, conformance.FaultTimeout, conformance.FaultReset,
	conformance.FaultRefused, conformance.FaultGarbage, conformance.FaultStale, conformance.FaultSlow,
	conformance.FaultLost, conformance.FaultConflict, conformance.FaultPrecondition,
	conformance.FaultThrottledFor, conformance.FaultUnavailableFor,
}

// refusalKinds lists the kinds for which a cloud may have answers of its own, for messages.
func refusalKinds() string {
	kinds := slices.Sorted(maps.Keys(conformance.FaultStatuses))
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
	for _, kind := range conformance.AllFaultKinds() {
		if slices.ContainsFunc(p.rules, func(r compiledRule) bool { return len(r.fieldsOf(kind)) > 0 }) {
			kinds = append(kinds, kind)
		}
	}
	return kinds
}

// fieldsOf returns the fields that a fault leaves out of what a rule is about.
func (c *compiledRule) fieldsOf(kind conformance.FaultKind) []string {
	switch {
	case kind == conformance.FaultMissingField:
		return c.StateFields
	case slices.Contains(conformance.MissingFieldKinds(c.Thing), kind):
		return c.Fields[conformance.FieldGroup(kind)]
	}
	return nil
}

// EditingKinds lists the faults that leave something out of the answers to calls that fit a rule, by its number, from
// 1 on. One of a list that empties it comes first.
func (p *Proxy) EditingKinds(rule int) (kinds []conformance.FaultKind) {
	r := p.rules[rule-1]
	if r.List != nil {
		kinds = append(kinds, conformance.FaultEmptyList)
	}
	for _, kind := range conformance.AllFaultKinds() {
		if len(r.fieldsOf(kind)) > 0 {
			kinds = append(kinds, kind)
		}
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

	// The proxy's mu guards what follows.
	hits int
	err  error // that it could not be made
	// unchanged says of which answer nothing was left out: that of a thing without the field, unless the rule is wrong.
	unchanged error
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
	if f.hits == 0 && f.err == nil {
		return 0, f.unchanged
	}
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
	case conformance.FaultStale:
		return reads && c.rule != nil // A stream of events never ends, and is nothing to keep.
	case conformance.FaultLost, conformance.FaultConflict, conformance.FaultPrecondition:
		return !reads
	case conformance.FaultNotFound:
		return c.rule != nil && (c.rule.List != nil || c.id != "")
	}
	if f.leavesOutFields() {
		return c.rule != nil && reads && len(c.rule.fieldsOf(f.Kind)) > 0
	}
	return true
}

// leavesOutFields tells a fault that leaves fields of things out of answers.
func (f *fault) leavesOutFields() bool {
	return strings.HasPrefix(string(f.Kind), "missing-")
}

// edits tells a fault that leaves something out of answers: a hit is an answer that had it.
func (f *fault) edits() bool {
	return f.leavesOutFields() || f.Kind == conformance.FaultEmptyList || f.Kind == conformance.FaultPartialList
}

// counts tells whether a call that gets the fault is a hit as soon as it comes. An empty list of a cloud that has lost
// its data is none: the CCM is to have asked for the one thing.
func (f *fault) counts(c call) bool {
	return !f.edits() && (f.Kind != conformance.FaultNotFound || c.rule.List == nil)
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
	if f.edits() {
		p.answerEdited(w, r, c, f)
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
		_, _ = io.WriteString(w, conformance.Garbage)
	case conformance.FaultSlow:
		p.forward.ServeHTTP(w, r)
	case conformance.FaultLost:
		// It is carried out, whether its caller still waits or not.
		effects.CarryOut(p.forward, r.WithContext(context.WithoutCancel(r.Context())))
		f.hold(r, effects.HoldForever)
		breakOff(w)
	case conformance.FaultStale:
		p.answerStale(w, r, f)
	case conformance.FaultNotFound:
		if c.rule.List != nil {
			p.answerEdited(w, r, c, f)
			return
		}
		writeAnswer(w, f.Kind, p.answers[string(f.Kind)])
	case conformance.FaultThrottledFor, conformance.FaultUnavailableFor:
		// But for the header, the cloud answers as it does without it.
		like, _ := strings.CutSuffix(string(f.Kind), "-retry-after")
		a := p.answers[like]
		a.Headers = maps.Clone(a.Headers)
		if a.Headers == nil {
			a.Headers = map[string]string{}
		}
		a.Headers["Retry-After"] = strconv.Itoa(int(conformance.RetryAfter.Seconds()))
		writeAnswer(w, f.Kind, a)
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
	status := cmp.Or(a.Status, conformance.FaultStatuses[kind])
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
		edited, err := c.rule.editAnswer(a.Body, f)
		if err == nil {
			f.recordEdit(r, a.Body, edited)
			a.Body = edited
		} else {
			p.mu.Lock()
			f.err = notMade(f.Kind, r, err)
			p.mu.Unlock()
		}
	}
	sendCaptured(w, a, err)
}

// notMade is the error of a fault that left an answer as it was.
func notMade(kind conformance.FaultKind, r *http.Request, why error) error {
	return fmt.Errorf("fault %s was not made: the answer to %s %s: %w", kind, r.Method, r.URL.Path, why)
}

// errUnchanged is why a fault was not made where the answer has nothing to leave out.
var errUnchanged = errors.New("it has nothing of what is to be left out")

// IsUnchanged tells whether a fault was not made because an answer had nothing of what it leaves out.
func IsUnchanged(err error) bool { return errors.Is(err, errUnchanged) }

// recordEdit counts an answer as a hit if the fault has changed it.
func (f *fault) recordEdit(r *http.Request, before, after json.RawMessage) {
	if !f.edits() {
		return
	}
	f.proxy.mu.Lock()
	defer f.proxy.mu.Unlock()
	if effects.IsSame(before, after) {
		f.unchanged = notMade(f.Kind, r, errUnchanged)
		return
	}
	f.hits++
}

// editAnswer leaves out of a JSON answer what a fault leaves out.
func (c *compiledRule) editAnswer(whole json.RawMessage, f *fault) (json.RawMessage, error) {
	if err := json.Unmarshal(whole, new(json.RawMessage)); err != nil {
		return nil, fmt.Errorf("it is no JSON: %w", err)
	}
	change := func(value json.RawMessage) (json.RawMessage, error) { return omitFields(value, c.fieldsOf(f.Kind)) }
	if c.List == nil {
		return effects.ChangeAt(whole, c.Item, change)
	}
	keep := map[conformance.FaultKind]int{conformance.FaultPartialList: 1}[f.Kind]
	if f.leavesOutFields() {
		keep = math.MaxInt
	}
	whole, err := effects.ChangeAt(whole, *c.List, func(list json.RawMessage) (json.RawMessage, error) {
		list, err := effects.ShortenList(list, keep)
		if err != nil {
			return nil, fmt.Errorf("it has no list at %q", *c.List)
		}
		return change(list)
	})
	if f.leavesOutFields() {
		return whole, err
	}
	for _, pointer := range c.NextPage { // Nothing says that there is more.
		if err == nil {
			whole, err = effects.RemoveField(whole, effects.PointerKeys(pointer)...)
		}
	}
	return whole, err
}

// omitFields leaves fields out of a thing, or each thing of a list.
func omitFields(value json.RawMessage, pointers []string) (json.RawMessage, error) {
	var err error
	for _, pointer := range pointers {
		if value, err = effects.RemoveField(value, effects.PointerKeys(pointer)...); err != nil {
			return nil, err
		}
	}
	return value, nil
}
