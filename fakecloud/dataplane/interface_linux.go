// This file answers: how does this machine come to have a balancer's address?

package dataplane

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"syscall"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// addAddress gives an interface an address, as a network of its own. One that
// is there already, from before a crash say, is fine, and no news.
func addAddress(iface string, address netip.Addr) (news bool, err error) {
	link, err := netlink.LinkByName(iface)
	if err == nil {
		err = netlink.AddrAdd(link, hostAddress(address))
	}
	switch {
	case err == nil:
		return true, nil
	case errors.Is(err, syscall.EEXIST):
		return false, nil
	}
	return false, interfaceError("add", iface, address, err)
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

// announce tells the neighbours who has an address now (a gratuitous ARP):
// they may remember another, such as a container that ran before. It needs
// CAP_NET_RAW; without it, they find out within the minute.
func announce(iface string, address netip.Addr) error {
	found, err := netlink.LinkByName(iface)
	if err != nil {
		return err
	}
	link := found.Attrs()
	if !address.Is4() || len(link.HardwareAddr) != 6 || link.Flags&net.FlagLoopback != 0 {
		return nil
	}
	arp := []byte{0, 1, 8, 0, 6, 4, 0, 1} // Ethernet, IPv4, the lengths of their addresses, a request
	arp = append(append(arp, link.HardwareAddr...), address.AsSlice()...)
	arp = append(append(arp, make([]byte, 6)...), address.AsSlice()...)
	protocol := binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, unix.ETH_P_ARP)) // in network order
	all := unix.SockaddrLinklayer{Protocol: protocol, Ifindex: link.Index, Halen: 6, Addr: [8]byte{255, 255, 255, 255, 255, 255}}
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("a raw socket, which needs CAP_NET_RAW: %w", err)
	}
	defer func() { _ = unix.Close(fd) }()
	return unix.Sendto(fd, arp, unix.MSG_DONTWAIT, &all)
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
