package cluster

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
)

const pollEvery = 50 * time.Millisecond

// PermanentError is an error that no further try takes away.
type PermanentError struct{ error }

// Permanent makes err a PermanentError.
func Permanent(err error) error { return PermanentError{err} }

// Poll calls try until it succeeds or ctx ends. The error then names what was waited
// for, and the last failure. A PermanentError ends it at once, and is returned as it is.
func Poll(ctx context.Context, what string, try func(context.Context) error) error {
	return PollEvery(ctx, pollEvery, what, try)
}

// PollEvery is Poll with a longer interval, for a try that costs more.
func PollEvery(ctx context.Context, every time.Duration, what string, try func(context.Context) error) error {
	var last error
	var permanent PermanentError
	err := wait.PollUntilContextCancel(ctx, every, true, func(ctx context.Context) (bool, error) {
		err := try(ctx)
		if err == nil {
			return true, nil
		}
		if errors.As(err, &permanent) {
			return false, permanent
		}
		if last == nil || err.Error() != last.Error() {
			slog.Debug("waiting for "+what, "so far", err)
		}
		if last == nil || ctx.Err() == nil { // The end itself stood in no way.
			last = err
		}
		return false, nil
	})
	switch {
	case permanent.error != nil:
		return permanent.error
	case err != nil:
		return fmt.Errorf("waited for %s: %w; last: %w", what, context.Cause(ctx), last)
	}
	return nil
}
