package conformance

import (
	"context"

	"github.com/ccmlab/ccmlab/lab/conformance/record"
)

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
type Logs = record.LogFiles

// Replicated is a CCM of which several can run beside each other, as the replicas
// of a Deployment do.
type Replicated interface {
	CCM
	// Replica is one of them, always the same for the same number. Number 0 is the
	// CCM itself, the others are not started. All are given the same, but for
	// where they listen and what only they write to.
	Replica(number int) (Replica, error)
}

// ClusterRenamer is a CCM that is told what its cluster is called, and can be told otherwise. It
// shows FeatureRenameCluster.
type ClusterRenamer interface {
	// CanRenameCluster tells whether the CCM is told a name at all.
	CanRenameCluster() bool
	// RenameCluster has the cluster called so from the CCM's next start on, "" by its own name.
	RenameCluster(name string)
}

// FlagTaker is a CCM that can be started with further flags, as k8s.io/cloud-provider's app has
// them.
type FlagTaker interface {
	CCM
	// SetExtraFlags says which flags it has besides its own from the next start on.
	SetExtraFlags(flags ...string)
}

// HealthServer is a CCM that may be told where to serve health and metrics. It shows FeatureHealthAddress.
type HealthServer interface {
	// HealthAddress is HOST:PORT, or "" if it is told none.
	HealthAddress() string
}

// Replica is one of several CCMs.
type Replica interface {
	CCM
	// Running tells whether it runs, frozen or not.
	Running() bool
	// Kill ends it without a chance to do anything, as the end of its machine does,
	// and returns when it has ended. It is no crash.
	Kill(ctx context.Context) error
	// Freeze stops it where it is, as a machine that is suspended does: it does not
	// notice. It must run. When it ends afterwards, that is no crash: a leader that
	// was away for longer than its lease has nothing better to do.
	Freeze() error
	// Thaw lets a frozen one go on.
	Thaw() error
}
