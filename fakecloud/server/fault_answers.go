package server

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/faults"
	"github.com/ccmlab/ccmlab/fakecloud/faults/effects"
)

// maxAnswer bounds the size of an answer that a fault stores or edits.
const maxAnswer = 16 << 20

// answerStale answers as the same request of the same token was first answered.
func (s *Server) answerStale(w http.ResponseWriter, r *http.Request, hit *faults.Hit, next http.Handler) {
	question := recordOf(r).principal.Project.ID + " " + recordOf(r).principal.Token + " " + r.URL.RequestURI()
	a, err := hit.Answers.GetOrCapture(question, func() (effects.Answer, error) {
		return effects.Capture(next, r, maxAnswer)
	})
	s.sendCaptured(w, r, hit, a, err)
}

// answerEdited answers with items and fields left out.
func (s *Server) answerEdited(w http.ResponseWriter, r *http.Request, hit *faults.Hit, next http.Handler) {
	a, err := effects.Capture(next, r, maxAnswer)
	if err == nil && a.Status < http.StatusMultipleChoices && a.Header.Get("Content-Type") == "application/json" {
		if a.Body, err = editAnswer(a.Body, hit.Effect); err != nil {
			s.answerError(w, r, fmt.Errorf("changing an answer for fault %s: %w", hit.Fault, err))
			return
		}
	}
	s.sendCaptured(w, r, hit, a, err)
}

// sendCaptured answers with what was captured. An error says that this was too long.
func (s *Server) sendCaptured(w http.ResponseWriter, r *http.Request, hit *faults.Hit, a effects.Answer, err error) {
	if err != nil {
		s.answerProblem(w, r, http.StatusServiceUnavailable, api.Unavailable,
			fmt.Sprintf(
				"the answer has more than the %d bytes that fault %s can keep or change: "+
					"ask for less at a time, or delete the fault",
				maxAnswer, hit.Fault,
			), nil)
		return
	}
	if err := a.Send(w); err != nil {
		s.log.Debug("the answer did not reach the caller", "requestId", recordOf(r).id, "err", err)
	}
}

// editAnswer removes items and fields, which a rule names by dotted paths, from an answer.
func editAnswer(body json.RawMessage, e faults.Effect) (json.RawMessage, error) {
	omit := func(value json.RawMessage) (json.RawMessage, error) {
		var err error
		for _, field := range e.OmitFields {
			if value, err = effects.RemoveField(value, strings.Split(field, ".")...); err != nil {
				return nil, err
			}
		}
		return value, nil
	}
	var whole struct{ Items json.RawMessage }
	if err := json.Unmarshal(body, &whole); err != nil {
		return nil, err
	}
	if whole.Items == nil {
		return omit(body)
	}
	body, err := effects.ChangeAt(body, "/items", func(list json.RawMessage) (json.RawMessage, error) {
		var err error
		if e.PartialList > 0 {
			if list, err = effects.ShortenList(list, e.PartialList); err != nil {
				return nil, err
			}
		}
		return omit(list)
	})
	if err == nil && e.PartialList > 0 {
		body, err = effects.RemoveField(body, "nextPageToken")
	}
	return body, err
}
