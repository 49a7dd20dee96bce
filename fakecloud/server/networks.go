package server

import (
	"net/http"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/cloud"
)

// ListNetworks implements api.ServerInterface.
func (s *Server) ListNetworks(w http.ResponseWriter, r *http.Request, params api.ListNetworksParams) {
	f, err := filterOf("n-", params.Name, params.Tag, params.Limit, params.PageToken)
	answerList(s, w, r, f, err, inProject(r, s.cloud.ListNetworks), toAPINetwork)
}

// CreateNetwork implements api.ServerInterface.
func (s *Server) CreateNetwork(w http.ResponseWriter, r *http.Request) {
	body, ok := decodeBody[api.NetworkCreate](s, w, r)
	if !ok {
		return
	}
	n, outcome, err := s.cloud.CreateNetwork(
		r.Context(), callerProject(r),
		cloud.NetworkSpec{Name: body.Name, CIDR: body.Cidr, Tags: api.ValueOf(body.Tags)},
	)
	s.answerCreated(w, r, "/v1/networks/"+n.ID, n.Version, toAPINetwork(n), outcome, err)
}

// GetNetwork implements api.ServerInterface.
func (s *Server) GetNetwork(w http.ResponseWriter, r *http.Request, id api.NetworkID) {
	n, err := s.cloud.GetNetwork(r.Context(), callerProject(r), id)
	s.answerResource(w, r, http.StatusOK, n.Version, toAPINetwork(n), err)
}

// DeleteNetwork implements api.ServerInterface.
func (s *Server) DeleteNetwork(w http.ResponseWriter, r *http.Request, id api.NetworkID) {
	s.answerNoContent(w, r, s.cloud.DeleteNetwork(r.Context(), callerProject(r), id))
}

// UpdateNetwork implements api.ServerInterface.
func (s *Server) UpdateNetwork(w http.ResponseWriter, r *http.Request, id api.NetworkID) {
	u, ok := s.resourceUpdate(w, r)
	if !ok {
		return
	}
	n, err := s.cloud.UpdateNetwork(r.Context(), callerProject(r), id, u)
	s.answerResource(w, r, http.StatusOK, n.Version, toAPINetwork(n), err)
}

// UpdateInstance implements api.ServerInterface.
func (s *Server) UpdateInstance(w http.ResponseWriter, r *http.Request, id api.InstanceID) {
	u, ok := s.resourceUpdate(w, r)
	if !ok {
		return
	}
	in, err := s.cloud.UpdateInstance(r.Context(), callerProject(r), id, u)
	s.answerResource(w, r, http.StatusOK, in.Version, toAPIInstance(in), err)
}

func (s *Server) resourceUpdate(w http.ResponseWriter, r *http.Request) (cloud.ResourceUpdate, bool) {
	body, ok := decodeBody[api.ResourceUpdate](s, w, r)
	return cloud.ResourceUpdate{Name: body.Name, Tags: (*map[string]string)(body.Tags)}, ok
}

func toAPINetwork(n cloud.Network) api.Network {
	return api.Network{
		ID: n.ID, Serial: n.Serial, Project: n.Project, Name: n.Name, Cidr: n.CIDR.String(), Default: n.Default,
		Tags: n.Tags, Version: n.Version, CreatedAt: n.CreatedAt, UpdatedAt: n.UpdatedAt,
	}
}
