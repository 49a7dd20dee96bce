package record

// Where a recorder reads what it is not told.

import (
	"context"
	"time"

	"github.com/ccmlab/ccmlab/lab/conformance/driver/protocol"
)

// Journal is implemented by a Cloud that knows which calls the CCM makes. They
// go into the tests' timelines and change no verdict.
type Journal interface {
	// CallsSince returns the CCM's calls that were answered at this time or later, the
	// oldest first. Callers ask for overlapping times.
	CallsSince(ctx context.Context, since time.Time) ([]protocol.Call, error)
}

// LogFiles names the files that a CCM logs to.
type LogFiles interface {
	// LogFiles may differ from one time to the next, and need not be there yet.
	LogFiles() []string
}
