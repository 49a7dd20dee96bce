// This file answers: how does this machine come to have a balancer's address?

package dataplane

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"syscall"

	"github.com/vishvananda/netlink"
)

// addAddress gives an interface an address, as a network of its own. One that
// is there already, from before a crash say, is fine.
func addAddress(iface string, address netip.Addr) error {
	link, err := netlink.LinkByName(iface)
	if err == nil {
		err = netlink.AddrAdd(link, hostAddress(address))
	}
	if err == nil || errors.Is(err, syscall.EEXIST) {
		return nil
	}
	return interfaceError("add", iface, address, err)
}

// removeAddress takes it off again. One that is gone already is fine.
func removeAddress(iface string, address netip.Addr) error {
	link, err := netlink.LinkByName(iface)
	if err == nil {
		err = netlink.AddrDel(link, hostAddress(address))
	}
	if err == nil || errors.Is(err, syscall.EADDRNOTAVAIL) {
		return nil
	}
	return interfaceError("remove", iface, address, err)
}

func hostAddress(a netip.Addr) *netlink.Addr {
	return &netlink.Addr{IPNet: &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(a.BitLen(), a.BitLen())}}
}

func interfaceError(do, iface string, address netip.Addr, err error) error {
	switch {
	case errors.As(err, new(netlink.LinkNotFoundError)):
		return fmt.Errorf("cannot %s %s: there is no network interface %s; "+
			"start fakecloud with a --load-balancer-interface that `ip link` lists", do, address, iface)
	case errors.Is(err, syscall.EPERM) || errors.Is(err, syscall.EACCES):
		return fmt.Errorf("cannot %s %s on network interface %s: permission denied; "+
			"run fakecloud with CAP_NET_ADMIN, or without --load-balancer-interface and with a --load-balancer-cidr whose addresses this machine has", do, address, iface)
	}
	return fmt.Errorf("cannot %s %s on network interface %s: %w", do, address, iface, err)
}
