package serviceproxy

import (
	"net/netip"
	"slices"
	"time"
)

// maxSticky bounds the clients that a port remembers. It is what nftables, where
// kube-proxy keeps them, allows a set that says nothing else.
const maxSticky = 65535

// choice gives endpoints in turn, and with session affinity each client the one
// that it had. As with kube-proxy, each port of a Service has a memory of its
// own, and every new connection or flow of a client begins its time anew
// (pkg/proxy/nftables, the set affinity-*; pkg/proxy/iptables, -m recent).
//
// It is its owner's to lock.
type choice struct {
	backends
	turn   int
	sticky map[netip.Addr]stickiness
}

type stickiness struct {
	endpoint netip.AddrPort
	lastUsed time.Time
}

func newChoice(targets backends) choice {
	return choice{backends: targets, sticky: map[netip.Addr]stickiness{}}
}

// change has new connections and flows go elsewhere.
func (c *choice) change(targets backends) {
	c.backends = targets
	c.forgetExpired()
}

// candidates are all endpoints, in the order in which a client is to try them.
func (c *choice) candidates(client netip.Addr) []netip.AddrPort {
	count := len(c.endpoints)
	if count == 0 {
		return nil
	}
	first := -1
	if s, known := c.sticky[client]; known && time.Since(s.lastUsed) <= c.affinity {
		first = slices.Index(c.endpoints, s.endpoint)
	}
	if first < 0 {
		first = c.turn % count
		c.turn++
	}
	return slices.Concat(c.endpoints[first:], c.endpoints[:first])
}

// chosen remembers what a client got, if it is to stay with it.
func (c *choice) chosen(client netip.Addr, endpoint netip.AddrPort) {
	if c.affinity == 0 {
		return
	}
	if _, known := c.sticky[client]; !known && len(c.sticky) >= maxSticky {
		c.forgetExpired()
		c.forgetOldest()
	}
	c.sticky[client] = stickiness{endpoint, time.Now()}
}

func (c *choice) forgetExpired() {
	for client, s := range c.sticky {
		if c.affinity == 0 || time.Since(s.lastUsed) > c.affinity {
			delete(c.sticky, client)
		}
	}
}

// forgetOldest makes room for one, if there is none.
func (c *choice) forgetOldest() {
	if len(c.sticky) < maxSticky {
		return
	}
	var oldest netip.Addr
	for client, s := range c.sticky {
		if !oldest.IsValid() || s.lastUsed.Before(c.sticky[oldest].lastUsed) {
			oldest = client
		}
	}
	delete(c.sticky, oldest)
}

// sourceFor is the address that endpoints see of a client; invalid if the kernel
// is to pick one. On loopback it takes no privilege to keep a client's: all of
// 127.0.0.0/8 is this machine's. That of a client from elsewhere cannot be kept.
func (c *choice) sourceFor(client netip.Addr) netip.Addr {
	if !c.source.IsValid() && client.IsLoopback() {
		return client
	}
	return c.source
}
