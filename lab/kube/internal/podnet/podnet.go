// Package podnet maps a pod's address to the loopback address on which the pod is served. It
// knows nothing of pods, nodes or ports.
//
// A pod's address cannot be a loopback address, because the validation of EndpointSlices refuses
// 127.0.0.0/8, and an ordinary user cannot add addresses to an interface. So pods get addresses of
// 10.0.0.0/8 from their node's podCIDR, and a pod at 10.x.y.z is served on 127.x.y.z, where Linux
// lets anybody listen. Messages call that "realised as".
package podnet

import (
	"fmt"
	"net/netip"
)

// Prefix holds every pod address that has a loopback address.
var Prefix = netip.MustParsePrefix("10.0.0.0/8")

// ToLoopback returns the loopback address on which a pod is served. It returns an address outside
// Prefix, such as a host network pod's, as it is.
func ToLoopback(address netip.Addr) netip.Addr {
	address = address.Unmap()
	if !Prefix.Contains(address) {
		return address
	}
	octets := address.As4()
	octets[0] = 127
	return netip.AddrFrom4(octets)
}

// ToLoopbackString is ToLoopback for addresses as text.
func ToLoopbackString(address string) (string, error) {
	parsed, err := netip.ParseAddr(address)
	if err != nil {
		return "", fmt.Errorf("pod address %q: %w", address, err)
	}
	return ToLoopback(parsed).String(), nil
}
