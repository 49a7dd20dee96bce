// This file answers: which address does a new resource get?

package cloud

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/netip"

	"github.com/ccmlab/ccmlab/fakecloud/store"
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

// lowestUnused is the first address of the pool that nothing in the cloud has.
func lowestUnused(ctx context.Context, tx *store.Tx, pool netip.Prefix) (netip.Addr, error) {
	used, err := tx.AddressesInUse(ctx)
	if err != nil {
		return netip.Addr{}, err
	}
	return lowestFree(pool, used)
}

// instanceAddress is the address asked for, if it is free, or one of the pool.
func (c *Cloud) instanceAddress(ctx context.Context, tx *store.Tx, p Project, want string) (netip.Addr, error) {
	if want == "" {
		return lowestUnused(ctx, tx, c.cfg.InstanceCIDR)
	}
	a, err := netip.ParseAddr(want)
	if err != nil || !unicast(a) {
		return a, refuse(InvalidRequest, "%q cannot be an instance's address: want a unicast IPv4 address, such as 172.18.0.3", want).
			at("address", "is no unicast IPv4 address")
	}
	return a, checkUnused(ctx, tx, p, "address", a)
}

// checkUnused makes sure that nothing has the address that a field asks for.
func checkUnused(ctx context.Context, tx *store.Tx, p Project, field string, a netip.Addr) error {
	has, err := tx.AddressHolder(ctx, a.String())
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return nil
	case err != nil:
		return err
	case has.ProjectID != p.ID:
		return refuse(AddressInUse, "%s is the address of something in another project: choose another", a).at(field, "is in use")
	}
	return refuse(AddressInUse, "%s is the address of %s %q (%s): choose another, or wait until that one has given it up", a, has.Kind, has.Name, has.ID).
		at(field, "is in use")
}

// unicast leaves out "this network" below 1.0.0.0, and what begins with
// multicast at 224.0.0.0.
func unicast(a netip.Addr) bool { return a.Is4() && a.As4()[0] >= 1 && a.As4()[0] < 224 }

// parseCIDR reads an IPv4 prefix of a request.
func parseCIDR(field, s string) (netip.Prefix, error) {
	cidr, err := netip.ParsePrefix(s)
	switch {
	case err != nil || !cidr.Addr().Is4():
		return cidr, refuse(InvalidRequest, "%q is no IPv4 CIDR: want one such as 10.244.1.0/24", s).at(field, "is no IPv4 CIDR")
	case cidr != cidr.Masked():
		return cidr, refuse(InvalidRequest, "%s has host bits set: did you mean %s?", s, cidr.Masked()).at(field, "has host bits set: did you mean %s?", cidr.Masked())
	}
	return cidr, nil
}
