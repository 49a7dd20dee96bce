package api

// Transport is the protocol of the listener's socket, tcp or udp: http is over tcp.
func (l Listener) Transport() Protocol {
	if l.Protocol == ProtocolHTTP {
		return ProtocolTCP
	}
	return l.Protocol
}

// PublicAddresses are those on which a public balancer is to be reached: the reserved addresses that are attached
// to it, and the one of its own, of IPv4.
func (lb LoadBalancer) PublicAddresses() []string {
	return append(append([]string{}, lb.AttachedAddresses...), lb.Address)
}
