package server

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gorilla/mux"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/cloud"
	"github.com/ccmlab/ccmlab/fakecloud/faults"
	"github.com/ccmlab/ccmlab/fakecloud/faults/effects"
)

// injectFaults applies the fault that matches a call, if one does.
func (s *Server) injectFaults(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c := recordOf(r)
		op := c.op
		if !op.faultable || c.principal == nil {
			next.ServeHTTP(w, r)
			return
		}
		id := mux.Vars(r)["id"]
		call := faults.Call{
			Project: c.principal.Project.ID, Token: c.principal.Token, Operation: op.id, Resource: id, Within: c.within,
		}
		if op.kind != "" {
			call.Tags = func() (map[string]string, error) {
				return s.cloud.ResourceTags(r.Context(), c.principal.Project, op.kind, id)
			}
		}
		hit, err := s.faults.Apply(call)
		switch {
		case err != nil:
			s.answerError(w, r, err)
			return
		case hit == nil:
			next.ServeHTTP(w, r)
			return
		}
		c.fault = hit.Fault
		s.metrics.countFault(hit.Effect)
		if hit.Effect.DelayMilliseconds == 0 && !hit.Effect.Hang {
			s.applyFault(w, r, hit, next)
			return
		}
		s.holdOne(&s.waiting, w, r, func() { s.applyFault(w, r, hit, next) })
	})
}

func (s *Server) applyFault(w http.ResponseWriter, r *http.Request, hit *faults.Hit, next http.Handler) {
	e := hit.Effect
	delay := time.Duration(e.DelayMilliseconds) * time.Millisecond
	if delay > 0 && !s.holdCall(w, r, hit, delay) {
		s.breakOff(w, r)
		return
	}
	if e.CarryOut {
		effects.CarryOut(next, r)
	}
	switch {
	case e.Hang:
		s.holdCall(w, r, hit, effects.HoldForever)
		s.breakOff(w, r)
	case e.Drop:
		s.breakOff(w, r)
	case e.Status != 0:
		s.answerFault(w, r, hit)
	case e.Body != nil:
		s.answerPlain(w, r, http.StatusOK, cmp.Or(e.ContentType, "application/json"), []byte(*e.Body))
	case e.EmptyList:
		s.answerJSON(w, r, http.StatusOK, map[string]any{"items": []any{}})
	case e.Stale:
		s.answerStale(w, r, hit, next)
	case e.PartialList > 0 || len(e.OmitFields) > 0:
		s.answerEdited(w, r, hit, next)
	default:
		next.ServeHTTP(w, r)
	}
}

// holdCall keeps a call waiting, and gives false if it must not go on afterwards.
func (s *Server) holdCall(w http.ResponseWriter, r *http.Request, hit *faults.Hit, d time.Duration) bool {
	if effects.ReadBody(r) != nil {
		return d != effects.HoldForever // Whoever reads the body will say why. There is no point in waiting with it.
	}
	control := http.NewResponseController(w)
	s.logDeadlineErrors(control.SetReadDeadline(time.Time{}), control.SetWriteDeadline(time.Time{}))
	if !effects.Hold(r, d, hit.Lifted, s.stopping.Done()) {
		return false
	}
	s.logDeadlineErrors(control.SetWriteDeadline(time.Now().Add(writeTimeout)))
	return true
}

// logDeadlineErrors logs deadlines that could not be set. Some response writers have none,
// which is fine.
func (s *Server) logDeadlineErrors(errs ...error) {
	for _, err := range errs {
		if err != nil && !errors.Is(err, http.ErrNotSupported) {
			s.log.Warn("cannot change a deadline of a call that is held", "err", err)
		}
	}
}

// breakOff ends a call without an answer.
func (s *Server) breakOff(w http.ResponseWriter, r *http.Request) {
	if c := recordOf(r); c.onAnswer != nil {
		c.onAnswer(0)
	}
	if err := effects.BreakOff(w); err != nil {
		s.log.Debug("a connection was not reset", "requestId", recordOf(r).id, "err", err)
	}
}

// problemCodes are what the cloud itself answers with such a status or, where it never
// does, a cloud would.
var problemCodes = map[int]api.ProblemCode{
	http.StatusUnauthorized:          api.Unauthenticated,
	http.StatusForbidden:             api.Forbidden,
	http.StatusNotFound:              api.NotFound,
	http.StatusMethodNotAllowed:      api.MethodNotAllowed,
	http.StatusConflict:              api.WrongState,
	http.StatusGone:                  api.EventsExpired,
	http.StatusRequestEntityTooLarge: api.TooLarge,
	http.StatusTooManyRequests:       api.RateLimited,
	http.StatusInternalServerError:   api.Internal,
}

