// This file answers: how do events reach those who follow them?

package server

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/cloud"
)

// StreamEvents implements api.ServerInterface. Each reader reads the event log
// at its own pace: a slow one holds up nobody, and is cut off when a write
// takes too long; it resumes from the last number it saw.
func (s *Server) StreamEvents(w http.ResponseWriter, r *http.Request, params api.StreamEventsParams) {
	after := cloud.Oldest
	if from := cmp.Or(params.LastEventID, params.After); from != nil && *from > 0 {
		after = *from
	}
	more := s.cloud.MoreEvents()
	events, next, err := s.cloud.Events(r.Context(), project(r), after)
	if err != nil {
		s.fail(w, r, err)
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(http.StatusOK)
	out := eventWriter{w: w, control: http.NewResponseController(w)}
	if err := out.comment("connected"); err != nil {
		return
	}
	follow := params.Follow == nil || *params.Follow
	beat := time.NewTicker(s.beat)
	defer beat.Stop()
	for {
		if err := out.events(events); err != nil {
			s.log.Debug("an event stream was cut off", "requestId", callOf(r).id, "err", err)
			return
		}
		if len(events) == 0 {
			if !follow || !s.await(r, more, beat, out) {
				return
			}
		}
		more = s.cloud.MoreEvents()
		if events, next, err = s.cloud.Events(r.Context(), project(r), next); err != nil {
			// The reader learns why when it asks again.
			s.log.Info("an event stream ends", "requestId", callOf(r).id, "err", err)
			return
		}
	}
}

// await returns when there may be more events; false when the stream ends.
func (s *Server) await(r *http.Request, more <-chan struct{}, beat *time.Ticker, out eventWriter) bool {
	for {
		select {
		case <-r.Context().Done():
			return false
		case <-s.stopping.Done():
			return false
		case <-more:
			return true
		case <-beat.C:
			if err := out.comment("still here"); err != nil {
				return false
			}
		}
	}
}

type eventWriter struct {
	w       http.ResponseWriter
	control *http.ResponseController
}

func (o eventWriter) comment(text string) error { return o.send(": " + text + "\n\n") }

func (o eventWriter) events(events []cloud.Event) error {
	for _, e := range events {
		data, err := json.Marshal(eventOf(e))
		if err != nil {
			return err
		}
		if err := o.send(fmt.Sprintf("id: %d\nevent: %s\ndata: %s\n\n", e.Seq, e.Type, data)); err != nil {
			return err
		}
	}
	return nil
}

func (o eventWriter) send(message string) error {
	if err := o.control.SetWriteDeadline(time.Now().Add(writeTimeout)); err != nil {
		return err
	}
	if _, err := o.w.Write([]byte(message)); err != nil {
		return err
	}
	return o.control.Flush()
}
