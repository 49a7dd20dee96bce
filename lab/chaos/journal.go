package main

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"sync"
	"time"
)

// journal writes what happens, as it happens.
type journal struct {
	mu   sync.Mutex
	to   io.Writer
	sums map[string]int
}

// line is one of the journal's.
type line struct {
	Time   time.Time `json:"time"`
	What   string    `json:"what"`
	Round  int       `json:"round"`
	Action *Action   `json:"action,omitempty"`
	Text   string    `json:"text,omitempty"`
	Error  string    `json:"error,omitempty"`
}

// add writes a line and counts it. A journal that cannot be written is no reason to stop.
func (j *journal) add(l line, err error) {
	l.Time = time.Now()
	if err != nil {
		l.Error = err.Error()
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.sums == nil {
		j.sums = map[string]int{}
	}
	key := l.What
	if l.Action != nil {
		key += " " + string(l.Action.Do)
	}
	if err != nil {
		key += ", failed"
	}
	j.sums[key]++
	_ = json.NewEncoder(j.to).Encode(l)
}

// printSums writes how often what happened.
func (j *journal) printSums(out io.Writer) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, key := range slices.Sorted(maps.Keys(j.sums)) {
		_, _ = fmt.Fprintf(out, "%7d  %s\n", j.sums[key], key) // Of a terminal.
	}
}
