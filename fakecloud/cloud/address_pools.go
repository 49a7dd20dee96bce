package cloud

import (
	"context"
	"database/sql"
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"net/netip"
	"slices"
	"sync"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/store"
)

// checkPools refuses prefixes that cannot be pools of addresses.
func checkPools(instances, balancers, balancers6 netip.Prefix) error {
	for name, p := range map[string]netip.Prefix{"instance": instances, "load balancer": balancers} {
		if !p.IsValid() || !p.Addr().Is4() || p.Bits() > 30 {
			return fmt.Errorf("%s CIDR %q: want an IPv4 prefix of at most /30, such as 127.30.16.0/20", name, p)
		}
		if p != p.Masked() {
			return fmt.Errorf("%s CIDR %q has host bits set: did you mean %s?", name, p, p.Masked())
		}
	}
	if instances.Overlaps(balancers) {
		return fmt.Errorf("instance CIDR %s and load balancer CIDR %s overlap", instances, balancers)
	}
	return checkPool6(balancers6)
}

// pageSize is the number of addresses in an addressPage: a power of 2.
const pageSize = 4096

// addressPage has a bit for each of its addresses: it is set if the address is in use.
type addressPage struct {
	taken int
	bits  [pageSize / 64]uint64
}

// usedAddresses records which addresses of a prefix are in use by the cloud's resources.
// It is kept in memory, where the lowest free address is found at once. The store's unique
// indexes have the last word. It changes only within transactions, of which there is one
// at a time, and a transaction that fails takes its changes back.
type usedAddresses struct {
	of    netip.Prefix // its addresses differ in the last 32 bits only
	mu    sync.Mutex
	pages map[uint32]*addressPage
}

var everyIPv4 = netip.MustParsePrefix("0.0.0.0/0")

func newUsedAddresses(of netip.Prefix) usedAddresses {
	return usedAddresses{of: of, pages: map[uint32]*addressPage{}}
}

// load replaces the record by what is stored.
func (s *usedAddresses) load(ctx context.Context, tx *store.Tx) error {
	used, err := tx.AddressesInUse(ctx)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pages = map[uint32]*addressPage{}
	for _, u := range used {
		a, err := netip.ParseAddr(u)
		if err != nil {
			return fmt.Errorf("stored address: %w", err)
		}
		if s.of.Contains(a) {
			s.setBit(addressNumber(a), true)
		}
	}
	return nil
}

// takeLowestFree marks the first free host address of the prefix as used and gives it.
func (s *usedAddresses) takeLowestFree(tx *store.Tx, pool netip.Prefix) (netip.Addr, error) {
	n, ok := s.lowestFree(hostRange(pool))
	if !ok {
		return netip.Addr{}, refuse(
			AddressPoolExhausted,
			"all addresses of %s are in use: terminate or delete unused ones, or choose a larger CIDR", pool,
		)
	}
	a := withAddressNumber(pool.Addr(), n)
	s.markUsed(tx, a)
	return a, nil
}

// hostRange gives the first and the last address of a prefix that a resource can have, as
// numbers. Of an IPv4 prefix, the network and the broadcast address are left out. Of an
// IPv6 prefix, the first is left out, which is for routers, unless it has only one or two.
func hostRange(p netip.Prefix) (first, last uint32) {
	first, last = addressRange(p)
	switch {
	case p.Addr().Is4():
		return first + 1, last - 1
	case p.Bits() < 127:
		return first + 1, last
	}
	return first, last
}

// isHostOf tells whether an address is of a prefix, and in its hostRange.
func isHostOf(p netip.Prefix, a netip.Addr) bool {
	first, last := hostRange(p)
	n := addressNumber(a)
	return p.Contains(a) && first <= n && n <= last
}

