package cluster

import (
	"context"
	"fmt"
	"log/slog"
	"time"
)

const pollEvery = 50 * time.Millisecond

// Poll calls try until it succeeds or ctx ends. The error then names what was waited
// for, and the last failure.
func Poll(ctx context.Context, what string, try func(context.Context) error) error {
	return PollEvery(ctx, pollEvery, what, try)
}

// PollEvery is Poll with a longer interval, for a try that costs more.
func PollEvery(ctx context.Context, every time.Duration, what string, try func(context.Context) error) error {
	tick := time.NewTicker(every)
	defer tick.Stop()
	var last error
	for {
		err := try(ctx)
		if err == nil {
			return nil
		}
		if last == nil || err.Error() != last.Error() {
			slog.Debug("waiting for "+what, "so far", err)
		}
		if last == nil || ctx.Err() == nil { // The end itself stood in no way.
			last = err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("waited for %s: %w; last: %w", what, context.Cause(ctx), last)
		}
	}
}
