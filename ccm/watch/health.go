package watch

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/ccmlab/ccmlab/ccm/cache"
	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
)

// maxRoundDuration is how long one round of a job may take before the job counts as stuck. Every call
// has a deadline of at most a minute, and most rounds make few calls.
const maxRoundDuration = 5 * time.Minute

// watchHealth is the cloud watch's part of /healthz: it is healthy while every job runs and no round
// exceeds maxRoundDuration. The cache and the routes count as jobs, although the cloud watch does
// not run them. Safe for concurrent use.
type watchHealth struct {
	mu   sync.Mutex
	jobs []*jobHealth
}

func (h *watchHealth) add(jobs ...*jobHealth) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.jobs = append(h.jobs, jobs...)
}

// Check returns an error that names every job that has ended or is stuck.
func (h *watchHealth) Check(*http.Request) error {
	h.mu.Lock()
	jobs := slices.Clone(h.jobs)
	h.mu.Unlock()
	var errs []error
	for _, job := range jobs {
		errs = append(errs, job.check())
	}
	return errors.Join(errs...)
}

// jobHealth is the health of one job of the cloud watch. Safe for concurrent use.
type jobHealth struct {
	name string

	mu     sync.Mutex
	ended  bool
	rounds map[*jobRound]struct{} // those that have not ended
}

func newJobHealth(name string) *jobHealth {
	return &jobHealth{name: name, rounds: map[*jobRound]struct{}{}}
}

// jobRound is something that a job does and that ends soon.
type jobRound struct {
	what  string
	begun time.Time
}

// beginRound records that a round begins. The function that it returns records its end.
func (h *jobHealth) beginRound(what string) (end func()) {
	round := &jobRound{what: what, begun: time.Now()}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.rounds[round] = struct{}{}
	return func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		delete(h.rounds, round)
	}
}

// end records that the job does not run any more.
func (h *jobHealth) end() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ended = true
}

// check is an error if the job has ended, or is stuck.
func (h *jobHealth) check() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.ended {
		return fmt.Errorf("%s has ended", h.name)
	}
	for round := range h.rounds {
		if lasts := time.Since(round.begun); lasts > maxRoundDuration {
			return fmt.Errorf("%s is stuck: %s has taken %s", h.name, round.what, lasts.Round(time.Second))
		}
	}
	return nil
}

// eventRounds is a cloud, each of whose events is a round of the cache's job. Lists need none: whoever asks the cache
// waits for them in a round of his own.
type eventRounds struct {
	cache.Source
	health *jobHealth
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
		defer e.health.beginRound("applying an event of the cloud")()
		return fn(ev)
	}, onBreak, only...)
}
