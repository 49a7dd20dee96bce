package watch

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/ccmlab/ccmlab/ccm/cache"
	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
)

// maxRoundDuration is how long one round of a job may take before the job counts as stuck. Every call
// has a deadline of at most a minute, and most rounds make few calls.
const maxRoundDuration = 5 * time.Minute

// watchHealth is the cloud watch's part of /healthz: it is healthy while no round exceeds maxRoundDuration. The cache
// and the routes count as jobs, although the cloud watch does not run them. Safe for concurrent use.
type watchHealth struct{ rounds sync.Map }

// jobRound is something that a job does and that ends soon.
type jobRound struct {
	job, what string
	begun     time.Time
}

// beginRound records that a round begins. The function that it returns records its end.
func (h *watchHealth) beginRound(job, what string) (end func()) {
	round := &jobRound{job, what, time.Now()}
	h.rounds.Store(round, nil)
	return func() { h.rounds.Delete(round) }
}

// Check returns an error that names every job that is stuck, and in what.
func (h *watchHealth) Check(*http.Request) error {
	var stuck []string
	for key := range h.rounds.Range {
		round, _ := key.(*jobRound)
		if lasts := time.Since(round.begun); lasts > maxRoundDuration {
			stuck = append(stuck,
				fmt.Sprintf("%s is stuck: %s has taken %s", round.job, round.what, lasts.Round(time.Second)))
		}
	}
	if len(stuck) == 0 {
		return nil
	}
	slices.Sort(stuck)
	return errors.New(strings.Join(stuck, "\n"))
}

// eventRounds is a cloud, each of whose events is a round of the cache's job. Lists need none: whoever asks the cache
// waits for them in a round of his own.
type eventRounds struct {
	cache.Source
	health *watchHealth
}

// Follow is the cloud's own.
func (e eventRounds) Follow(
	ctx context.Context,
	after int64,
	fn func(api.Event) error,
	onBreak func(error),
	only ...client.EventFilter,
) error {
	return e.Source.Follow(ctx, after, func(ev api.Event) error {
		defer e.health.beginRound("the cache", "applying an event of the cloud")()
		return fn(ev)
	}, onBreak, only...)
}
