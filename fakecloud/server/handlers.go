package server

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"strconv"
	"strings"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/cloud"
)

const defaultLimit = 100

// GetHealth implements api.ServerInterface.
func (s *Server) GetHealth(w http.ResponseWriter, r *http.Request) {
	s.plain(w, r, http.StatusOK, "text/plain; charset=utf-8", []byte("ok\n"))
}

// GetReady implements api.ServerInterface.
func (s *Server) GetReady(w http.ResponseWriter, r *http.Request) {
	select {
	case <-s.cloud.Ready():
		s.plain(w, r, http.StatusOK, "text/plain; charset=utf-8", []byte("ok\n"))
	default:
		s.plain(w, r, http.StatusServiceUnavailable, "text/plain; charset=utf-8", []byte("starting\n"))
	}
}

// GetSpec implements api.ServerInterface.
func (s *Server) GetSpec(w http.ResponseWriter, r *http.Request) {
	s.plain(w, r, http.StatusOK, "application/yaml", api.Spec)
}

func (s *Server) plain(w http.ResponseWriter, r *http.Request, status int, contentType string, body []byte) {
	w.Header().Set("Content-Type", contentType)
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(status)
	if _, err := w.Write(body); err != nil {
		s.log.Debug("the answer did not reach the caller", "requestId", callOf(r).id, "err", err)
	}
}

// ListInstances implements api.ServerInterface.
func (s *Server) ListInstances(w http.ResponseWriter, r *http.Request, params api.ListInstancesParams) {
	f, err := filterOf("i-", params.Name, params.Tag, params.Limit, params.PageToken)
	f.Zone = value(params.Zone)
	f.States = each(value(params.State), func(v api.InstanceState) string { return string(v) })
	answerList(s, w, r, f, err, inProject(r, s.cloud.ListInstances), func(last cloud.Instance) string { return last.ID }, instanceOf, func(items []api.Instance, next *string) any {
		return api.InstanceList{Items: items, NextPageToken: next}
	})
}

// filterOf reads the query parameters that all lists of resources have.
func filterOf(idPrefix string, name *string, tags *[]string, limit *int, pageToken *string) (cloud.Filter, error) {
	f := cloud.Filter{Name: value(name), Limit: defaultLimit, Tags: each(value(tags), cloud.ParseTagFilter)}
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

// answerList answers with one page of a list. f and filterErr are what filterOf
// gave, id gives what a page token is made of, and body makes the answer.
func answerList[R, A any](
	s *Server, w http.ResponseWriter, r *http.Request, f cloud.Filter, filterErr error,
	list func(context.Context, cloud.Filter) ([]R, bool, error),
	id func(R) string, toAPI func(R) A, body func(items []A, nextPageToken *string) any,
) {
	if filterErr != nil {
		s.fail(w, r, filterErr)
		return
	}
	items, more, err := list(r.Context(), f)
	s.answerResult(w, r, http.StatusOK, body(each(items, toAPI), nextPage(items, more, id)), err)
}

// inProject binds a list of the cloud's to the caller's project.
func inProject[R any](r *http.Request, list func(context.Context, cloud.Project, cloud.Filter) ([]R, bool, error)) func(context.Context, cloud.Filter) ([]R, bool, error) {
	return func(ctx context.Context, f cloud.Filter) ([]R, bool, error) { return list(ctx, project(r), f) }
}

func badPageToken() error {
	return &cloud.Error{
		Code: cloud.InvalidRequest, Message: "pageToken is none that a list of this kind gave: start again without it",
		Fields: []cloud.Field{{Path: "pageToken", Message: "is not valid"}},
	}
}

// nextPage is the token of the page that follows the last item, if there is one.
func nextPage[T any](items []T, more bool, id func(last T) string) *string {
	if !more {
		return nil
	}
	return new(base64.RawURLEncoding.EncodeToString([]byte(id(items[len(items)-1]))))
}

// decode reads a body that the validator has passed.
func decode[T any](s *Server, w http.ResponseWriter, r *http.Request) (T, bool) {
	var body T
	if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
		s.fail(w, r, &cloud.Error{Code: cloud.InvalidRequest, Message: "the body cannot be read: " + err.Error()})
		return body, false
	}
	return body, true
}

// CreateInstance implements api.ServerInterface.
func (s *Server) CreateInstance(w http.ResponseWriter, r *http.Request, _ api.CreateInstanceParams) {
	body, ok := decode[api.InstanceCreate](s, w, r)
	if !ok {
		return
	}
	in, outcome, err := s.cloud.CreateInstance(r.Context(), project(r), cloud.InstanceSpec{
		Name: value(body.Name), Zone: value(body.Zone), Type: cloud.InstanceType(value(body.Type)),
		Network: value(body.NetworkID), Address: value(body.Address), Tags: value(body.Tags),
	})
	if err == nil {
		in, err = awaitOperation(s, w, r, in, outcome, in.ID, s.cloud.GetInstance)
	}
	s.answerCreated(w, r, "/v1/instances/"+in.ID, in.Version, instanceOf(in), outcome, err)
}

