package watch

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"
)

// maxRoundDuration is how long one round of a job may take before the job counts as stuck. Every call
// has a deadline of at most a minute, and most rounds make few calls.
const maxRoundDuration = 5 * time.Minute

// watchHealth is the cloud watch's part of /healthz: it is healthy while no round exceeds maxRoundDuration. The routes
// count as a job, although the cloud watch does not run them. A cache that is stuck stops the jobs, which ask it. Safe
// for concurrent use.
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
