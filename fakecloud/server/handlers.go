package server

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/cloud"
	"github.com/ccmlab/ccmlab/fakecloud/identity"
)

const defaultLimit = 100

func (s *Server) getHealth(w http.ResponseWriter, r *http.Request) {
	s.answerPlain(w, r, http.StatusOK, "text/plain; charset=utf-8", []byte("ok\n"))
}

func (s *Server) getReady(w http.ResponseWriter, r *http.Request) {
	select {
	case <-s.cloud.Ready():
		s.answerPlain(w, r, http.StatusOK, "text/plain; charset=utf-8", []byte("ok\n"))
	default:
		s.answerPlain(w, r, http.StatusServiceUnavailable, "text/plain; charset=utf-8", []byte("starting\n"))
	}
}

func (s *Server) getSpec(w http.ResponseWriter, r *http.Request) {
	s.answerPlain(w, r, http.StatusOK, "application/yaml", api.Spec)
}

func (s *Server) answerPlain(w http.ResponseWriter, r *http.Request, status int, contentType string, body []byte) {
	w.Header().Set("Content-Type", contentType)
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(status)
	if _, err := w.Write(body); err != nil {
		s.log.Debug("the answer did not reach the caller", "requestId", recordOf(r).id, "err", err)
	}
}

func (s *Server) listInstances(w http.ResponseWriter, r *http.Request, params api.ListInstancesParams) {
	f, err := filterOf("i-", params.Name, params.Tag, params.Limit, params.PageToken)
	f.Zone = api.ValueOf(params.Zone)
	if params.Identity != nil && err == nil {
		f.Serial, err = serialOf(*params.Identity)
	}
	f.States = mapSlice(api.ValueOf(params.State), func(v api.InstanceState) string { return string(v) })
	answerList(s, w, r, f, err, inProject(r, s.cloud.ListInstances), cloud.Instance.ToAPI)
}

// filterOf reads the query parameters that all lists of resources have.
func filterOf(idPrefix string, name *string, tags *[]string, limit *int, pageToken *string) (cloud.Filter, error) {
	f := cloud.Filter{
		Name: api.ValueOf(name), Limit: defaultLimit, Tags: mapSlice(api.ValueOf(tags), cloud.ParseTagFilter),
	}
	if limit != nil {
		f.Limit = *limit
	}
	if pageToken != nil {
		id, err := base64.RawURLEncoding.DecodeString(*pageToken)
		if err != nil || !strings.HasPrefix(string(id), idPrefix) {
			return f, badPageToken()
		}
		f.After = string(id)
	}
	return f, nil
}

// listPage is how the API's lists are written.
type listPage[A any] struct {
	Items         []A     `json:"items"`
	NextPageToken *string `json:"nextPageToken,omitempty"` // nil on the last page
}

// answerList answers with one page of a list. f and filterErr are what filterOf gave.
func answerList[R interface{ PageKey() string }, A any](
	s *Server, w http.ResponseWriter, r *http.Request, f cloud.Filter, filterErr error,
	list func(context.Context, cloud.Filter) ([]R, bool, error), toAPI func(R) A,
) {
	if filterErr != nil {
		s.answerError(w, r, filterErr)
		return
	}
	items, more, err := list(r.Context(), f)
	page := listPage[A]{mapSlice(items, toAPI), nextPage(items, more, R.PageKey)}
	s.answerResult(w, r, http.StatusOK, page, err)
}

// same is for a list of what the API shows as it is.
func same[R any](item R) R { return item }

// inProject binds a list of the cloud's to the caller's project.
func inProject[R any](
	r *http.Request,
	list func(context.Context, cloud.Project, cloud.Filter) ([]R, bool, error),
) func(context.Context, cloud.Filter) ([]R, bool, error) {
	return func(ctx context.Context, f cloud.Filter) ([]R, bool, error) { return list(ctx, callerProject(r), f) }
}

// serialOf gives the serial number of the instance that a dialect calls so.
func serialOf(providerID string) (int64, error) {
	_, serial, ok := identity.Parse(providerID)
	if !ok {
		return 0, &cloud.Error{
			Code: cloud.InvalidRequest, Message: fmt.Sprintf("%q is not an instance's ID in any dialect", providerID),
			Fields: []cloud.Field{{Path: "identity", Message: "must be one such as hcloud://42"}},
		}
	}
	return serial, nil
}

func badPageToken() error {
	return &cloud.Error{
		Code: cloud.InvalidRequest, Message: "pageToken is not from a list of this kind: start again without it",
		Fields: []cloud.Field{{Path: "pageToken", Message: "is not valid"}},
	}
}

// nextPage makes the token of the page after the last item; nil if there is none.
func nextPage[T any](items []T, more bool, id func(last T) string) *string {
	if !more {
		return nil
	}
	return new(base64.RawURLEncoding.EncodeToString([]byte(id(items[len(items)-1]))))
}

// decodeBody reads a body that the validator has accepted.
func decodeBody[T any](s *Server, w http.ResponseWriter, r *http.Request) (T, bool) {
	var body T
	if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
		s.answerError(
			w, r, &cloud.Error{Code: cloud.InvalidRequest, Message: "the body cannot be read: " + err.Error()},
		)
		return body, false
	}
	return body, true
}

func (s *Server) createInstance(w http.ResponseWriter, r *http.Request) {
	body, ok := decodeBody[api.InstanceCreate](s, w, r)
	if !ok {
		return
	}
	in, outcome, err := s.cloud.CreateInstance(r.Context(), callerProject(r), body)
	in, err = awaitOperation(s, w, r, in, outcome, err, in.ID, s.cloud.GetInstance)
	s.answerCreated(w, r, "/v1/instances/"+in.ID, in.Version, in.ToAPI(), outcome, err)
}

