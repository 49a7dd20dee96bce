package server

import (
	"fmt"
	"net/http"
	"time"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/cloud"
	"github.com/ccmlab/ccmlab/fakecloud/scenarios"
)

// maxScenarioTime is the longest time that a scenario can name.
const maxScenarioTime = 30 * 24 * time.Hour

// ListScenarios implements api.ServerInterface.
func (s *Server) ListScenarios(w http.ResponseWriter, r *http.Request) {
	s.answerJSON(
		w, r, http.StatusOK, api.ScenarioList{Items: mapSlice(s.scenarios.List(callerProject(r).ID), toAPIScenario)},
	)
}

// RunScenario implements api.ServerInterface.
func (s *Server) RunScenario(w http.ResponseWriter, r *http.Request) {
	body, ok := decodeBody[api.ScenarioCreate](s, w, r)
	if !ok {
		return
	}
	spec, err := toScenarioSpec(body)
	if err != nil {
		s.answerError(w, r, err)
		return
	}
	started, err := s.scenarios.Run(r.Context(), callerProject(r), spec)
	if err != nil {
		s.answerError(w, r, err)
		return
	}
	w.Header().Set("Location", "/v1/scenarios/"+started.ID)
	s.answerJSON(w, r, http.StatusCreated, toAPIScenario(started))
}

// GetScenario implements api.ServerInterface.
func (s *Server) GetScenario(w http.ResponseWriter, r *http.Request, id api.ScenarioID) {
	found, err := s.scenarios.Get(callerProject(r).ID, id)
	s.answerResult(w, r, http.StatusOK, toAPIScenario(found), err)
}

// StopScenario implements api.ServerInterface.
func (s *Server) StopScenario(w http.ResponseWriter, r *http.Request, id api.ScenarioID) {
	stopped, err := s.scenarios.Stop(r.Context(), callerProject(r).ID, id)
	s.answerResult(w, r, http.StatusOK, toAPIScenario(stopped), err)
}

// DeleteScenario implements api.ServerInterface.
func (s *Server) DeleteScenario(w http.ResponseWriter, r *http.Request, id api.ScenarioID) {
	s.answerNoContent(w, r, s.scenarios.Delete(r.Context(), callerProject(r).ID, id))
}

func toScenarioSpec(body api.ScenarioCreate) (scenarios.Spec, error) {
	spec := scenarios.Spec{Name: body.Name, Description: body.Description, Seed: body.Seed}
	for i, step := range body.Steps {
		out := scenarios.Step{
			Action: string(step.Action), Instances: toSelector(step.Instances),
			LoadBalancers: toSelector(step.LoadBalancers),
		}
		for _, d := range []struct {
			field, text string
			to          *time.Duration
		}{{"at", step.At, &out.At}, {"for", step.For, &out.For}} {
			if d.text == "" {
				continue
			}
			var err error
			if *d.to, err = time.ParseDuration(d.text); err != nil || *d.to > maxScenarioTime || d.field == "for" &&
				*d.to < time.Millisecond {
				path := fmt.Sprintf("steps.%d.%s", i, d.field)
				return spec, &cloud.Error{
					Code: cloud.InvalidRequest, Message: fmt.Sprintf(
						"%s is %q: give a time such as 1m30s, at most %s", path, d.text, maxScenarioTime,
					),
					Fields: []cloud.Field{{Path: path, Message: "is no such time"}},
				}
			}
		}
		if step.Fault != nil {
			fault := toFaultSpec(*step.Fault)
			out.Fault = &fault
		}
		spec.Steps = append(spec.Steps, out)
	}
	return spec, nil
}

func toSelector(s *api.ScenarioSelector) *scenarios.Selector {
	if s == nil {
		return nil
	}
	return &scenarios.Selector{Name: s.Name, Tag: s.Tag, Zone: s.Zone, Pick: s.Pick}
}

func toAPIScenario(s scenarios.Status) api.Scenario {
	return api.Scenario{
		ID: s.ID, Name: s.Name, Description: s.Description, State: api.ScenarioState(s.State), Seed: s.Seed,
		StartedAt: s.StartedAt, EndedAt: timeOrNil(s.EndedAt),
		Steps: mapSlice(s.Steps, func(step scenarios.StepStatus) api.ScenarioStepStatus {
			return api.ScenarioStepStatus{
				At: step.At.String(), Does: step.Does, DoneAt: timeOrNil(step.DoneAt), Result: step.Result,
				Error: step.Error,
				Fault: step.Fault, LiftedAt: timeOrNil(step.LiftedAt),
			}
		}),
	}
}

func timeOrNil(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}