// GetInstance implements api.ServerInterface.
func (s *Server) GetInstance(w http.ResponseWriter, r *http.Request, id api.InstanceID) {
	in, err := s.cloud.GetInstance(r.Context(), project(r), id)
	s.answerResource(w, r, http.StatusOK, in.Version, instanceOf(in), err)
}

// StartInstance implements api.ServerInterface.
func (s *Server) StartInstance(w http.ResponseWriter, r *http.Request, id api.InstanceID, _ api.StartInstanceParams) {
	s.actOnInstance(w, r, id, s.cloud.StartInstance)
}

// StopInstance implements api.ServerInterface.
func (s *Server) StopInstance(w http.ResponseWriter, r *http.Request, id api.InstanceID, _ api.StopInstanceParams) {
	s.actOnInstance(w, r, id, s.cloud.StopInstance)
}

// RebootInstance implements api.ServerInterface.
func (s *Server) RebootInstance(w http.ResponseWriter, r *http.Request, id api.InstanceID, _ api.RebootInstanceParams) {
	s.actOnInstance(w, r, id, s.cloud.RebootInstance)
}

// TerminateInstance implements api.ServerInterface.
func (s *Server) TerminateInstance(w http.ResponseWriter, r *http.Request, id api.InstanceID, _ api.TerminateInstanceParams) {
	s.actOnInstance(w, r, id, s.cloud.TerminateInstance)
}

// actOnInstance answers a call that moves an instance to another state.
func (s *Server) actOnInstance(w http.ResponseWriter, r *http.Request, id string, act func(context.Context, cloud.Project, string) (cloud.Instance, cloud.Outcome, error)) {
	in, outcome, err := act(r.Context(), project(r), id)
	if err == nil {
		in, err = awaitOperation(s, w, r, in, outcome, id, s.cloud.GetInstance)
	}
	s.answerResource(w, r, http.StatusAccepted, in.Version, instanceOf(in), err)
}

// ListLoadBalancers implements api.ServerInterface.
func (s *Server) ListLoadBalancers(w http.ResponseWriter, r *http.Request, params api.ListLoadBalancersParams) {
	f, err := filterOf("lb-", params.Name, params.Tag, params.Limit, params.PageToken)
	f.States = each(value(params.State), func(v api.LoadBalancerState) string { return string(v) })
	answerList(s, w, r, f, err, inProject(r, s.cloud.ListLoadBalancers), func(last cloud.LoadBalancer) string { return last.ID }, loadBalancerOf, func(items []api.LoadBalancer, next *string) any {
		return api.LoadBalancerList{Items: items, NextPageToken: next}
	})
}

// CreateLoadBalancer implements api.ServerInterface.
func (s *Server) CreateLoadBalancer(w http.ResponseWriter, r *http.Request, _ api.CreateLoadBalancerParams) {
	body, ok := decode[api.LoadBalancerCreate](s, w, r)
	if !ok {
		return
	}
	lb, outcome, err := s.cloud.CreateLoadBalancer(r.Context(), project(r), cloud.LoadBalancerSpec{
		Name: body.Name, AddressID: value(body.AddressID), Address: value(body.Address), IPFamilies: each(value(body.IPFamilies), toFamily),
		Scheme: cloud.Scheme(value(body.Scheme)), Algorithm: cloud.Algorithm(value(body.Algorithm)),
		Listeners: each(body.Listeners, toListener), Targets: each(value(body.Targets), toTarget),
		SourceRanges: value(body.SourceRanges), Affinity: seconds(value(body.ClientAffinitySeconds)), HealthCheck: toCheck(body.HealthCheck),
		IdleTimeout: seconds(value(body.IdleTimeoutSeconds)), Drain: seconds(value(body.DrainSeconds)),
		Tags: value(body.Tags),
	})
	if err == nil {
		lb, err = awaitOperation(s, w, r, lb, outcome, lb.ID, s.cloud.GetLoadBalancer)
	}
	s.answerCreated(w, r, "/v1/load-balancers/"+lb.ID, lb.Version, loadBalancerOf(lb), outcome, err)
}

// GetLoadBalancer implements api.ServerInterface.
func (s *Server) GetLoadBalancer(w http.ResponseWriter, r *http.Request, id api.LoadBalancerID) {
	lb, err := s.cloud.GetLoadBalancer(r.Context(), project(r), id)
	s.answerResource(w, r, http.StatusOK, lb.Version, loadBalancerOf(lb), err)
}

