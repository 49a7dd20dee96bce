package cloud

import (
	"context"
	"net/netip"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/store"
)

// withNetwork attaches a balancer to a network, gives it another address there, or detaches it
// if network is empty. What is nil stays as it is.
func (c *Cloud) withNetwork(
	ctx context.Context,
	tx *store.Tx,
	p Project,
	lb LoadBalancer,
	network, address *string,
) (LoadBalancer, error) {
	want, wantAddress := lb.NetworkID, ""
	replaceIfGiven(&want, network)
	replaceIfGiven(&wantAddress, address)
	switch {
	case want == "" && wantAddress != "":
		return lb, refuse(
			InvalidRequest, "private address %s without a network: give networkId, too", wantAddress,
		).withField("privateAddress", "is for a balancer that is attached to a network")
	case want == "":
		c.usedIPv4.markFree(tx, addressOrZero(lb.PrivateAddress))
		lb.NetworkID, lb.PrivateAddress = "", ""
		return lb, nil
	case want == lb.NetworkID && (wantAddress == "" || wantAddress == lb.PrivateAddress):
		return lb, nil
	}
	n, err := networkToUse(ctx, tx, p, want)
	if err != nil {
		return lb, err
	}
	private, err := c.privateAddress(ctx, tx, p, n, wantAddress)
	if err != nil {
		return lb, err
	}
	c.usedIPv4.markFree(tx, addressOrZero(lb.PrivateAddress))
	lb.NetworkID, lb.PrivateAddress = n.ID, private.String()
	return lb, nil
}

// privateAddress takes the address asked for, if it is of the network and free, or the lowest
// free one of the network.
func (c *Cloud) privateAddress(
	ctx context.Context,
	tx *store.Tx,
	p Project,
	n Network,
	want string,
) (netip.Addr, error) {
	if want == "" {
		return c.usedIPv4.takeLowestFree(tx, n.prefix())
	}
	a, err := netip.ParseAddr(want)
	if err != nil || !isHostOf(n.prefix(), a) {
		return a, refuse(
			InvalidRequest, "%q is not an address for a machine of network %q (%s): choose one of %s that is neither its "+
				"first nor its last", want, n.Name, n.ID, n.Cidr,
		).withField("privateAddress", "is not in %s", n.Cidr)
	}
	return a, c.takeWanted(ctx, tx, p, "privateAddress", a)
}

// servingAddresses are those on which the balancer's listeners are.
func (lb *LoadBalancer) servingAddresses() []netip.Addr {
	all := lb.AttachedAddresses
	if lb.PrivateAddress != "" {
		all = append([]string{lb.PrivateAddress}, all...)
	}
	if lb.Scheme != api.SchemeInternal || lb.PrivateAddress == "" {
		all = append([]string{lb.Address, lb.IPv6Address}, all...)
	}
	var out []netip.Addr
	for _, a := range all {
		if a := addressOrZero(a); a.IsValid() {
			out = append(out, a)
		}
	}
	return out
}
