package server

import (
	"net/http"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/cloud"
)

func toAPIAddress(a cloud.ReservedAddress) api.ReservedAddress {
	out := api.ReservedAddress{
		ID: a.ID, Serial: a.Serial, Project: a.Project, Name: a.Name, Region: a.Region, IP: a.IP.String(),
		State: api.AddressState(a.State),
		Tags:  a.Tags, Version: a.Version, CreatedAt: a.CreatedAt, UpdatedAt: a.UpdatedAt,
	}
	if a.Holder != (cloud.AddressHolder{}) {
		out.Holder = &api.AddressHolder{Kind: api.AddressHolderKind(a.Holder.Kind), ID: a.Holder.ID}
	}
	return out
}

// describeAddress is toAPIAddress with what the data plane has to say.
func (s *Server) describeAddress(a cloud.ReservedAddress) api.ReservedAddress {
	out := toAPIAddress(a)
	out.StateReason = textOrNil(s.cloud.UnreachableReason(a))
	return out
}

// ListAddresses implements api.ServerInterface.
func (s *Server) ListAddresses(w http.ResponseWriter, r *http.Request, params api.ListAddressesParams) {
	f, err := filterOf("a-", params.Name, params.Tag, params.Limit, params.PageToken)
	f.States = mapSlice(api.ValueOf(params.State), func(v api.AddressState) string { return string(v) })
	answerList(s, w, r, f, err, inProject(r, s.cloud.ListAddresses), s.describeAddress)
}

// ReserveAddress implements api.ServerInterface.
func (s *Server) ReserveAddress(w http.ResponseWriter, r *http.Request) {
	body, ok := decodeBody[api.ReservedAddressCreate](s, w, r)
	if !ok {
		return
	}
	a, outcome, err := s.cloud.ReserveAddress(
		r.Context(), callerProject(r),
		cloud.AddressSpec{Name: api.ValueOf(body.Name), IP: api.ValueOf(body.IP), Tags: api.ValueOf(body.Tags)},
	)
	s.answerCreated(w, r, "/v1/addresses/"+a.ID, a.Version, s.describeAddress(a), outcome, err)
}

// GetAddress implements api.ServerInterface.
func (s *Server) GetAddress(w http.ResponseWriter, r *http.Request, id api.AddressID) {
	a, err := s.cloud.GetAddress(r.Context(), callerProject(r), id)
	s.answerResource(w, r, http.StatusOK, a.Version, s.describeAddress(a), err)
}

// UpdateAddress implements api.ServerInterface.
func (s *Server) UpdateAddress(w http.ResponseWriter, r *http.Request, id api.AddressID) {
	body, ok := decodeBody[api.ReservedAddressUpdate](s, w, r)
	if !ok {
		return
	}
	a, err := s.cloud.UpdateAddress(
		r.Context(), callerProject(r), id, api.ResourceUpdate(body),
	)
	s.answerResource(w, r, http.StatusOK, a.Version, s.describeAddress(a), err)
}

// AttachAddress implements api.ServerInterface.
func (s *Server) AttachAddress(w http.ResponseWriter, r *http.Request, id api.AddressID) {
	body, ok := decodeBody[api.AddressAttach](s, w, r)
	if !ok {
		return
	}
	to := cloud.AddressHolder{Kind: cloud.InstanceResource, ID: body.InstanceID}
	if body.LoadBalancerID != "" {
		to = cloud.AddressHolder{Kind: cloud.LoadBalancerResource, ID: body.LoadBalancerID}
	}
	a, err := s.cloud.AttachAddress(r.Context(), callerProject(r), id, to)
	s.answerResource(w, r, http.StatusOK, a.Version, s.describeAddress(a), err)
}

// DetachAddress implements api.ServerInterface.
func (s *Server) DetachAddress(w http.ResponseWriter, r *http.Request, id api.AddressID) {
	a, err := s.cloud.DetachAddress(r.Context(), callerProject(r), id)
	s.answerResource(w, r, http.StatusOK, a.Version, s.describeAddress(a), err)
}

// ReleaseAddress implements api.ServerInterface.
func (s *Server) ReleaseAddress(w http.ResponseWriter, r *http.Request, id api.AddressID) {
	s.answerNoContent(w, r, s.cloud.ReleaseAddress(r.Context(), callerProject(r), id))
}
