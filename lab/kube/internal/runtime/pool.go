package runtime

import (
	"fmt"
	"net/netip"

	"github.com/ccmlab/ccmlab/lab/kube/internal/podnet"
)

// addressPool assigns the addresses of one prefix in turn. Like CNI's host-local plugin it goes on
// from the last one assigned, so that an address that was just freed is not reused soon.
type addressPool struct {
	prefix netip.Prefix
	first  netip.Addr
	last   netip.Addr
	next   netip.Addr
	used   map[netip.Addr]bool
}

// newAddressPool returns a pool without the prefix's network address, its first address (a
// bridge's on real nodes) and its broadcast address.
func newAddressPool(prefix netip.Prefix) (*addressPool, error) {
	prefix = prefix.Masked()
	if !podnet.Prefix.Contains(prefix.Addr()) || prefix.Bits() < podnet.Prefix.Bits() {
		return nil, fmt.Errorf("podCIDR %s is not inside %s and cannot be realised on loopback", prefix, podnet.Prefix)
	}
	if prefix.Bits() > 29 {
		return nil, fmt.Errorf("podCIDR %s is too small for pods: /29 or wider is needed", prefix)
	}
	first := prefix.Addr().Next().Next()
	return &addressPool{
		prefix: prefix,
		first:  first,
		last:   broadcastAddress(prefix).Prev(),
		next:   first,
		used:   map[netip.Addr]bool{},
	}, nil
}

func broadcastAddress(prefix netip.Prefix) netip.Addr {
	octets := prefix.Addr().As4()
	for bit := prefix.Bits(); bit < 32; bit++ {
		octets[bit/8] |= 1 << (7 - bit%8)
	}
	return netip.AddrFrom4(octets)
}

// takeAddress assigns the next free address.
func (a *addressPool) takeAddress() (netip.Addr, error) {
	for candidate, first := a.next, true; first || candidate != a.next; first = false {
		following := candidate.Next()
		if candidate == a.last {
			following = a.first
		}
		if !a.used[candidate] {
			a.used[candidate] = true
			a.next = following
			return candidate, nil
		}
		candidate = following
	}
	return netip.Addr{}, fmt.Errorf("podCIDR %s has no address left: all %d are in use", a.prefix, len(a.used))
}

// reserveAddress marks an address as used, if it is in the prefix.
func (a *addressPool) reserveAddress(address netip.Addr) {
	if a.prefix.Contains(address) {
		a.used[address] = true
	}
}

func (a *addressPool) freeAddress(address netip.Addr) { delete(a.used, address) }
