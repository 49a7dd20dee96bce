package cloud

import (
	"context"
	"net/netip"

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
	want, wantAddress := lb.Network, ""
	replaceIfGiven(&want, network)
	replaceIfGiven(&wantAddress, address)
	switch {
	case want == "" && wantAddress != "":
		return lb, refuse(
			InvalidRequest, "private address %s without a network: give networkId, too", wantAddress,
		).withField("privateAddress", "is for a balancer that is attached to a network")
	case want == "":
		c.usedIPv4.markFree(tx, lb.PrivateAddress)
		lb.Network, lb.PrivateAddress = "", netip.Addr{}
		return lb, nil
	case want == lb.Network && (wantAddress == "" || wantAddress == lb.PrivateAddress.String()):
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
	c.usedIPv4.markFree(tx, lb.PrivateAddress)
	lb.Network, lb.PrivateAddress = n.ID, private
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
	var all []netip.Addr
	if lb.Scheme != Internal || !lb.PrivateAddress.IsValid() {
		all = append(all, lb.Address)
		if lb.Address6.IsValid() {
			all = append(all, lb.Address6)
		}
	}
	if lb.PrivateAddress.IsValid() {
		all = append(all, lb.PrivateAddress)
	}
	return append(all, lb.Attached...)
}
