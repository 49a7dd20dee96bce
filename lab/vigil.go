package lab

// What dies while somebody waits for its work is told at once, with the end of
// its log, and not when the wait has reached its bound.

import (
	"context"
	"time"
)

// vigilEvery is how often it is looked whether all still runs.
const vigilEvery = 500 * time.Millisecond

// vigil ends ctx, with a cause that says why, when one of the control plane's
// processes ends, each of which should outlast the step. end must be called.
func (u *up) vigil(ctx context.Context) (watched context.Context, end func()) {
	watched, cancel := context.WithCancelCause(ctx)
	keeper, ok := u.Cluster.(interface{ Ended() error })
	if !ok || u.kube == nil { // Before the control plane is there, its own step looks after it.
		return watched, func() { cancel(nil) }
	}
	go func() {
		tick := time.NewTicker(vigilEvery)
		defer tick.Stop()
		for {
			if err := keeper.Ended(); err != nil {
				cancel(err)
				return
			}
			select {
			case <-tick.C:
			case <-watched.Done():
				return
			}
		}
	}()
	return watched, func() { cancel(nil) }
}
