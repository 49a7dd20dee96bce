package cluster

import "context"

// Pausable is a cluster that can end all that runs, as Down does, and keep what
// it knows: StartCloud, StartControlPlane and Boot come back to the same.
type Pausable interface {
	Pause(ctx context.Context) (ended int, err error)
}
