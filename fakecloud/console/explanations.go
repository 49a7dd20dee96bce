package console

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"sync"
	"time"
)

const (
	// explanationAge is how long an explanation is given to whoever asks for the same one.
	explanationAge = 2 * time.Second
	// maxExplanations bounds the different ones that are worked out in that time: each asks the whole cluster.
	maxExplanations = 8
)

var errManyExplanations = errors.New("more is being explained than this page does at a time; ask again in a moment")

// explanations work out each explanation once for all who ask for it at about the same time.
type explanations struct {
	explain func(ctx context.Context, subject string) (any, error)
	mu      sync.Mutex
	recent  map[string]*explanation
}

// asOfHeader has when the working out of an explanation began. What has changed since then may be missing from it: a
// page asks again.
const asOfHeader = "As-Of"

// explanation is one that is worked out until done is closed.
type explanation struct {
	asOf   time.Time
	done   chan struct{}
	answer any
	err    error
}

// newExplanations serves what Page.Explain says. Whoever may only read uses up nothing of those who may change things.
func (p *Page) newExplanations() http.HandlerFunc {
	byAccess := map[Access]*explanations{}
	for _, access := range []Access{MayRead, MayChange} {
		byAccess[access] = &explanations{explain: p.Explain, recent: map[string]*explanation{}}
	}
	return func(w http.ResponseWriter, r *http.Request) { byAccess[sessionOf(r).Access].serve(w, r) }
}

// serve answers with the explanation of the request's subject.
func (e *explanations) serve(w http.ResponseWriter, r *http.Request) {
	explanation, asOf, err := e.of(context.WithoutCancel(r.Context()), r.URL.Query().Get("subject"))
	if errors.Is(err, errManyExplanations) {
		w.Header().Set("Retry-After", strconv.Itoa(int(explanationAge.Seconds())))
		answerJSONStatus(w, http.StatusTooManyRequests, map[string]string{"error": err.Error()})
		return
	}
	w.Header().Set(asOfHeader, asOf.UTC().Format(time.RFC3339Nano))
	answerJSON(w, explanation, err)
}

func (e *explanations) of(ctx context.Context, subject string) (answer any, asOf time.Time, err error) {
	e.mu.Lock()
	known := e.recent[subject]
	if known != nil {
		e.mu.Unlock()
		<-known.done
		return known.answer, known.asOf, known.err
	}
	if len(e.recent) >= maxExplanations {
		e.mu.Unlock()
		return nil, asOf, errManyExplanations
	}
	mine := &explanation{asOf: time.Now(), done: make(chan struct{})}
	e.recent[subject] = mine
	e.mu.Unlock()
	defer time.AfterFunc(explanationAge, func() { e.forget(subject) })
	defer close(mine.done)
	mine.answer, mine.err = e.explain(ctx, subject)
	return mine.answer, mine.asOf, mine.err
}

func (e *explanations) forget(subject string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.recent, subject)
}
