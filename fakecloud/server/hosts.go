package server

import (
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"

	"github.com/ccmlab/ccmlab/fakecloud/api"
)

// IsOwnHost tells whether a request's Host is one of the server's own: localhost, a name of Config.Hosts or of the
// certificate, any IP address, or none, as in HTTP/1.0. Another is that of a site whose name was made to lead here, so
// that its pages can read what needs no token (DNS rebinding). A browser never sends such a page's calls with an IP
// address as the Host, and the address that clients use need not be one that the server knows, behind a forwarded port.
func (s *Server) IsOwnHost(host string) bool {
	name := host
	if bare, _, err := net.SplitHostPort(host); err == nil {
		name = bare
	}
	name = strings.ToLower(strings.TrimSuffix(strings.Trim(name, "[]"), "."))
	if _, err := netip.ParseAddr(name); err == nil || name == "" || name == "localhost" || slices.Contains(s.hosts, name) {
		return true
	}
	return s.cert != nil && s.cert.Leaf != nil && s.cert.Leaf.VerifyHostname(name) == nil
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
