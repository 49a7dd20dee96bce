package follow

import (
	"maps"
	"time"
)

// Calls tells which of a cloud's calls are new when their lists overlap, as they must: the order of calls
// and that of their times differ by a little.
type Calls[C any] struct {
	// Key returns what sets a call apart from all others, and its time.
	Key func(C) (id string, at time.Time)
	// Overlap is how much the two orders may differ.
	Overlap time.Duration
	// Since is the time from which on calls may be new.
	Since time.Time

	known map[string]time.Time // IDs of calls since then
}

// IsOld tells whether a call is from before Since, or was new before.
func (c *Calls[C]) IsOld(call C) bool {
	id, at := c.Key(call)
	_, known := c.known[id]
	return known || at.Before(c.Since)
}

// New returns the calls of a list that are new, and moves Since.
func (c *Calls[C]) New(listed []C) (fresh []C) {
	if c.known == nil {
		c.known = map[string]time.Time{}
	}
	since := c.Since
	for _, call := range listed {
		if c.IsOld(call) {
			continue
		}
		id, at := c.Key(call)
		c.known[id] = at
		fresh = append(fresh, call)
		if at = at.Add(-c.Overlap); at.After(since) {
			since = at
		}
	}
	c.Since = since
	maps.DeleteFunc(c.known, func(_ string, at time.Time) bool { return at.Before(since) })
	return fresh
}
