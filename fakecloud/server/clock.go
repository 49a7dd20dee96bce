package server

import (
	"math"
	"net/http"
	"time"

	"github.com/ccmlab/ccmlab/fakecloud/api"
)

func (s *Server) getClock(w http.ResponseWriter, r *http.Request) {
	now, virtual := s.cloud.Now()
	clock := api.Clock{Mode: api.ClockReal, Now: now}
	if virtual {
		clock.Mode = api.ClockVirtual
	}
	s.answerJSON(w, r, http.StatusOK, clock)
}

// maxAdvancing bounds how long one call may take to move the clock.
const maxAdvancing = time.Hour

func (s *Server) advanceClock(w http.ResponseWriter, r *http.Request) {
	body, ok := decodeBody[api.ClockAdvance](s, w, r)
	if !ok {
		return
	}
	ctx, cancel := s.waitContext(w, r, maxAdvancing)
	defer cancel()
	moved, err := s.cloud.Advance(ctx, func(now time.Time) time.Time {
		if body.Until != nil {
			return *body.Until
		}
		return now.Add(time.Duration(math.Round(api.ValueOf(body.Seconds)*1000)) * time.Millisecond)
	})
	s.answerResult(
		w, r, http.StatusOK,
		api.ClockAdvanced{From: moved.From, Now: moved.Now, Transitions: moved.Transitions, Complete: moved.Complete},
		err,
	)
}
