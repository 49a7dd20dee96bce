package server

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"strconv"
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
		call := faults.Call{Project: c.principal.Project.ID, Token: c.principal.Token, Operation: op.id, Resource: id}
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
		s.applyFault(w, r, hit, next)
	})
}

func (s *Server) applyFault(w http.ResponseWriter, r *http.Request, hit *faults.Hit, next http.Handler) {
	e := hit.Effect
	if e.Delay > 0 && !s.holdCall(w, r, hit, e.Delay) {
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
	case ok:
	case e.Status < http.StatusInternalServerError:
		code = api.InvalidRequest
	default:
		code = api.Unavailable
	}
	if e.RetryAfter > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(int(e.RetryAfter.Seconds())))
	}
	p := s.newProblem(
		r, e.Status, code, fmt.Sprintf("fault %s answers this call with status %d", hit.Fault, e.Status), nil,
	)
	if e.Status == http.StatusUnauthorized { // As a genuine one, it names no project.
		w.Header().Set("WWW-Authenticate", challenge)
	} else {
		named := cmp.Or(e.Project, recordOf(r).principal.Project.ID)
		p.Project = &named
	}
	s.writeProblem(w, r, p)
}

// ListFaults implements api.ServerInterface.
func (s *Server) ListFaults(w http.ResponseWriter, r *http.Request) {
	s.answerJSON(w, r, http.StatusOK, api.FaultList{Items: mapSlice(s.faults.List(callerProject(r).ID), toAPIFault)})
}

// CreateFault implements api.ServerInterface.
func (s *Server) CreateFault(w http.ResponseWriter, r *http.Request) {
	body, ok := decodeBody[api.FaultCreate](s, w, r)
	if !ok {
		return
	}
	f, err := s.faults.Create(r.Context(), callerProject(r).ID, toFaultSpec(body))
	if err != nil {
		s.answerError(w, r, err)
		return
	}
	w.Header().Set("Location", "/v1/faults/"+f.ID)
	s.answerJSON(w, r, http.StatusCreated, toAPIFault(f))
}

// GetFault implements api.ServerInterface.
func (s *Server) GetFault(w http.ResponseWriter, r *http.Request, id api.FaultID) {
	f, err := s.faults.Get(callerProject(r).ID, id)
	s.answerResult(w, r, http.StatusOK, toAPIFault(f), err)
}

// DeleteFault implements api.ServerInterface.
func (s *Server) DeleteFault(w http.ResponseWriter, r *http.Request, id api.FaultID) {
	s.answerNoContent(w, r, s.faults.Delete(r.Context(), callerProject(r).ID, id))
}

// DeleteFaults implements api.ServerInterface.
func (s *Server) DeleteFaults(w http.ResponseWriter, r *http.Request) {
	s.answerNoContent(w, r, s.faults.DeleteAll(r.Context(), callerProject(r).ID))
}

func (s *Server) zoneState(p cloud.Project, zone string) api.ZoneState {
	if _, lost := s.faults.Outage(p.ID, zone, s.cloud.Clock().Now()); lost {
		return api.ZoneOutage
	}
	return api.ZoneAvailable
}

func toAPIFault(f faults.Fault) api.Fault {
	m, e := f.Match, f.Effect
	return api.Fault{
		ID: f.ID, CreatedAt: f.CreatedAt, Matched: f.Matched, Hits: f.Hits, Spent: f.Spent, Scenario: f.Scenario,
		Times: f.Times, Skip: f.Skip, Every: f.Every, Probability: f.Probability, Seed: f.Seed, From: f.From,
		Until: f.Until,
		Match: api.FaultMatch{
			Token: m.Token, Operations: m.Operations, Resource: m.Resource, Tag: m.Tag, Project: m.Project,
			Kinds: mapSliceOrNil(m.Kinds, func(k cloud.Resource) api.FaultMatchKinds { return api.FaultMatchKinds(k) }),
		},
		Effect: toAPIFaultEffect(e),
	}
}

func toAPIFaultEffect(e faults.Effect) api.FaultEffect {
	out := api.FaultEffect{
		DelayMilliseconds: int(e.Delay.Milliseconds()), JitterMilliseconds: int(e.Jitter.Milliseconds()),
		Status: e.Status, RetryAfterSeconds: int(e.RetryAfter.Seconds()), Project: e.Project,
		Hang: e.Hang, Drop: e.Drop, Body: e.Body, ContentType: e.ContentType, EmptyList: e.EmptyList,
		Stale: e.Stale, PartialList: e.PartialList, OmitFields: e.OmitFields, CarryOut: e.CarryOut,
		Stuck: e.Stuck, Fail: e.Fail, Crash: e.Crash, ZoneOutage: e.ZoneOutage,
	}
	if e.Throttle != nil {
		out.Throttle = &api.FaultThrottle{PerSecond: e.Throttle.PerSecond, Burst: e.Throttle.Burst}
	}
	return out
}

func toFaultSpec(f api.FaultCreate) faults.Spec {
	m, e := f.Match, f.Effect
	spec := faults.Spec{
		When: faults.When{
			Times: f.Times, Skip: f.Skip, Every: f.Every, Probability: f.Probability, Seed: f.Seed, From: f.From,
			Until: f.Until,
			After: fractionalSeconds(f.AfterSeconds), For: fractionalSeconds(f.ForSeconds),
		},
		Match: faults.Match{
			Token: m.Token, Operations: m.Operations, Resource: m.Resource, Tag: m.Tag, Project: m.Project,
			Kinds: mapSliceOrNil(m.Kinds, func(k api.FaultMatchKinds) cloud.Resource { return cloud.Resource(k) }),
		},
		Effect: faults.Effect{
			Delay:  time.Duration(e.DelayMilliseconds) * time.Millisecond,
			Jitter: time.Duration(e.JitterMilliseconds) * time.Millisecond,
			Status: e.Status, RetryAfter: secondsToDuration(e.RetryAfterSeconds), Project: e.Project,
			Hang: e.Hang, Drop: e.Drop, Body: e.Body, ContentType: e.ContentType, EmptyList: e.EmptyList,
			Stale: e.Stale, PartialList: e.PartialList, OmitFields: e.OmitFields, CarryOut: e.CarryOut,
			Stuck: e.Stuck, Fail: e.Fail, Crash: e.Crash, ZoneOutage: e.ZoneOutage,
		},
	}
	if e.Throttle != nil {
		spec.Effect.Throttle = &faults.Throttle{PerSecond: e.Throttle.PerSecond, Burst: e.Throttle.Burst}
	}
	return spec
}

// mapSliceOrNil is mapSlice, but gives nil for an empty slice.
func mapSliceOrNil[A, B any](in []A, fn func(A) B) []B {
	if len(in) == 0 {
		return nil
	}
	return mapSlice(in, fn)
}

// fractionalSeconds converts seconds to a duration in whole milliseconds, at least one.
func fractionalSeconds(seconds float64) time.Duration {
	if seconds <= 0 {
		return 0
	}
	return max(time.Duration(seconds*float64(time.Second)).Truncate(time.Millisecond), time.Millisecond)
}
