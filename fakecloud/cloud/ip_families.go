package cloud

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/store"
)

// checkPool6 refuses a prefix that cannot be a pool of IPv6 addresses. An invalid prefix
// is fine: there is no pool then.
func checkPool6(p netip.Prefix) error {
	if !p.IsValid() {
		return nil
	}
	a := p.Addr()
	switch {
	case !a.Is6() || a.Is4In6() || a.IsMulticast() || p == netip.PrefixFrom(netip.IPv6Unspecified(), 128):
		return fmt.Errorf(
			"IPv6 load balancer CIDR %q: want a prefix of IPv6 unicast addresses, such as ::1/128 or fd00:30::/64", p,
		)
	case a.IsLinkLocalUnicast():
		return fmt.Errorf(
			"IPv6 load balancer CIDR %q: link-local addresses need a zone: choose others, such as ::1/128 or fd00:30::/64",
			p,
		)
	case p != p.Masked():
		return fmt.Errorf("IPv6 load balancer CIDR %q has host bits set: did you mean %s?", p, p.Masked())
	}
	return nil
}

// trackedPrefix is the part of an IPv6 pool that usedAddresses can record: at most its
// first 2^32 addresses.
func trackedPrefix(pool netip.Prefix) netip.Prefix {
	return netip.PrefixFrom(pool.Addr(), max(pool.Bits(), 96))
}

// IPFamilies gives the families of which a new balancer can have an address. A machine may have no IPv6 address but
// ::1, and so one balancer with it.
func (c *Cloud) IPFamilies() []api.IPFamily {
	if pool := c.cfg.LoadBalancerCIDR6; pool.IsValid() {
		if _, free := c.usedIPv6.lowestFree(hostRange(pool)); free {
			return []api.IPFamily{api.IPv4, api.IPv6}
		}
	}
	return []api.IPFamily{api.IPv4}
}

// checkFamilies refuses combinations of families that no balancer can have. None at all
// means the default.
func (c *Cloud) checkFamilies(families []api.IPFamily) error {
	for i, f := range families {
		if f != api.IPv4 && f != api.IPv6 {
			return refuse(InvalidRequest, "no IP family %q: choose ipv4, or ipv4 and ipv6", f).
				withField(fmt.Sprintf("ipFamilies.%d", i), "is unknown")
		}
		if slices.Contains(families[:i], f) {
			return refuse(InvalidRequest, "IP family %s is given twice: give it once", f).
				withField(fmt.Sprintf("ipFamilies.%d", i), "is given twice")
		}
	}
	if len(families) > 0 && !slices.Contains(families, api.IPv4) {
		return refuse(InvalidRequest, "every load balancer has an IPv4 address: want ipv4, or ipv4 and ipv6").
			withField("ipFamilies", "must hold ipv4")
	}
	if slices.Contains(families, api.IPv6) && !c.cfg.LoadBalancerCIDR6.IsValid() {
		return refuse(
			InvalidRequest,
			"this cloud has no IPv6 addresses to give: leave out ipv6, or start it with --load-balancer-cidr6, such as ::1/128",
		).withField("ipFamilies", "cannot hold ipv6: the cloud has no --load-balancer-cidr6")
	}
	return nil
}

// balancerAddress6 takes the lowest free IPv6 address, if the new balancer is to have one.
// Otherwise the result is empty.
func (c *Cloud) balancerAddress6(tx *store.Tx, spec api.LoadBalancerCreate) (string, error) {
	if !slices.Contains(spec.IPFamilies, api.IPv6) {
		return "", nil
	}
	a, err := c.usedIPv6.takeLowestFree(tx, c.cfg.LoadBalancerCIDR6)
	return a.String(), err
}

// loadUsedAddresses reads which addresses are in use from the store.
func (c *Cloud) loadUsedAddresses(ctx context.Context, tx *store.Tx) error {
	if err := c.usedIPv4.load(ctx, tx); err != nil {
		return err
	}
	return c.usedIPv6.load(ctx, tx)
}

// checkSameFamilies refuses an update that names other IP families, or another IPv6
// address, than the balancer has.
func checkSameFamilies(lb LoadBalancer, u api.LoadBalancerUpdate) error {
	has := "no IPv6 address"
	if lb.IPv6Address != "" {
		has = "the IPv6 address " + lb.IPv6Address
	}
	final := func(field string) error {
		return refuse(
			InvalidRequest, "load balancer %q keeps %s for its lifetime: leave %s out, or create another balancer", lb.Name, has,
			field,
		).withField(field, "is final")
	}
	var errs []error
	if u.IPFamilies != nil && !sameSet(*u.IPFamilies, lb.IPFamilies) {
		errs = append(errs, final("ipFamilies"))
	}
	if u.IPv6Address != nil {
		if a, err := netip.ParseAddr(*u.IPv6Address); err != nil || a.String() != lb.IPv6Address {
			errs = append(errs, final("ipv6Address"))
		}
	}
	return joinRefusals(errs...)
}

// parseRange reads a source range of either family.
func parseRange(field, s string) (netip.Prefix, error) {
	cidr, err := netip.ParsePrefix(s)
	if err != nil || cidr.Addr().Is4In6() {
		return cidr, refuse(InvalidRequest, "%q is not a CIDR: want one such as 10.0.0.0/8 or fd00::/8", s).
			withField(field, "is not an IPv4 or IPv6 CIDR")
	}
	return withoutHostBits(field, cidr)
}
