// Package podnet maps a pod's address and ports to those on which the pod is served. It knows
// nothing of pods and nodes.
//
// A pod's address cannot be a loopback address, because the validation of EndpointSlices refuses
// 127.0.0.0/8, and an ordinary user cannot add addresses to an interface. So pods get addresses of
// 10.0.0.0/8 from their node's podCIDR, and a pod at 10.x.y.z is served on 127.x.y.z, where Linux
// lets anybody listen. Messages call that "realised as". Only root may listen on ports below 1024,
// so that they are served 61000 higher, for everybody.
package podnet

import "net/netip"

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

const (
	firstOrdinaryPort = 1024
	// lowPortOffset leads above the ports that Linux gives to clients (ip_local_port_range).
	lowPortOffset = 61000
)

// ServedPort returns the port on which a pod's port is served. It keeps 0, which is no port.
func ServedPort[N int32 | uint16](port N) N {
	if 0 < port && port < firstOrdinaryPort {
		return port + lowPortOffset
	}
	return port
}

// ServedAt returns where a port of a pod's or node's address is served. It returns any other as it is.
func ServedAt(at netip.AddrPort) netip.AddrPort {
	if address := ToLoopback(at.Addr()); address.IsLoopback() {
		return netip.AddrPortFrom(address, ServedPort(at.Port()))
	}
	return at
}