// DeleteLoadBalancer implements api.ServerInterface.
func (s *Server) DeleteLoadBalancer(w http.ResponseWriter, r *http.Request, id api.LoadBalancerID, _ api.DeleteLoadBalancerParams) {
	lb, outcome, err := s.cloud.DeleteLoadBalancer(r.Context(), project(r), id)
	if err == nil {
		lb, err = awaitOperation(s, w, r, lb, outcome, id, s.cloud.GetLoadBalancer)
	}
	s.answerResource(w, r, http.StatusAccepted, lb.Version, loadBalancerOf(lb), err)
}

// UpdateLoadBalancer implements api.ServerInterface.
func (s *Server) UpdateLoadBalancer(w http.ResponseWriter, r *http.Request, id api.LoadBalancerID, _ api.UpdateLoadBalancerParams) {
	body, ok := decode[api.LoadBalancerUpdate](s, w, r)
	if !ok {
		return
	}
	u := cloud.LoadBalancerUpdate{
		Name: body.Name, AddressID: body.AddressID, Address: body.Address, Address6: body.IPv6Address, Scheme: (*cloud.Scheme)(body.Scheme), Algorithm: (*cloud.Algorithm)(body.Algorithm),
		SourceRanges: body.SourceRanges, Affinity: secondsOf(body.ClientAffinitySeconds), IdleTimeout: secondsOf(body.IdleTimeoutSeconds),
		Drain: secondsOf(body.DrainSeconds), HealthCheck: toCheck(body.HealthCheck), Tags: (*map[string]string)(body.Tags),
	}
	if body.IPFamilies != nil {
		f := each(*body.IPFamilies, toFamily)
		u.IPFamilies = &f
	}
	if body.Listeners != nil {
		l := each(*body.Listeners, toListener)
		u.Listeners = &l
	}
	if body.Targets != nil {
		t := each(*body.Targets, toTarget)
		u.Targets = &t
	}
	lb, outcome, err := s.cloud.UpdateLoadBalancer(r.Context(), project(r), id, u)
	if err == nil {
		lb, err = awaitOperation(s, w, r, lb, outcome, id, s.cloud.GetLoadBalancer)
	}
	s.answerResource(w, r, http.StatusAccepted, lb.Version, loadBalancerOf(lb), err)
}

// GetLoadBalancerStats implements api.ServerInterface.
func (s *Server) GetLoadBalancerStats(w http.ResponseWriter, r *http.Request, id api.LoadBalancerID) {
	stats, err := s.cloud.LoadBalancerStats(r.Context(), project(r), id)
	s.answerResult(w, r, http.StatusOK, statsOf(stats), err)
}

// GetLoadBalancerHealth implements api.ServerInterface.
func (s *Server) GetLoadBalancerHealth(w http.ResponseWriter, r *http.Request, id api.LoadBalancerID) {
	targets, err := s.cloud.LoadBalancerHealth(r.Context(), project(r), id)
	s.answerResult(w, r, http.StatusOK, api.LoadBalancerHealth{Targets: each(targets, healthOf)}, err)
}

// ListRoutes implements api.ServerInterface.
func (s *Server) ListRoutes(w http.ResponseWriter, r *http.Request, params api.ListRoutesParams) {
	f, err := filterOf("r-", params.Name, params.Tag, params.Limit, params.PageToken)
	answerList(s, w, r, f, err, inProject(r, s.cloud.ListRoutes), func(last cloud.Route) string { return last.ID }, routeOf, func(items []api.Route, next *string) any {
		return api.RouteList{Items: items, NextPageToken: next}
	})
}

// CreateRoute implements api.ServerInterface.
func (s *Server) CreateRoute(w http.ResponseWriter, r *http.Request, _ api.CreateRouteParams) {
	body, ok := decode[api.RouteCreate](s, w, r)
	if !ok {
		return
	}
	route, outcome, err := s.cloud.CreateRoute(r.Context(), project(r), cloud.RouteSpec{
		Name: body.Name, Destination: body.Destination, Instance: body.InstanceID, Tags: value(body.Tags),
	})
	s.answerCreated(w, r, "/v1/routes/"+route.ID, route.Version, routeOf(route), outcome, err)
}

// GetRoute implements api.ServerInterface.
func (s *Server) GetRoute(w http.ResponseWriter, r *http.Request, id api.RouteID) {
	route, err := s.cloud.GetRoute(r.Context(), project(r), id)
	s.answerResource(w, r, http.StatusOK, route.Version, routeOf(route), err)
}

// DeleteRoute implements api.ServerInterface.
func (s *Server) DeleteRoute(w http.ResponseWriter, r *http.Request, id api.RouteID, _ api.DeleteRouteParams) {
	s.answerNoContent(w, r, s.cloud.DeleteRoute(r.Context(), project(r), id))
}
