// Package dns gives the addresses of load balancers names, and answers queries for them. A name is made of the
// address alone, so that nothing is stored. Begin with NamesOf.
package dns

import (
	"encoding/hex"
	"net"
	"net/netip"
	"strings"
)

// Domain is what all names end with. Nobody else has it: RFC 6761 keeps "test" for tests.
const Domain = "fakecloud.test"

// NamesOf gives the two names of an IPv4 address: with the address as a hexadecimal number, and with its parts. Both
// lead to the address, and the address to the second.
func NamesOf(a netip.Addr) (byNumber, byParts string) {
	b := a.As4()
	return "cip-" + hex.EncodeToString(b[:]) + "." + Domain,
		"cip-" + strings.ReplaceAll(a.String(), ".", "-") + "." + Domain
}

// AddressOf gives the address that a name of NamesOf is for.
func AddressOf(name string) (netip.Addr, bool) {
	name = strings.TrimSuffix(strings.ToLower(name), ".")
	text := strings.TrimSuffix(strings.TrimPrefix(name, "cip-"), "."+Domain)
	a, err := netip.ParseAddr(strings.ReplaceAll(text, "-", "."))
	if number, bad := hex.DecodeString(text); err != nil && bad == nil && len(number) == net.IPv4len {
		a = netip.AddrFrom4([4]byte(number))
	}
	if !a.Is4() {
		return netip.Addr{}, false
	}
	byNumber, byParts := NamesOf(a)
	return a, name == byNumber || name == byParts
}
