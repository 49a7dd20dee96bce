package faults

import (
	"net/http"
	"sync"
)

// What one rule remembers is bounded; what is beyond that is answered truly.
const (
	maxAnswers     = 1000
	maxAnswerBytes = 32 << 20
)

// Answer is an answer that was given, to be given again.
type Answer struct {
	Status int
	Header http.Header
	Body   []byte
}

// Answers are those that one stale rule has captured, by the request. Safe for concurrent
// use; the zero value is empty.
type Answers struct {
	mu    sync.Mutex
	known map[string]Answer
	bytes int
}

// Get gives what a request was answered before.
func (a *Answers) Get(question string) (Answer, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	known, ok := a.known[question]
	return known, ok
}

// Keep stores an answer and gives the one to answer with: if two were captured at once,
// the first.
func (a *Answers) Keep(question string, found Answer) Answer {
	a.mu.Lock()
	defer a.mu.Unlock()
	if known, ok := a.known[question]; ok {
		return known
	}
	if len(a.known) < maxAnswers && a.bytes+len(found.Body) <= maxAnswerBytes {
		if a.known == nil {
			a.known = map[string]Answer{}
		}
		a.known[question] = found
		a.bytes += len(found.Body)
	}
	return found
}
