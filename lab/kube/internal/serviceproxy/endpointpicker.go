package serviceproxy

import (
	"net/netip"
	"slices"
	"time"
)

// maxAffinities bounds the clients that a port remembers. It is the default size of an nftables
// set, in which kube-proxy keeps them.
const maxAffinities = 65535

// endpointPicker picks endpoints round-robin; with session affinity a client gets the endpoint
// that it had. As with kube-proxy, each port of a Service remembers its own clients, and every new
// connection or flow of a client restarts its timeout (pkg/proxy/nftables, the set affinity-*;
// pkg/proxy/iptables, -m recent).
//
// Its owner locks it.
type endpointPicker struct {
	backends
	// nextIndex is taken modulo the number of endpoints.
	nextIndex  int
	affinities map[netip.Addr]clientAffinity
}

type clientAffinity struct {
	endpoint netip.AddrPort
	lastUsed time.Time
}

func newEndpointPicker(targets backends) endpointPicker {
	return endpointPicker{backends: targets, affinities: map[netip.Addr]clientAffinity{}}
}

// setBackends changes the backends for new connections and flows.
func (c *endpointPicker) setBackends(targets backends) {
	c.backends = targets
	c.forgetExpired()
}

// candidateEndpoints returns all endpoints in the order in which a client tries them.
func (c *endpointPicker) candidateEndpoints(client netip.Addr) []netip.AddrPort {
	count := len(c.endpoints)
	if count == 0 {
		return nil
	}
	first := -1
	if s, known := c.affinities[client]; known && time.Since(s.lastUsed) <= c.affinity {
		first = slices.Index(c.endpoints, s.endpoint)
	}
	if first < 0 {
		first = c.nextIndex % count
		c.nextIndex++
	}
	return slices.Concat(c.endpoints[first:], c.endpoints[:first])
}

// rememberEndpoint notes the endpoint that a client got, if the Service has session affinity.
func (c *endpointPicker) rememberEndpoint(client netip.Addr, endpoint netip.AddrPort) {
	if c.affinity == 0 {
		return
	}
	if _, known := c.affinities[client]; !known && len(c.affinities) >= maxAffinities {
		c.forgetExpired()
		c.forgetOldest()
	}
	c.affinities[client] = clientAffinity{endpoint, time.Now()}
}

func (c *endpointPicker) forgetExpired() {
	for client, s := range c.affinities {
		if c.affinity == 0 || time.Since(s.lastUsed) > c.affinity {
			delete(c.affinities, client)
		}
	}
}

// forgetOldest makes room for one more client, if there is none.
func (c *endpointPicker) forgetOldest() {
	if len(c.affinities) < maxAffinities {
		return
	}
	var oldest netip.Addr
	for client, s := range c.affinities {
		if !oldest.IsValid() || s.lastUsed.Before(c.affinities[oldest].lastUsed) {
			oldest = client
		}
	}
	delete(c.affinities, oldest)
}

// sourceAddressFor returns the address that endpoints see as a client's; an invalid one has the
// kernel pick. A loopback client's own address can be kept without privileges: all of 127.0.0.0/8
// is this machine's. The address of a client from elsewhere cannot.
func (c *endpointPicker) sourceAddressFor(client netip.Addr) netip.Addr {
	if !c.source.IsValid() && client.IsLoopback() {
		return client
	}
	return c.source
}
