// This file answers: which address does a new resource get?

package cloud

import (
	"fmt"
	"net/netip"
)

// checkPools refuses prefixes that addresses cannot be taken from.
func checkPools(instances, balancers netip.Prefix) error {
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
	return nil
}

// lowestFree is the first host of the prefix that is not used. The prefix's
// first and last addresses are not hosts.
func lowestFree(pool netip.Prefix, used []string) (netip.Addr, error) {
	taken := make(map[string]bool, len(used))
	for _, u := range used {
		taken[u] = true
	}
	for a := pool.Addr().Next(); pool.Contains(a.Next()); a = a.Next() {
		if !taken[a.String()] {
			return a, nil
		}
	}
	return netip.Addr{}, refuse(AddressPoolExhausted, "all addresses of %s are in use: terminate or delete what is not needed, or start the cloud with a larger CIDR", pool)
}
