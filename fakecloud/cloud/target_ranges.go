package cloud

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// guardedRanges belong to the machine that the cloud runs on, or to the cloud that this machine is in. A target range
// allows what is in one of them only if it is no wider: 127.0.0.1/32 does, and 0.0.0.0/0 does not.
var guardedRanges = []netip.Prefix{
	netip.MustParsePrefix("127.0.0.0/16"),   // localhost, local resolvers, the machine's own name
	netip.MustParsePrefix("169.254.0.0/16"), // link-local, with metadata services
}

// maxRangesTold is how many ranges a refusal names.
const maxRangesTold = 8

// checkTargetRanges refuses what is no IPv4 prefix.
func checkTargetRanges(ranges []netip.Prefix) error {
	for _, r := range ranges {
		switch {
		case !r.IsValid() || !r.Addr().Is4():
			return fmt.Errorf("target range %q: want an IPv4 CIDR, such as 172.18.0.0/24", r)
		case r != r.Masked():
			return fmt.Errorf("target range %q has host bits set: did you mean %s?", r, r.Masked())
		}
	}
	return nil
}

// targetRanges are where balancers and attached addresses may send to. Networks are not among them, since any editor
// can make one that has the addresses of somebody else's machines.
func (c *Cloud) targetRanges() []netip.Prefix {
	return append([]netip.Prefix{c.cfg.InstanceCIDR}, c.cfg.TargetRanges...)
}

// MayBeTarget tells whether balancers may send to an address, health checks included.
func (c *Cloud) MayBeTarget(a netip.Addr) bool {
	return slices.ContainsFunc(c.targetRanges(), func(r netip.Prefix) bool {
		return r.Contains(a) && !slices.ContainsFunc(guardedRanges, func(g netip.Prefix) bool {
			return g.Contains(a) && r.Bits() < g.Bits()
		})
	})
}

// checkTargetAddress refuses an address that balancers may not send to.
func (c *Cloud) checkTargetAddress(a netip.Addr, field string) error {
	if c.MayBeTarget(a) {
		return nil
	}
	var allowed []string
	ranges := c.targetRanges()
	for _, r := range ranges[:min(len(ranges), maxRangesTold)] {
		allowed = append(allowed, r.String())
	}
	if more := len(ranges) - len(allowed); more > 0 {
		allowed = append(allowed, fmt.Sprintf("and %d more", more))
	}
	return refuse(
		InvalidRequest,
		"%s is not in a range that this cloud's balancers may send to, which are %s: "+
			"`fakecloud serve --target-range %s/32` would allow it",
		a, strings.Join(allowed, ", "), a,
	).withField(field, "is in no target range")
}
