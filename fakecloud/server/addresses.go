package server

import (
	"net/http"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/cloud"
)

func addressOf(a cloud.ReservedAddress) api.ReservedAddress {
	out := api.ReservedAddress{
		ID: a.ID, Project: a.Project, Name: a.Name, Region: a.Region, IP: a.IP.String(), State: api.AddressState(a.State),
		Tags: a.Tags, Version: a.Version, CreatedAt: a.CreatedAt, UpdatedAt: a.UpdatedAt,
	}
	if a.Holder != (cloud.AddressHolder{}) {
		out.Holder = &api.AddressHolder{Kind: api.AddressHolderKind(a.Holder.Kind), ID: a.Holder.ID}
	}
	return out
}

// ListAddresses implements api.ServerInterface.
func (s *Server) ListAddresses(w http.ResponseWriter, r *http.Request, params api.ListAddressesParams) {
	f, err := filterOf("a-", params.Name, params.Tag, params.Limit, params.PageToken)
	f.States = each(value(params.State), func(v api.AddressState) string { return string(v) })
	answerList(s, w, r, f, err, inProject(r, s.cloud.ListAddresses), func(last cloud.ReservedAddress) string { return last.ID }, addressOf, func(items []api.ReservedAddress, next *string) any {
		return api.ReservedAddressList{Items: items, NextPageToken: next}
	})
}

// ReserveAddress implements api.ServerInterface.
func (s *Server) ReserveAddress(w http.ResponseWriter, r *http.Request, _ api.ReserveAddressParams) {
	body, ok := decode[api.ReservedAddressCreate](s, w, r)
	if !ok {
		return
	}
	a, outcome, err := s.cloud.ReserveAddress(r.Context(), project(r), cloud.AddressSpec{Name: value(body.Name), IP: value(body.IP), Tags: value(body.Tags)})
	s.answerCreated(w, r, "/v1/addresses/"+a.ID, a.Version, addressOf(a), outcome, err)
}

// GetAddress implements api.ServerInterface.
func (s *Server) GetAddress(w http.ResponseWriter, r *http.Request, id api.AddressID) {
	a, err := s.cloud.GetAddress(r.Context(), project(r), id)
	s.answerResource(w, r, http.StatusOK, a.Version, addressOf(a), err)
}

// UpdateAddress implements api.ServerInterface.
func (s *Server) UpdateAddress(w http.ResponseWriter, r *http.Request, id api.AddressID, _ api.UpdateAddressParams) {
	body, ok := decode[api.ReservedAddressUpdate](s, w, r)
	if !ok {
		return
	}
	a, err := s.cloud.UpdateAddress(r.Context(), project(r), id, cloud.ResourceUpdate{Name: body.Name, Tags: (*map[string]string)(body.Tags)})
	s.answerResource(w, r, http.StatusOK, a.Version, addressOf(a), err)
}

// AttachAddress implements api.ServerInterface.
func (s *Server) AttachAddress(w http.ResponseWriter, r *http.Request, id api.AddressID, _ api.AttachAddressParams) {
	body, ok := decode[api.AddressAttach](s, w, r)
	if !ok {
		return
	}
	a, err := s.cloud.AttachAddress(r.Context(), project(r), id, body.InstanceID)
	s.answerResource(w, r, http.StatusOK, a.Version, addressOf(a), err)
}

// DetachAddress implements api.ServerInterface.
func (s *Server) DetachAddress(w http.ResponseWriter, r *http.Request, id api.AddressID, _ api.DetachAddressParams) {
	a, err := s.cloud.DetachAddress(r.Context(), project(r), id)
	s.answerResource(w, r, http.StatusOK, a.Version, addressOf(a), err)
}

// ReleaseAddress implements api.ServerInterface.
func (s *Server) ReleaseAddress(w http.ResponseWriter, r *http.Request, id api.AddressID, _ api.ReleaseAddressParams) {
	s.answerNoContent(w, r, s.cloud.ReleaseAddress(r.Context(), project(r), id))
}
