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

// Answer is one that was given, to be given again.
type Answer struct {
	Status int
	Header http.Header
	Body   []byte
}

// Answers are those that one rule has seen, by what was asked. Safe for
// concurrent use; the zero value is empty.
type Answers struct {
	mu    sync.Mutex
	known map[string]Answer
	bytes int
}

// Get gives what was answered to the question before.
func (a *Answers) Get(question string) (Answer, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	known, ok := a.known[question]
	return known, ok
}

// Keep remembers an answer, and gives the one that is to be given: of two that
// were found at once, the first.
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
