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
	f, err := filter("i-", params.Name, params.Tag, params.Limit, params.PageToken)
	if err != nil {
		s.fail(w, r, err)
		return
	}
	f.Zone = value(params.Zone)
	f.States = each(value(params.State), func(v api.InstanceState) string { return string(v) })
	items, more, err := s.cloud.ListInstances(r.Context(), project(r), f)
	next := nextPage(items, more, func(last cloud.Instance) string { return last.ID })
	s.result(w, r, http.StatusOK, api.InstanceList{Items: each(items, instanceOf), NextPageToken: next}, err)
}

func filter(prefix string, name *string, tags *[]string, limit *int, token *string) (cloud.Filter, error) {
	f := cloud.Filter{Name: value(name), Limit: defaultLimit, Tags: each(value(tags), cloud.ParseTagFilter)}
	if limit != nil {
		f.Limit = *limit
	}
	if token != nil {
		id, err := base64.RawURLEncoding.DecodeString(*token)
		if err != nil || !strings.HasPrefix(string(id), prefix) {
			return f, badPageToken()
		}
		f.After = string(id)
	}
	return f, nil
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
	in, err := s.cloud.CreateInstance(r.Context(), project(r), cloud.InstanceSpec{
		Name: value(body.Name), Zone: value(body.Zone), Type: cloud.InstanceType(value(body.Type)),
		Network: value(body.NetworkID), Address: value(body.Address), Tags: value(body.Tags),
	})
	if err == nil {
		in, err = awaited(s, w, r, in, in.ID, s.cloud.GetInstance)
	}
	s.created(w, r, "/v1/instances/"+in.ID, in.Version, instanceOf(in), err)
}

// GetInstance implements api.ServerInterface.
func (s *Server) GetInstance(w http.ResponseWriter, r *http.Request, id api.InstanceID) {
	s.instance(w, r, http.StatusOK, id, s.cloud.GetInstance)
}

// StartInstance implements api.ServerInterface.
func (s *Server) StartInstance(w http.ResponseWriter, r *http.Request, id api.InstanceID, _ api.StartInstanceParams) {
	s.instance(w, r, http.StatusAccepted, id, s.cloud.StartInstance)
}

// StopInstance implements api.ServerInterface.
func (s *Server) StopInstance(w http.ResponseWriter, r *http.Request, id api.InstanceID, _ api.StopInstanceParams) {
	s.instance(w, r, http.StatusAccepted, id, s.cloud.StopInstance)
}

// RebootInstance implements api.ServerInterface.
func (s *Server) RebootInstance(w http.ResponseWriter, r *http.Request, id api.InstanceID, _ api.RebootInstanceParams) {
	s.instance(w, r, http.StatusAccepted, id, s.cloud.RebootInstance)
}

// TerminateInstance implements api.ServerInterface.
func (s *Server) TerminateInstance(w http.ResponseWriter, r *http.Request, id api.InstanceID, _ api.TerminateInstanceParams) {
	s.instance(w, r, http.StatusAccepted, id, s.cloud.TerminateInstance)
}

func (s *Server) instance(w http.ResponseWriter, r *http.Request, status int, id string, do func(context.Context, cloud.Project, string) (cloud.Instance, error)) {
	in, err := do(r.Context(), project(r), id)
	if err == nil {
		in, err = awaited(s, w, r, in, id, s.cloud.GetInstance)
	}
	s.resource(w, r, status, in.Version, instanceOf(in), err)
}

// ListLoadBalancers implements api.ServerInterface.
func (s *Server) ListLoadBalancers(w http.ResponseWriter, r *http.Request, params api.ListLoadBalancersParams) {
	f, err := filter("lb-", params.Name, params.Tag, params.Limit, params.PageToken)
	if err != nil {
		s.fail(w, r, err)
		return
	}
	f.States = each(value(params.State), func(v api.LoadBalancerState) string { return string(v) })
	items, more, err := s.cloud.ListLoadBalancers(r.Context(), project(r), f)
	next := nextPage(items, more, func(last cloud.LoadBalancer) string { return last.ID })
	s.result(w, r, http.StatusOK, api.LoadBalancerList{Items: each(items, loadBalancerOf), NextPageToken: next}, err)
}

