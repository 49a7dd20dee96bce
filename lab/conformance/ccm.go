package conformance

import "context"

// CCM is the cloud controller manager under test.
type CCM interface {
	// Start has it run. It need not lead when Start returns. Starting one that
	// runs does nothing.
	Start(ctx context.Context) error
	// Stop ends it, and returns when it has ended. Stopping one that does not
	// run does nothing.
	Stop(ctx context.Context) error
	// Crashed gets a value each time it ends without Stop.
	Crashed() <-chan struct{}
	// Log is the last lines of what it has said.
	Log(lines int) []string
}

// Logs is for a CCM to implement whose words are in files, one for each replica:
// they go into the tests' timelines.
type Logs interface {
	// LogFiles may differ from one time to the next, and need not be there yet.
	LogFiles() []string
}
