// Package hosts tells a server's own names from names that others made to lead to it. A site whose name leads here
// could have its pages read what needs no token (DNS rebinding).
package hosts

import (
	"net"
	"net/netip"
	"slices"
	"strings"
)

// IsOwn tells whether a request's Host is one of the server's own: localhost, one of names (in lower case), any IP
// address, or none, as in HTTP/1.0. A browser never sends a rebound page's calls with an IP address as the Host, and
// the address that clients use need not be one that the server knows, behind a forwarded port.
func IsOwn(host string, names []string) bool {
	name := Name(host)
	_, err := netip.ParseAddr(name)
	return err == nil || name == "" || name == "localhost" || slices.Contains(names, name)
}

// Name is a Host in lower case, without port, brackets and the dot at its end.
func Name(host string) string {
	if bare, _, err := net.SplitHostPort(host); err == nil {
		host = bare
	}
	return strings.ToLower(strings.TrimSuffix(strings.Trim(host, "[]"), "."))
}