// answerFault answers with the status that the rule sets, and the problem code that goes
// with it.
func (s *Server) answerFault(w http.ResponseWriter, r *http.Request, hit *faults.Hit) {
	e := hit.Effect
	code, ok := problemCodes[e.Status]
	switch {
	case e.DialectCode != "":
		code = api.ProblemCode(e.DialectCode)
	case ok:
	case e.Status < http.StatusInternalServerError:
		code = api.InvalidRequest
	default:
		code = api.Unavailable
	}
	if e.RetryAfterSeconds > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(e.RetryAfterSeconds))
	}
	p := s.newProblem(
		r, e.Status, code, fmt.Sprintf("fault %s answers this call with status %d", hit.Fault, e.Status), nil,
	)
	if e.Status == http.StatusUnauthorized { // As a genuine one, it names no project.
		w.Header().Set("WWW-Authenticate", challenge)
	} else {
		p.Project = new(cmp.Or(e.Project, recordOf(r).principal.Project.ID))
	}
	s.writeProblem(w, r, p)
}

func (s *Server) listFaults(w http.ResponseWriter, r *http.Request) {
	s.answerJSON(w, r, http.StatusOK, api.FaultList{Items: s.faults.List(callerProject(r).ID)})
}

func (s *Server) createFault(w http.ResponseWriter, r *http.Request) {
	body, ok := decodeBody[api.FaultCreate](s, w, r)
	if !ok {
		return
	}
	f, err := s.faults.Create(r.Context(), callerProject(r).ID, body)
	if err == nil {
		w.Header().Set("Location", "/v1/faults/"+f.ID)
	}
	s.answerResult(w, r, http.StatusCreated, f, err)
}

func (s *Server) getFault(w http.ResponseWriter, r *http.Request, id api.FaultID) {
	f, err := s.faults.Get(callerProject(r).ID, id)
	s.answerResult(w, r, http.StatusOK, f, err)
}

func (s *Server) deleteFault(w http.ResponseWriter, r *http.Request, id api.FaultID) {
	s.answerNoContent(w, r, s.faults.Delete(r.Context(), callerProject(r).ID, id))
}

func (s *Server) deleteFaults(w http.ResponseWriter, r *http.Request) {
	s.answerNoContent(w, r, s.faults.DeleteAll(r.Context(), callerProject(r).ID))
}

func (s *Server) zoneState(p cloud.Project, zone string) api.ZoneState {
	if _, lost := s.faults.Outage(p.ID, zone, s.cloud.Clock().Now()); lost {
		return api.ZoneOutage
	}
	return api.ZoneAvailable
}

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

// editMessage returns a message of an event stream as its reader gets it: without the fields that a
// fault leaves out.
func (s *Server) editMessage(r *http.Request, m eventMessage) ([]byte, error) {
	c := recordOf(r)
	hit, err := s.faults.Apply(faults.Call{
		Project: c.principal.Project.ID, Token: c.principal.Token, Operation: c.op.id,
		Has: func(field string) bool { return effects.HasField(m.body, strings.Split(field, ".")...) },
	})
	if hit == nil || err != nil {
		return m.data, err
	}
	s.metrics.countFault(hit.Effect)
	body, err := omitFields(m.body, hit.Effect)
	head := m.data[:len(m.data)-len(m.body)-len("\n\n")]
	return slices.Concat(head, body, []byte("\n\n")), err
}

// omitFields removes the fields that a rule names by dotted paths from a value, or from each item of a list.
func omitFields(value json.RawMessage, e api.FaultEffect) (json.RawMessage, error) {
	var err error
	for _, field := range e.OmitFields {
		if value, err = effects.RemoveField(value, strings.Split(field, ".")...); err != nil {
			return nil, err
		}
	}
	return value, nil
}

// editAnswer removes items and fields from an answer.
func editAnswer(body json.RawMessage, e api.FaultEffect) (json.RawMessage, error) {
	var whole struct{ Items json.RawMessage }
	if err := json.Unmarshal(body, &whole); err != nil {
		return nil, err
	}
	if whole.Items == nil {
		return omitFields(body, e)
	}
	body, err := effects.ChangeAt(body, "/items", func(list json.RawMessage) (json.RawMessage, error) {
		var err error
		if e.PartialList > 0 {
			if list, err = effects.ShortenList(list, e.PartialList); err != nil {
				return nil, err
			}
		}
		return omitFields(list, e)
	})
	if err == nil && e.PartialList > 0 {
		body, err = effects.RemoveField(body, "nextPageToken")
	}
	return body, err
}
