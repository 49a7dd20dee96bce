package server

import (
	"fmt"
	"net/http"
	"time"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/cloud"
	"github.com/ccmlab/ccmlab/fakecloud/scenarios"
)

// longest is the longest time that a scenario may name.
const longest = 30 * 24 * time.Hour

// ListScenarios implements api.ServerInterface.
func (s *Server) ListScenarios(w http.ResponseWriter, r *http.Request) {
	s.reply(w, r, http.StatusOK, api.ScenarioList{Items: each(s.scenarios.List(project(r).ID), scenarioOf)})
}

// RunScenario implements api.ServerInterface.
func (s *Server) RunScenario(w http.ResponseWriter, r *http.Request) {
	body, ok := decode[api.ScenarioCreate](s, w, r)
	if !ok {
		return
	}
	spec, err := toScenario(body)
	if err != nil {
		s.fail(w, r, err)
		return
	}
	started, err := s.scenarios.Run(r.Context(), project(r), spec)
	if err != nil {
		s.fail(w, r, err)
		return
	}
	w.Header().Set("Location", "/v1/scenarios/"+started.ID)
	s.reply(w, r, http.StatusCreated, scenarioOf(started))
}

// GetScenario implements api.ServerInterface.
func (s *Server) GetScenario(w http.ResponseWriter, r *http.Request, id api.ScenarioID) {
	found, err := s.scenarios.Get(project(r).ID, id)
	s.answerResult(w, r, http.StatusOK, scenarioOf(found), err)
}

// StopScenario implements api.ServerInterface.
func (s *Server) StopScenario(w http.ResponseWriter, r *http.Request, id api.ScenarioID) {
	stopped, err := s.scenarios.Stop(r.Context(), project(r).ID, id)
	s.answerResult(w, r, http.StatusOK, scenarioOf(stopped), err)
}

// DeleteScenario implements api.ServerInterface.
func (s *Server) DeleteScenario(w http.ResponseWriter, r *http.Request, id api.ScenarioID) {
	s.answerNoContent(w, r, s.scenarios.Delete(r.Context(), project(r).ID, id))
}

func toScenario(body api.ScenarioCreate) (scenarios.Spec, error) {
	spec := scenarios.Spec{Name: body.Name, Description: body.Description, Seed: body.Seed}
	for i, step := range body.Steps {
		out := scenarios.Step{Action: string(step.Action), Instances: toSelector(step.Instances), LoadBalancers: toSelector(step.LoadBalancers)}
		for _, d := range []struct {
			field, text string
			to          *time.Duration
		}{{"at", step.At, &out.At}, {"for", step.For, &out.For}} {
			if d.text == "" {
				continue
			}
			var err error
			if *d.to, err = time.ParseDuration(d.text); err != nil || *d.to > longest || d.field == "for" && *d.to < time.Millisecond {
				path := fmt.Sprintf("steps.%d.%s", i, d.field)
				return spec, &cloud.Error{
					Code: cloud.InvalidRequest, Message: fmt.Sprintf("%s is %q: give a time such as 1m30s, at most %s", path, d.text, longest),
					Fields: []cloud.Field{{Path: path, Message: "is no such time"}},
				}
			}
		}
		if step.Fault != nil {
			fault := toFault(*step.Fault)
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

func scenarioOf(s scenarios.Status) api.Scenario {
	return api.Scenario{
		ID: s.ID, Name: s.Name, Description: s.Description, State: api.ScenarioState(s.State), Seed: s.Seed,
		StartedAt: s.StartedAt, EndedAt: timeOf(s.EndedAt),
		Steps: each(s.Steps, func(step scenarios.StepStatus) api.ScenarioStepStatus {
			return api.ScenarioStepStatus{
				At: step.At.String(), Does: step.Does, DoneAt: timeOf(step.DoneAt), Result: step.Result, Error: step.Error,
				Fault: step.Fault, LiftedAt: timeOf(step.LiftedAt),
			}
		}),
	}
}

func timeOf(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}
