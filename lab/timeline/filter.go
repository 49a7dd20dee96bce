package timeline

// The filter of `lab watch`.

import (
	"fmt"
	"path"
	"slices"
	"strings"
	"time"
)

// Calls is which of the cloud's calls are of interest.
type Calls string

// The choices of them.
const (
	// CallsChanges leaves out reads that succeed: every CCM reads all the time.
	CallsChanges Calls = "changes"
	CallsAll     Calls = "all"
	CallsNone    Calls = "none"
)

// CallChoices are all of them, the default first.
var CallChoices = []Calls{CallsChanges, CallsAll, CallsNone}

// Filter selects entries. All fields that are set must match; of a list, any one
// element. An empty Calls is CallsChanges.
type Filter struct {
	Sources []Source
	// Subjects and Callers may have the wildcards of path.Match; here they match
	// a slash as well.
	Subjects, Callers []string
	Failed            bool
	Calls             Calls
	Since             time.Time
}

// Check returns an error if a pattern is malformed.
func (f Filter) Check() error {
	for _, pattern := range slices.Concat(f.Subjects, f.Callers) {
		if _, err := path.Match(pattern, ""); err != nil {
			return fmt.Errorf("%q is no pattern: %w", pattern, err)
		}
	}
	return nil
}

// WantsCalls tells whether any call can pass.
func (f Filter) WantsCalls() bool {
	return f.Calls != CallsNone && (len(f.Sources) == 0 || slices.Contains(f.Sources, SourceCall))
}

// Match tells whether an entry passes.
func (f Filter) Match(e Entry) bool {
	switch {
	case e.Time.Before(f.Since),
		f.Failed && !e.Failed,
		len(f.Sources) > 0 && !slices.Contains(f.Sources, e.Source),
		!anyMatches(f.Subjects, e.Subject),
		!anyMatches(f.Callers, e.Caller):
		return false
	}
	if e.Call == nil || f.Calls == CallsAll {
		return true
	}
	return f.Calls != CallsNone && (e.Failed || !e.Call.Reads())
}

func anyMatches(patterns []string, s string) bool {
	return len(patterns) == 0 || slices.ContainsFunc(patterns, func(p string) bool {
		ok, err := path.Match(flattenSlashes(p), flattenSlashes(s))
		return ok && err == nil
	})
}

// flattenSlashes has path.Match see no separators.
func flattenSlashes(s string) string { return strings.ReplaceAll(s, "/", "\x1f") }
