package server

import (
	"net/http"

	"github.com/ccmlab/ccmlab/fakecloud/api"
)

func (s *Server) attachAddress(w http.ResponseWriter, r *http.Request, id string) {
	if body, ok := decodeBody[api.AddressAttach](s, w, r); ok {
		a, err := s.cloud.AttachAddress(r.Context(), callerProject(r), id, body)
		s.answerResource(w, r, http.StatusOK, a.Version, a, err)
	}
}

func (s *Server) detachAddress(w http.ResponseWriter, r *http.Request, id string) {
	a, err := s.cloud.DetachAddress(r.Context(), callerProject(r), id)
	s.answerResource(w, r, http.StatusOK, a.Version, a, err)
}
