package cluster

import "context"

// Pausable is a cluster that can end all that runs, as Down does, but keep its state:
// StartCloud, StartControlPlane and Boot restore it.
type Pausable interface {
	Pause(ctx context.Context) (ended int, err error)
}
