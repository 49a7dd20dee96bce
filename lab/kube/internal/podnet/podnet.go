// Package podnet answers where a pod's address really is.
//
// A pod's address cannot be a loopback one, because the validation of
// EndpointSlices refuses 127.0.0.0/8, and an ordinary user cannot add addresses
// to an interface. So pods get addresses of 10.0.0.0/8 from their node's
// podCIDR, and 10.x.y.z is realised as 127.x.y.z, which on Linux is there for
// anyone to listen on.
package podnet

import (
	"fmt"
	"net/netip"
)

// Prefix holds every address that can be realised.
var Prefix = netip.MustParsePrefix("10.0.0.0/8")

// Realised returns the loopback address on which a pod's address is served. An
// address outside Prefix (a host network pod's, say) is its own.
func Realised(address netip.Addr) netip.Addr {
	address = address.Unmap()
	if !Prefix.Contains(address) {
		return address
	}
	octets := address.As4()
	octets[0] = 127
	return netip.AddrFrom4(octets)
}

// RealisedString is Realised for addresses that travel as text.
func RealisedString(address string) (string, error) {
	parsed, err := netip.ParseAddr(address)
	if err != nil {
		return "", fmt.Errorf("pod address %q: %w", address, err)
	}
	return Realised(parsed).String(), nil
}