// lowestFree gives the lowest number in the range whose address is free.
func (s *usedAddresses) lowestFree(first, last uint32) (uint32, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for n := uint64(first); n <= uint64(last); {
		p := s.pages[uint32(n/pageSize)]
		if p == nil {
			return uint32(n), true
		}
		if p.taken == pageSize {
			n = (n/pageSize + 1) * pageSize
			continue
		}
		// The bits before n are shifted out. The zeros shifted in count as used.
		if free := ^p.bits[n%pageSize/64] >> (n % 64); free != 0 {
			n += uint64(bits.TrailingZeros64(free))
			return uint32(n), n <= uint64(last)
		}
		n = (n/64 + 1) * 64
	}
	return 0, false
}

// markUsed marks a free address as used.
func (s *usedAddresses) markUsed(tx *store.Tx, a netip.Addr) { s.setUsed(tx, a, true) }

// markFree marks an address as free. An invalid address is ignored.
func (s *usedAddresses) markFree(tx *store.Tx, a netip.Addr) { s.setUsed(tx, a, false) }

func (s *usedAddresses) setUsed(tx *store.Tx, a netip.Addr, taken bool) {
	if !s.of.Contains(a) {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.setBit(addressNumber(a), taken) {
		return
	}
	tx.OnRollback(func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.setBit(addressNumber(a), !taken)
	})
}

// setBit sets or clears an address's bit and tells whether that changed it.
func (s *usedAddresses) setBit(n uint32, taken bool) bool {
	p := s.pages[n/pageSize]
	if p == nil {
		p = &addressPage{}
		s.pages[n/pageSize] = p
	}
	word, bit := &p.bits[n%pageSize/64], uint64(1)<<(n%64)
	if *word&bit != 0 == taken {
		return false
	}
	*word ^= bit
	if p.taken--; taken {
		p.taken += 2
	}
	return true
}

// addressRange gives the first and the last address of a prefix, as numbers. An IPv6
// prefix with more than 2^32 addresses is cut off there.
func addressRange(p netip.Prefix) (first, last uint32) {
	first = addressNumber(p.Addr())
	return first, first | uint32(1<<min(32, p.Addr().BitLen()-p.Bits())-1)
}

// addressNumber gives the last 32 bits of an address, which is all of an IPv4 one.
func addressNumber(a netip.Addr) uint32 {
	b := a.As16()
	return binary.BigEndian.Uint32(b[12:])
}

// withAddressNumber replaces the last 32 bits of an address.
func withAddressNumber(a netip.Addr, n uint32) netip.Addr {
	b := a.As16()
	binary.BigEndian.PutUint32(b[12:], n)
	return netip.AddrFrom16(b).Unmap() // As16 mapped it, if it is an IPv4 one.
}

// maxSecondary is how many internal addresses an instance can have beside its first.
const maxSecondary = 15

// Internal gives the internal addresses, the first one first. A terminated instance has none.
func (in *Instance) Internal() []netip.Addr {
	if !in.Address.IsValid() {
		return nil
	}
	return append([]netip.Addr{in.Address}, in.Secondary...)
}

// instanceAddresses takes the internal addresses asked for, if they are free. The first is the
// lowest free one of the network unless spec names it.
func (c *Cloud) instanceAddresses(
	ctx context.Context,
	tx *store.Tx,
	p Project,
	n Network,
	spec api.InstanceCreate,
) (first netip.Addr, secondary []netip.Addr, err error) {
	var all []netip.Addr
	for i, want := range append([]string{spec.Address}, spec.SecondaryAddresses...) {
		field := "address"
		switch {
		case i > 0:
			field = fmt.Sprintf("secondaryAddresses.%d", i-1)
		case want == "":
			continue
		}
		a, err := c.parseInstanceAddress(n, field, want)
		if err != nil {
			return first, nil, err
		}
		if slices.Contains(all, a) {
			return first, nil, refuse(InvalidRequest, "%s is given twice: give it once", a).
				withField(field, "is given twice")
		}
		if err := c.takeWanted(ctx, tx, p, field, a); err != nil {
			return first, nil, err
		}
		all = append(all, a)
	}
	if spec.Address != "" {
		return all[0], all[1:], nil
	}
	first, err = c.usedIPv4.takeLowestFree(tx, n.prefix())
	return first, all, err
}

