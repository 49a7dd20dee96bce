package record

// Where a recorder reads what it is not told.

import (
	"context"
	"time"
)

// Journal is implemented by a Cloud that knows which calls the CCM makes. They
// go into the tests' timelines and change no verdict.
type Journal interface {
	// CallsSince returns the CCM's calls that were answered at this time or later, the
	// oldest first. Callers ask for overlapping times.
	CallsSince(ctx context.Context, since time.Time) ([]Call, error)
}

// Call is one call of the cloud's API.
type Call struct {
	// ID sets it apart from all others.
	ID string
	// Began and Answered are by this machine's clock. The answer of a stream may have
	// gone on after Answered.
	Began, Answered time.Time
	// Operation is what the cloud calls it.
	Operation string
	// Resource is the ID of what it is about; "" for a list.
	Resource string
	// Answer in a few words: a status, an error's code, that a fault was behind it.
	Answer string
	Failed bool
}

// LogFiles names the files that a CCM logs to.
type LogFiles interface {
	// LogFiles may differ from one time to the next, and need not be there yet.
	LogFiles() []string
}
