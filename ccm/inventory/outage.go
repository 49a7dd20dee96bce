package inventory

// While lists fail, they are retried at growing intervals. In between, all callers get the last error.

import (
	"errors"
	"time"

	"github.com/cenkalti/backoff/v5"
	"k8s.io/klog/v2"

	"github.com/ccmlab/ccmlab/ccm/calls"
	"github.com/ccmlab/ccmlab/fakecloud/client"
)

const (
	// minListPause and maxListPause are between two lists of one kind that fail, give or take a
	// fifth. The longest pause is how late the end of an outage is noticed where there is no event
	// stream; one that opens ends all pauses.
	minListPause = time.Second
	maxListPause = 10 * time.Second
)

// listFailure is a failed list. Its error is returned until retryAt, or until another token is in use.
// The zero value is a list that did not fail.
type listFailure struct {
	err     error
	retryAt time.Time
	token   string // as Options.Token tells it apart
	// asked tells that retryAt is what the cloud asked for with Retry-After.
	asked bool
}

func newListBackoff() backoff.ExponentialBackOff {
	b := backoff.ExponentialBackOff{
		InitialInterval: minListPause, Multiplier: 2, RandomizationFactor: 0.2, MaxInterval: maxListPause,
	}
	b.Reset()
	return b
}

// recentFailure is the error of the newest list, if it is not yet time for the next.
func recentFailure[T any](i *Inventory, s *resourceStore[T]) error {
	token := i.currentToken()
	i.mu.Lock()
	defer i.mu.Unlock()
	if s.failure.token != token || !time.Now().Before(s.failure.retryAt) {
		return nil
	}
	return s.failure.err
}

// hasFailed tells whether the newest list failed.
func hasFailed[T any](i *Inventory, s *resourceStore[T]) bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	return s.failure.err != nil
}

// untilRetry is the time until the next list may be tried.
func untilRetry[T any](i *Inventory, s *resourceStore[T]) time.Duration {
	i.mu.Lock()
	defer i.mu.Unlock()
	return max(time.Until(s.failure.retryAt), 0)
}

// recordListResult records whether a list that was made with that token failed, and logs when
// that changes.
func recordListResult[T any](i *Inventory, s *resourceStore[T], token string, err error) {
	defer i.changes.deliver()
	i.mu.Lock()
	defer i.mu.Unlock()
	before := s.failure
	if err == nil {
		i.reportRecovery()
		s.failure = listFailure{}
		s.backoff.Reset()
		if before.err != nil {
			klog.InfoS("Listing the cloud's resources works again", "kind", s.kind)
		}
		return
	}
	i.unreachable = true
	pause := s.backoff.NextBackOff()
	var refused *client.Error
	asked := errors.As(err, &refused) && refused.RetryAfter > 0
	if asked {
		pause += min(refused.RetryAfter, calls.MaxRetryAfter)
	}
	s.failure = listFailure{err: err, retryAt: time.Now().Add(pause), token: token, asked: asked}
	if before.err == nil || causeOf(before.err) != causeOf(err) {
		klog.InfoS("Cannot list the cloud's resources; retrying at growing intervals",
			"kind", s.kind, "err", err)
	}
}

// endPause lets the next list be tried now, unless the cloud asked for the pause. The
// inventory's mu is held.
func (s *resourceStore[T]) endPause() {
	if !s.failure.asked {
		s.failure.retryAt = time.Time{}
		s.backoff.Reset()
	}
}

// reportRecovery queues the change that the cloud answers again, if it did not. mu is held.
func (i *Inventory) reportRecovery() {
	if i.unreachable {
		i.unreachable = false
		i.changes.add(Change{Kind: Recovered})
	}
}

// endOutage lets every kind be listed now: the cloud answers again. mu is held.
func (i *Inventory) endOutage() {
	i.instances.endPause()
	i.balancers.endPause()
	i.routes.endPause()
}

// currentToken is what Options.Token says of the token in use.
func (i *Inventory) currentToken() string {
	if i.opts.Token == nil {
		return ""
	}
	return i.opts.Token()
}
