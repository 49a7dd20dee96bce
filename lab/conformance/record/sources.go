package record

// Where a recorder reads what it is not told.

import (
	"context"
	"time"
)

// Journal is for a Cloud to implement that knows which calls the CCM makes: they
// go into the tests' timelines, and into no verdict.
type Journal interface {
	// CallsSince are the CCM's calls that were answered at this time or later, the
	// oldest first. The same may be asked for again.
	CallsSince(ctx context.Context, since time.Time) ([]Call, error)
}

// Call is one call of the cloud's API.
type Call struct {
	// ID sets it apart from all others.
	ID string
	// Began is by this machine's clock; Answered too, but another answer, that of
	// a stream, may have gone on after it.
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
