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
func (e *endpointPicker) setBackends(targets backends) {
	e.backends = targets
	e.forgetExpired()
}

// candidateEndpoints returns all endpoints in the order in which a client tries them.
func (e *endpointPicker) candidateEndpoints(client netip.Addr) []netip.AddrPort {
	count := len(e.endpoints)
	if count == 0 {
		return nil
	}
	first := -1
	if s, known := e.affinities[client]; known && time.Since(s.lastUsed) <= e.affinity {
		first = slices.Index(e.endpoints, s.endpoint)
	}
	if first < 0 {
		first = e.nextIndex % count
		e.nextIndex++
	}
	return slices.Concat(e.endpoints[first:], e.endpoints[:first])
}

// rememberEndpoint notes the endpoint that a client got, if the Service has session affinity.
func (e *endpointPicker) rememberEndpoint(client netip.Addr, endpoint netip.AddrPort) {
	if e.affinity == 0 {
		return
	}
	if _, known := e.affinities[client]; !known && len(e.affinities) >= maxAffinities {
		e.forgetExpired()
		e.forgetOldest()
	}
	e.affinities[client] = clientAffinity{endpoint, time.Now()}
}

func (e *endpointPicker) forgetExpired() {
	for client, s := range e.affinities {
		if e.affinity == 0 || time.Since(s.lastUsed) > e.affinity {
			delete(e.affinities, client)
		}
	}
}

// forgetOldest makes room for one more client, if there is none.
func (e *endpointPicker) forgetOldest() {
	if len(e.affinities) < maxAffinities {
		return
	}
	var oldest netip.Addr
	for client, s := range e.affinities {
		if !oldest.IsValid() || s.lastUsed.Before(e.affinities[oldest].lastUsed) {
			oldest = client
		}
	}
	delete(e.affinities, oldest)
}

// sourceAddressFor returns the address that endpoints see as a client's; an invalid one has the
// kernel pick. A loopback client's own address can be kept without privileges: all of 127.0.0.0/8
// is this machine's. The address of a client from elsewhere cannot.
func (e *endpointPicker) sourceAddressFor(client netip.Addr) netip.Addr {
	if !e.source.IsValid() && client.IsLoopback() {
		return client
	}
	return e.source
}
