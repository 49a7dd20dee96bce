// This file answers: what does the API do with routes?

package server

import (
	"errors"
	"net/http"

	"github.com/ccmlab/ccmlab/fakecloud/api"
)

var errNotServed = errors.New("this operation is not served yet")

// GetLoadBalancerHealth implements api.ServerInterface.
func (s *Server) GetLoadBalancerHealth(w http.ResponseWriter, r *http.Request, _ api.LoadBalancerID) {
	s.fail(w, r, errNotServed)
}

// ListRoutes implements api.ServerInterface.
func (s *Server) ListRoutes(w http.ResponseWriter, r *http.Request, _ api.ListRoutesParams) {
	s.fail(w, r, errNotServed)
}

// CreateRoute implements api.ServerInterface.
func (s *Server) CreateRoute(w http.ResponseWriter, r *http.Request) { s.fail(w, r, errNotServed) }

// GetRoute implements api.ServerInterface.
func (s *Server) GetRoute(w http.ResponseWriter, r *http.Request, _ api.RouteID) {
	s.fail(w, r, errNotServed)
}

// DeleteRoute implements api.ServerInterface.
func (s *Server) DeleteRoute(w http.ResponseWriter, r *http.Request, _ api.RouteID) {
	s.fail(w, r, errNotServed)
}