// parseInstanceAddress reads an address that an instance of the network can have. An IPv4 one
// outside of the network leads to a machine that is already there, so that it must be in a
// target range. In a network that is in none, an instance has an address, and can be no target.
// No network has IPv6 addresses: those can be any that other machines could have.
func (c *Cloud) parseInstanceAddress(n Network, field, want string) (netip.Addr, error) {
	a, err := netip.ParseAddr(want)
	switch {
	case err == nil && a.Is6() && field != "address":
		return a, c.checkInstanceIPv6(field, want, a)
	case err != nil || !isUnicast(a):
		return a, refuse(
			InvalidRequest, "%q cannot be an instance's address: want a unicast IPv4 address, such as 172.18.0.3", want,
		).withField(field, "is not a unicast IPv4 address")
	case !n.prefix().Contains(a):
		return a, c.checkTargetAddress(a, field)
	}
	return a, nil
}

func (c *Cloud) checkInstanceIPv6(field, want string, a netip.Addr) error {
	switch {
	case a.Is4In6() || a.Zone() != "" || !a.IsGlobalUnicast():
		return refuse(
			InvalidRequest,
			"%q cannot be an instance's address: want a global or unique local IPv6 address, such as fd00:16::1", want,
		).withField(field, "is not a global or unique local address")
	case a.String() != want: // Whoever compares addresses as texts finds the one that he asked for.
		return refuse(InvalidRequest, "%q is not the canonical form of the IPv6 address: did you mean %s?", want, a).
			withField(field, "must be written as %s", a)
	case c.cfg.LoadBalancerCIDR6.IsValid() && c.cfg.LoadBalancerCIDR6.Contains(a):
		return refuse(
			InvalidRequest, "%s is in %s, the load balancers' range: choose another", a, c.cfg.LoadBalancerCIDR6,
		).withField(field, "is in the load balancers' range")
	}
	return nil
}

// markAddress records whether an address of either family is used.
func (c *Cloud) markAddress(tx *store.Tx, a netip.Addr, used bool) {
	c.usedIPv4.setUsed(tx, a, used)
	c.usedIPv6.setUsed(tx, a, used)
}

// takeWanted takes the address that a request's field names, if no resource has it.
func (c *Cloud) takeWanted(ctx context.Context, tx *store.Tx, p Project, field string, a netip.Addr) error {
	has, err := tx.AddressHolder(ctx, a.String())
	switch {
	case errors.Is(err, sql.ErrNoRows):
		c.markAddress(tx, a, true)
		return nil
	case err != nil:
		return err
	case has.ProjectID != p.ID:
		return refuse(AddressInUse, "%s is the address of something in another project: choose another", a).
			withField(field, "is in use")
	}
	return refuse(
		AddressInUse, "%s is the address of %s %q (%s): choose another, or wait until it is released", a,
		kindInWords(Resource(has.Kind)), has.Name, has.ID,
	).withField(field, "is in use")
}

// isUnicast leaves out 0.0.0.0/8 ("this network") and everything from 224.0.0.0
// (multicast) on.
func isUnicast(a netip.Addr) bool { return a.Is4() && a.As4()[0] >= 1 && a.As4()[0] < 224 }

// parseCIDR reads an IPv4 prefix of a request.
func parseCIDR(field, s string) (netip.Prefix, error) {
	cidr, err := netip.ParsePrefix(s)
	if err != nil || !cidr.Addr().Is4() {
		return cidr, refuse(InvalidRequest, "%q is not an IPv4 CIDR: want one such as 10.244.1.0/24", s).
			withField(field, "is not an IPv4 CIDR")
	}
	return withoutHostBits(field, cidr)
}

func withoutHostBits(field string, cidr netip.Prefix) (netip.Prefix, error) {
	if cidr != cidr.Masked() {
		return cidr, refuse(InvalidRequest, "%s has host bits set: did you mean %s?", cidr, cidr.Masked()).
			withField(field, "has host bits set: did you mean %s?", cidr.Masked())
	}
	return cidr, nil
}
