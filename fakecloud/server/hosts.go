package server

import (
	"fmt"
	"net/http"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/hosts"
)

// IsOwnHost tells whether a request's Host is one of the server's own: see hosts.IsOwn. Names of Config.Hosts and of
// the certificate are.
func (s *Server) IsOwnHost(host string) bool {
	return hosts.IsOwn(host, s.hosts) ||
		s.cert != nil && s.cert.Leaf != nil && s.cert.Leaf.VerifyHostname(hosts.Name(host)) == nil
}

// answerMisdirected refuses what needs no token under a name that is not the server's own.
func (s *Server) answerMisdirected(w http.ResponseWriter, r *http.Request) {
	s.answerProblem(
		w, r, http.StatusMisdirectedRequest, api.Misdirected,
		fmt.Sprintf(
			"without a valid token, this cloud does not answer under the name %q: use an IP address or localhost, "+
				"or add the name by `fakecloud serve --host`", shorten(r.Host, maxEcho),
		), nil,
	)
}