func (s *Server) getInstance(w http.ResponseWriter, r *http.Request, id api.InstanceID) {
	in, err := s.cloud.GetInstance(r.Context(), callerProject(r), id)
	s.answerResource(w, r, http.StatusOK, in.Version, in.ToAPI(), err)
}

func (s *Server) updateInstance(w http.ResponseWriter, r *http.Request, id api.InstanceID) {
	u, ok := decodeBody[api.ResourceUpdate](s, w, r)
	if !ok {
		return
	}
	in, err := s.cloud.UpdateInstance(r.Context(), callerProject(r), id, u)
	s.answerResource(w, r, http.StatusOK, in.Version, in.ToAPI(), err)
}

func (s *Server) startInstance(w http.ResponseWriter, r *http.Request, id api.InstanceID) {
	s.actOnInstance(w, r, id, s.cloud.StartInstance)
}

func (s *Server) stopInstance(w http.ResponseWriter, r *http.Request, id api.InstanceID) {
	s.actOnInstance(w, r, id, s.cloud.StopInstance)
}

func (s *Server) rebootInstance(w http.ResponseWriter, r *http.Request, id api.InstanceID) {
	s.actOnInstance(w, r, id, s.cloud.RebootInstance)
}

func (s *Server) terminateInstance(w http.ResponseWriter, r *http.Request, id api.InstanceID) {
	s.actOnInstance(w, r, id, s.cloud.TerminateInstance)
}

// actOnInstance answers a call that moves an instance to another state.
func (s *Server) actOnInstance(
	w http.ResponseWriter,
	r *http.Request,
	id string,
	act func(context.Context, cloud.Project, string) (cloud.Instance, cloud.Outcome, error),
) {
	in, outcome, err := act(r.Context(), callerProject(r), id)
	in, err = awaitOperation(s, w, r, in, outcome, err, id, s.cloud.GetInstance)
	s.answerResource(w, r, http.StatusAccepted, in.Version, in.ToAPI(), err)
}

func (s *Server) listLoadBalancers(w http.ResponseWriter, r *http.Request, params api.ListLoadBalancersParams) {
	f, err := filterOf("lb-", params.Name, params.Tag, params.Limit, params.PageToken)
	f.States = mapSlice(api.ValueOf(params.State), func(v api.LoadBalancerState) string { return string(v) })
	show := func(lb cloud.LoadBalancer) api.LoadBalancer { return lb.LoadBalancer }
	answerList(s, w, r, f, err, inProject(r, s.cloud.ListLoadBalancers), show)
}

func (s *Server) createLoadBalancer(w http.ResponseWriter, r *http.Request) {
	body, ok := decodeBody[api.LoadBalancerCreate](s, w, r)
	if !ok {
		return
	}
	lb, outcome, err := s.cloud.CreateLoadBalancer(r.Context(), callerProject(r), body)
	lb, err = awaitOperation(s, w, r, lb, outcome, err, lb.ID, s.cloud.GetLoadBalancer)
	s.answerCreated(w, r, "/v1/load-balancers/"+lb.ID, lb.Version, lb.LoadBalancer, outcome, err)
}

func (s *Server) getLoadBalancer(w http.ResponseWriter, r *http.Request, id api.LoadBalancerID) {
	lb, err := s.cloud.GetLoadBalancer(r.Context(), callerProject(r), id)
	s.answerResource(w, r, http.StatusOK, lb.Version, lb.LoadBalancer, err)
}

func (s *Server) deleteLoadBalancer(w http.ResponseWriter, r *http.Request, id api.LoadBalancerID) {
	lb, outcome, err := s.cloud.DeleteLoadBalancer(r.Context(), callerProject(r), id)
	lb, err = awaitOperation(s, w, r, lb, outcome, err, id, s.cloud.GetLoadBalancer)
	s.answerResource(w, r, http.StatusAccepted, lb.Version, lb.LoadBalancer, err)
}

func (s *Server) updateLoadBalancer(w http.ResponseWriter, r *http.Request, id api.LoadBalancerID) {
	body, ok := decodeBody[api.LoadBalancerUpdate](s, w, r)
	if !ok {
		return
	}
	lb, outcome, err := s.cloud.UpdateLoadBalancer(r.Context(), callerProject(r), id, body)
	lb, err = awaitOperation(s, w, r, lb, outcome, err, id, s.cloud.GetLoadBalancer)
	s.answerResource(w, r, http.StatusAccepted, lb.Version, lb.LoadBalancer, err)
}

func (s *Server) getLoadBalancerStats(w http.ResponseWriter, r *http.Request, id api.LoadBalancerID) {
	stats, err := s.cloud.LoadBalancerStats(r.Context(), callerProject(r), id)
	s.answerResult(w, r, http.StatusOK, stats, err)
}

func (s *Server) getLoadBalancerHealth(w http.ResponseWriter, r *http.Request, id api.LoadBalancerID) {
	targets, err := s.cloud.LoadBalancerHealth(r.Context(), callerProject(r), id)
	s.answerResult(w, r, http.StatusOK, api.LoadBalancerHealth{Targets: targets}, err)
}

func mapSlice[A, B any](in []A, fn func(A) B) []B {
	out := make([]B, len(in))
	for i, a := range in {
		out[i] = fn(a)
	}
	return out
}
