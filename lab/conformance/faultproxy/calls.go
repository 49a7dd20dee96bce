package faultproxy

// What the CCM calls.

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/ccmlab/ccmlab/lab/conformance"
)

// maxJournal is how many calls the journal keeps. It is asked for several times a minute.
const maxJournal = 50_000

// call is a call of the CCM.
type call struct {
	rule      *compiledRule // nil for what is about no thing
	id        string        // that the path names
	operation string
	serial    int
	began     time.Time
}

func (c call) reads(method string) bool {
	if c.rule != nil && (c.rule.Reads != nil || c.rule.Method != "") {
		return c.rule.reads
	}
	return method == http.MethodGet || method == http.MethodHead || method == http.MethodOptions
}

// beginCall counts a call, and finds the fault that it meets; nil for none.
func (p *Proxy) beginCall(r *http.Request) (call, *fault) {
	c := call{operation: r.Method + " " + r.URL.Path, began: time.Now()}
	if c.rule, c.id = p.ruleOf(r); c.rule != nil {
		c.operation = r.Method + " " + c.rule.Path
	}
	count := conformance.Count{Writes: 1}
	if c.reads(r.Method) {
		count = conformance.Count{Reads: 1}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.serial++
	c.serial = p.serial
	p.counted.Count = p.counted.And(count)
	if c.rule != nil {
		p.counted.Of[c.rule.Thing] = p.counted.Of[c.rule.Thing].And(count)
	}
	for _, f := range p.faults {
		if f.meets(c, c.reads(r.Method)) {
			if f.counts(c) {
				f.hits++
			}
			return c, f
		}
	}
	return c, nil
}

// endCall writes a call into the journal.
func (p *Proxy) endCall(c call, met *fault, status int) {
	entry := conformance.Call{
		ID: strconv.Itoa(c.serial), Began: c.began, Answered: time.Now(), Operation: c.operation, Resource: c.id,
		Answer: strconv.Itoa(status), Failed: status == 0 || status >= http.StatusBadRequest,
	}
	if status == 0 {
		entry.Answer = "broken off"
	}
	if met != nil {
		entry.Answer += fmt.Sprintf(", by fault %s", met.Kind)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.journal = append(p.journal, entry)
	if len(p.journal) > maxJournal {
		p.journal = slices.Clone(p.journal[maxJournal/2:])
	}
}

// CountCalls implements conformance.Proxy.
func (p *Proxy) CountCalls(context.Context) (conformance.Calls, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	counted := conformance.Calls{Count: p.counted.Count, Of: map[conformance.Thing]conformance.Count{}}
	for thing, count := range p.counted.Of {
		counted.Of[thing] = count
	}
	return counted, nil
}

// CallsSince implements conformance.Proxy.
func (p *Proxy) CallsSince(_ context.Context, since time.Time) ([]conformance.Call, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	var calls []conformance.Call
	for _, c := range p.journal {
		if !c.Answered.Before(since) {
			calls = append(calls, c)
		}
	}
	slices.SortStableFunc(calls, func(a, b conformance.Call) int { return a.Answered.Compare(b.Answered) })
	return calls, nil
}
