// This file answers: how are networks run, and resources renamed and tagged?

package server

import (
	"net/http"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/cloud"
)

// ListNetworks implements api.ServerInterface.
func (s *Server) ListNetworks(w http.ResponseWriter, r *http.Request, params api.ListNetworksParams) {
	f, err := filter("n-", params.Name, params.Tag, params.Limit, params.PageToken)
	if err != nil {
		s.fail(w, r, err)
		return
	}
	items, more, err := s.cloud.ListNetworks(r.Context(), project(r), f)
	if err != nil {
		s.fail(w, r, err)
		return
	}
	list := api.NetworkList{Items: each(items, networkOf)}
	if more {
		list.NextPageToken = pageToken(items[len(items)-1].ID)
	}
	s.reply(w, r, http.StatusOK, list)
}

// CreateNetwork implements api.ServerInterface.
func (s *Server) CreateNetwork(w http.ResponseWriter, r *http.Request, _ api.CreateNetworkParams) {
	body, ok := decode[api.NetworkCreate](s, w, r)
	if !ok {
		return
	}
	n, err := s.cloud.CreateNetwork(r.Context(), project(r), cloud.NetworkSpec{Name: body.Name, CIDR: body.Cidr, Tags: value(body.Tags)})
	if err != nil {
		s.fail(w, r, err)
		return
	}
	w.Header().Set("Location", "/v1/networks/"+n.ID)
	s.resource(w, r, http.StatusCreated, n.Version, networkOf(n))
}

// GetNetwork implements api.ServerInterface.
func (s *Server) GetNetwork(w http.ResponseWriter, r *http.Request, id api.NetworkID) {
	n, err := s.cloud.GetNetwork(r.Context(), project(r), id)
	if err != nil {
		s.fail(w, r, err)
		return
	}
	s.resource(w, r, http.StatusOK, n.Version, networkOf(n))
}

// DeleteNetwork implements api.ServerInterface.
func (s *Server) DeleteNetwork(w http.ResponseWriter, r *http.Request, id api.NetworkID, _ api.DeleteNetworkParams) {
	if err := s.cloud.DeleteNetwork(r.Context(), project(r), id); err != nil {
		s.fail(w, r, err)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

// UpdateNetwork implements api.ServerInterface.
func (s *Server) UpdateNetwork(w http.ResponseWriter, r *http.Request, id api.NetworkID, _ api.UpdateNetworkParams) {
	u, ok := s.resourceUpdate(w, r)
	if !ok {
		return
	}
	n, err := s.cloud.UpdateNetwork(r.Context(), project(r), id, u)
	if err != nil {
		s.fail(w, r, err)
		return
	}
	s.resource(w, r, http.StatusOK, n.Version, networkOf(n))
}

// UpdateInstance implements api.ServerInterface.
func (s *Server) UpdateInstance(w http.ResponseWriter, r *http.Request, id api.InstanceID, _ api.UpdateInstanceParams) {
	u, ok := s.resourceUpdate(w, r)
	if !ok {
		return
	}
	in, err := s.cloud.UpdateInstance(r.Context(), project(r), id, u)
	if err != nil {
		s.fail(w, r, err)
		return
	}
	s.resource(w, r, http.StatusOK, in.Version, instanceOf(in))
}

// UpdateRoute implements api.ServerInterface.
func (s *Server) UpdateRoute(w http.ResponseWriter, r *http.Request, id api.RouteID, _ api.UpdateRouteParams) {
	u, ok := s.resourceUpdate(w, r)
	if !ok {
		return
	}
	route, err := s.cloud.UpdateRoute(r.Context(), project(r), id, u)
	if err != nil {
		s.fail(w, r, err)
		return
	}
	s.resource(w, r, http.StatusOK, route.Version, routeOf(route))
}

func (s *Server) resourceUpdate(w http.ResponseWriter, r *http.Request) (cloud.ResourceUpdate, bool) {
	body, ok := decode[api.ResourceUpdate](s, w, r)
	return cloud.ResourceUpdate{Name: body.Name, Tags: toTags(body.Tags)}, ok
}

func networkOf(n cloud.Network) api.Network {
	return api.Network{
		ID: n.ID, Project: n.Project, Name: n.Name, Cidr: n.CIDR.String(), Default: n.Default,
		Tags: n.Tags, Version: n.Version, CreatedAt: n.CreatedAt, UpdatedAt: n.UpdatedAt,
	}
}