// CreateLoadBalancer implements api.ServerInterface.
func (s *Server) CreateLoadBalancer(w http.ResponseWriter, r *http.Request, _ api.CreateLoadBalancerParams) {
	body, ok := decode[api.LoadBalancerCreate](s, w, r)
	if !ok {
		return
	}
	lb, err := s.cloud.CreateLoadBalancer(r.Context(), project(r), cloud.LoadBalancerSpec{
		Name: body.Name, AddressID: value(body.AddressID), Address: value(body.Address), IPFamilies: each(value(body.IPFamilies), toFamily),
		Scheme: cloud.Scheme(value(body.Scheme)), Algorithm: cloud.Algorithm(value(body.Algorithm)),
		Listeners: each(body.Listeners, toListener), Targets: each(value(body.Targets), toTarget),
		SourceRanges: value(body.SourceRanges), Affinity: seconds(value(body.ClientAffinitySeconds)), HealthCheck: toCheck(body.HealthCheck),
		IdleTimeout: seconds(value(body.IdleTimeoutSeconds)), Drain: seconds(value(body.DrainSeconds)),
		Tags: value(body.Tags),
	})
	if err == nil {
		lb, err = awaited(s, w, r, lb, lb.ID, s.cloud.GetLoadBalancer)
	}
	s.created(w, r, "/v1/load-balancers/"+lb.ID, lb.Version, loadBalancerOf(lb), err)
}

// GetLoadBalancer implements api.ServerInterface.
func (s *Server) GetLoadBalancer(w http.ResponseWriter, r *http.Request, id api.LoadBalancerID) {
	s.loadBalancer(w, r, http.StatusOK, id, s.cloud.GetLoadBalancer)
}

// DeleteLoadBalancer implements api.ServerInterface.
func (s *Server) DeleteLoadBalancer(w http.ResponseWriter, r *http.Request, id api.LoadBalancerID, _ api.DeleteLoadBalancerParams) {
	s.loadBalancer(w, r, http.StatusAccepted, id, s.cloud.DeleteLoadBalancer)
}

func (s *Server) loadBalancer(w http.ResponseWriter, r *http.Request, status int, id string, do func(context.Context, cloud.Project, string) (cloud.LoadBalancer, error)) {
	lb, err := do(r.Context(), project(r), id)
	if err == nil {
		lb, err = awaited(s, w, r, lb, id, s.cloud.GetLoadBalancer)
	}
	s.resource(w, r, status, lb.Version, loadBalancerOf(lb), err)
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
	lb, err := s.cloud.UpdateLoadBalancer(r.Context(), project(r), id, u)
	if err == nil {
		lb, err = awaited(s, w, r, lb, id, s.cloud.GetLoadBalancer)
	}
	s.resource(w, r, http.StatusAccepted, lb.Version, loadBalancerOf(lb), err)
}

// GetLoadBalancerStats implements api.ServerInterface.
func (s *Server) GetLoadBalancerStats(w http.ResponseWriter, r *http.Request, id api.LoadBalancerID) {
	stats, err := s.cloud.LoadBalancerStats(r.Context(), project(r), id)
	s.result(w, r, http.StatusOK, statsOf(stats), err)
}

// GetLoadBalancerHealth implements api.ServerInterface.
func (s *Server) GetLoadBalancerHealth(w http.ResponseWriter, r *http.Request, id api.LoadBalancerID) {
	targets, err := s.cloud.LoadBalancerHealth(r.Context(), project(r), id)
	s.result(w, r, http.StatusOK, api.LoadBalancerHealth{Targets: each(targets, healthOf)}, err)
}

// ListRoutes implements api.ServerInterface.
func (s *Server) ListRoutes(w http.ResponseWriter, r *http.Request, params api.ListRoutesParams) {
	f, err := filter("r-", params.Name, params.Tag, params.Limit, params.PageToken)
	if err != nil {
		s.fail(w, r, err)
		return
	}
	items, more, err := s.cloud.ListRoutes(r.Context(), project(r), f)
	next := nextPage(items, more, func(last cloud.Route) string { return last.ID })
	s.result(w, r, http.StatusOK, api.RouteList{Items: each(items, routeOf), NextPageToken: next}, err)
}

// CreateRoute implements api.ServerInterface.
func (s *Server) CreateRoute(w http.ResponseWriter, r *http.Request, _ api.CreateRouteParams) {
	body, ok := decode[api.RouteCreate](s, w, r)
	if !ok {
		return
	}
	route, err := s.cloud.CreateRoute(r.Context(), project(r), cloud.RouteSpec{
		Name: body.Name, Destination: body.Destination, Instance: body.InstanceID, Tags: value(body.Tags),
	})
	s.created(w, r, "/v1/routes/"+route.ID, route.Version, routeOf(route), err)
}

// GetRoute implements api.ServerInterface.
func (s *Server) GetRoute(w http.ResponseWriter, r *http.Request, id api.RouteID) {
	route, err := s.cloud.GetRoute(r.Context(), project(r), id)
	s.resource(w, r, http.StatusOK, route.Version, routeOf(route), err)
}

// DeleteRoute implements api.ServerInterface.
func (s *Server) DeleteRoute(w http.ResponseWriter, r *http.Request, id api.RouteID, _ api.DeleteRouteParams) {
	s.done(w, r, s.cloud.DeleteRoute(r.Context(), project(r), id))
}
