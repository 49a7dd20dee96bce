package timeline

// Entries of several sources in one order, though some sources report later than others.

import (
	"slices"
	"time"
)

// Merge holds entries back until all sources have reported what happened before
// them. An entry that comes later still is out of order, but not lost.
type Merge struct {
	held  []heldEntry
	names map[string]string // subjects by their cloud's ID
}

type heldEntry struct {
	Entry
	seen time.Time
}

// Add takes in what was seen at that time.
func (m *Merge) Add(seen time.Time, entries ...Entry) {
	if m.names == nil {
		m.names = map[string]string{}
	}
	for _, e := range entries {
		if e.Source == SourceCloud && e.ID != "" {
			m.names[e.ID] = e.Subject
		}
		m.held = append(m.held, heldEntry{e, seen})
	}
}

// Until returns, in order, the entries from before then. An entry with a time in the
// future, from a clock that was set, counts as of when it was added. Calls get the subjects
// that the cloud's events have for their IDs.
func (m *Merge) Until(then time.Time) []Entry {
	var due []Entry
	m.held = slices.DeleteFunc(m.held, func(h heldEntry) bool {
		if happenedAt(h.Entry).After(then) && h.seen.After(then) {
			return false
		}
		if name := m.names[h.ID]; name != "" && h.Source == SourceCall {
			h.Subject = name
		}
		due = append(due, h.Entry)
		return true
	})
	slices.SortStableFunc(due, byTime)
	return due
}

// All returns what is still held.
func (m *Merge) All() []Entry {
	last := time.Time{}
	for _, h := range m.held {
		if h.seen.After(last) {
			last = h.seen
		}
	}
	return m.Until(last)
}
