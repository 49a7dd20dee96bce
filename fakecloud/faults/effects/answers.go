package effects

import (
	"bytes"
	"errors"
	"maps"
	"net/http"
	"strconv"
	"sync"
)

// Answer is a whole answer to a call.
type Answer struct {
	Status int
	Header http.Header
	Body   []byte
}

// Send answers a call with it.
func (a Answer) Send(w http.ResponseWriter) error {
	maps.Copy(w.Header(), a.Header)
	w.Header().Set("Content-Length", strconv.Itoa(len(a.Body))) // It may have been edited.
	w.WriteHeader(a.Status)
	_, err := w.Write(a.Body)
	return err
}

// ErrTooLong says that an answer is too long for a fault to keep or change.
var ErrTooLong = errors.New("the answer is too long for a fault to keep or change")

// answerWriter is an http.ResponseWriter that keeps an answer instead of sending it.
type answerWriter struct {
	header  http.Header
	status  int
	body    bytes.Buffer
	limit   int  // of the body; 0 throws it away
	tooLong bool // it did not fit
}

// Header implements http.ResponseWriter.
func (a *answerWriter) Header() http.Header { return a.header }

// WriteHeader implements http.ResponseWriter.
func (a *answerWriter) WriteHeader(status int) {
	if a.status == 0 && status >= http.StatusOK {
		a.status = status
	}
}

// Write implements http.ResponseWriter.
func (a *answerWriter) Write(b []byte) (int, error) {
	a.WriteHeader(http.StatusOK)
	switch {
	case a.limit == 0:
		return len(b), nil
	case a.tooLong || a.body.Len()+len(b) > a.limit:
		a.tooLong = true
		return 0, ErrTooLong
	}
	return a.body.Write(b)
}

// CarryOut has next carry out a call. Nobody gets the answer.
func CarryOut(next http.Handler, r *http.Request) {
	next.ServeHTTP(&answerWriter{header: http.Header{}}, r)
}

// Capture has next answer a call and returns the answer: all of it, not compressed, and not only what
// has changed. A body of more than limit bytes is ErrTooLong.
func Capture(next http.Handler, r *http.Request, limit int) (Answer, error) {
	for _, name := range []string{"Accept-Encoding", "If-None-Match", "If-Modified-Since", "Range"} {
		r.Header.Del(name)
	}
	a := &answerWriter{header: http.Header{}, limit: limit}
	next.ServeHTTP(a, r)
	if a.tooLong {
		return Answer{}, ErrTooLong
	}
	a.WriteHeader(http.StatusOK) // Of a handler that wrote nothing.
	return Answer{Status: a.status, Header: a.header, Body: a.body.Bytes()}, nil
}

// What one fault keeps is bounded; calls beyond that are answered truly. answerOverhead stands for an
// answer's header.
const (
	maxAnswersBytes = 32 << 20
	answerOverhead  = 1 << 10
)

// Answers are those that a stale fault gives again, by the question. Safe for concurrent use; the zero
// value is empty.
type Answers struct {
	mu    sync.Mutex
	known map[string]Answer
	bytes int
}

// GetOrCapture returns the first answer to a question: the one that is kept, or else what capture
// returns, which is kept from then on. If two are captured at once, both callers get the first.
func (a *Answers) GetOrCapture(question string, capture func() (Answer, error)) (Answer, error) {
	a.mu.Lock()
	first, ok := a.known[question]
	a.mu.Unlock()
	if ok {
		return first, nil
	}
	found, err := capture()
	if err != nil {
		return found, err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if first, ok := a.known[question]; ok {
		return first, nil
	}
	if size := len(question) + len(found.Body) + answerOverhead; a.bytes+size <= maxAnswersBytes {
		if a.known == nil {
			a.known = map[string]Answer{}
		}
		a.known[question] = found
		a.bytes += size
	}
	return found, nil
}
