package lab

// What dies while somebody waits for its work is told at once, with the end of
// its log, and not when the wait has reached its bound.

import (
	"context"
	"time"
)

// vigilEvery is how often it is looked whether all still runs.
const vigilEvery = 500 * time.Millisecond

// watched does a step, and ends it when one of the control plane's processes
// ends, each of which should outlast it.
func (u *up) watched(ctx context.Context, note func(string), do func(context.Context, func(string)) (string, error)) (string, error) {
	cluster, ok := u.Cluster.(interface{ Ended() error })
	if !ok || u.kube == nil { // The step that makes the control plane looks after it itself.
		return do(ctx, note)
	}
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() {
		ended <- awaitEnd(ctx, cluster.Ended)
		cancel()
	}()
	said, err := do(ctx, note)
	cancel()
	if died := <-ended; err != nil && died != nil {
		return "", died // What was waited for could not come.
	}
	return said, err
}

// awaitEnd looks until something has ended, or ctx has.
func awaitEnd(ctx context.Context, look func() error) error {
	tick := time.NewTicker(vigilEvery)
	defer tick.Stop()
	for {
		if err := look(); err != nil {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}
