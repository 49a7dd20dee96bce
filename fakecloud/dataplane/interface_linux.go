package dataplane

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// localRouteTimeout bounds waitForLocalRoute, which as a rule takes less than a
// millisecond.
const localRouteTimeout = 200 * time.Millisecond

// addAddress adds an address to an interface, as a /32 or /128. An address that is there
// already, for example from before a crash, is no error; added is false then.
func addAddress(iface string, address netip.Addr) (added bool, err error) {
	link, err := netlink.LinkByName(iface)
	if err == nil {
		err = netlink.AddrAdd(link, hostAddress(address))
	}
	switch {
	case err == nil:
		waitForLocalRoute(address)
		return true, nil
	case errors.Is(err, syscall.EEXIST):
		return false, nil
	}
	return false, interfaceError("add", iface, address, err)
}

// waitForLocalRoute waits until the kernel routes a new address to this machine itself.
// For IPv4 the kernel does so before it reports that the address is added, for IPv6 soon
// after, and never while the interface is down.
func waitForLocalRoute(address netip.Addr) {
	deadline := time.Now().Add(localRouteTimeout)
	for address.Is6() && time.Now().Before(deadline) {
		routes, err := netlink.RouteGet(address.AsSlice())
		if err == nil && len(routes) > 0 && routes[0].Type == unix.RTN_LOCAL {
			return
		}
		time.Sleep(time.Millisecond)
	}
}

// removeAddress removes an address from an interface. One that is not there is no error.
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

// hostAddress is the address as netlink takes it, with a prefix as long as the address.
func hostAddress(a netip.Addr) *netlink.Addr {
	host := &netlink.Addr{IPNet: &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(a.BitLen(), a.BitLen())}}
	if a.Is6() {
		// No duplicate address detection: nothing can listen on the address while
		// that runs, and this address is ours to give.
		host.Flags = unix.IFA_F_NODAD
	}
	return host
}

// announceAddress tells the neighbours on the network that this machine has an address
// now. Their caches may still hold another machine for it, such as a container that ran
// before. It needs CAP_NET_RAW; without it, they find out within the minute.
func announceAddress(iface string, address netip.Addr) error {
	found, err := netlink.LinkByName(iface)
	if err != nil {
		return err
	}
	link := found.Attrs()
	switch {
	case len(link.HardwareAddr) != 6 || link.Flags&net.FlagLoopback != 0:
		return nil
	case address.Is4():
		return sendGratuitousARP(link, address)
	}
	return sendNeighborAdvertisement(link, address)
}

// sendGratuitousARP sends a gratuitous ARP request.
func sendGratuitousARP(link *netlink.LinkAttrs, address netip.Addr) error {
	arp := []byte{0, 1, 8, 0, 6, 4, 0, 1} // Ethernet, IPv4, the lengths of their addresses, a request
	arp = append(append(arp, link.HardwareAddr...), address.AsSlice()...)
	arp = append(append(arp, make([]byte, 6)...), address.AsSlice()...)
	protocol := binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, unix.ETH_P_ARP)) // in network order
	all := unix.SockaddrLinklayer{
		Protocol: protocol, Ifindex: link.Index, Halen: 6, Addr: [8]byte{255, 255, 255, 255, 255, 255},
	}
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return errRaw(err)
	}
	defer func() { _ = unix.Close(fd) }()
	return unix.Sendto(fd, arp, unix.MSG_DONTWAIT, &all)
}

// errRaw is the error of opening a raw socket, with the capability that it needs.
func errRaw(err error) error { return fmt.Errorf("a raw socket, which needs CAP_NET_RAW: %w", err) }

// sendNeighborAdvertisement sends an unsolicited neighbor advertisement (RFC 4861,
// 7.2.6), which is to IPv6 what gratuitous ARP is to IPv4.
func sendNeighborAdvertisement(link *netlink.LinkAttrs, address netip.Addr) error {
	// Type, code, checksum (the kernel adds it), flag "override".
	message := []byte{136, 0, 0, 0, 0x20, 0, 0, 0}
	message = append(append(message, address.AsSlice()...), 2, 1) // The option "target link-layer address", 8 bytes.
	message = append(message, link.HardwareAddr...)
	all := unix.SockaddrInet6{Addr: netip.IPv6LinkLocalAllNodes().As16(), ZoneId: uint32(link.Index)}
	fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_ICMPV6)
	if err != nil {
		return errRaw(err)
	}
	defer func() { _ = unix.Close(fd) }()
	// Receivers ignore an advertisement with a lower hop limit: a router may have
	// forwarded it.
	if err := unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_MULTICAST_HOPS, 255); err != nil {
		return err
	}
	if err := unix.Bind(fd, &unix.SockaddrInet6{Addr: address.As16()}); err != nil {
		return err
	}
	return unix.Sendto(fd, message, unix.MSG_DONTWAIT, &all)
}

// interfaceError says why an address cannot be added to or removed from an interface, and
// what helps.
func interfaceError(do, iface string, address netip.Addr, err error) error {
	switch {
	case address.Is6() && (errors.Is(err, syscall.EACCES) || errors.Is(err, syscall.EOPNOTSUPP)):
		return fmt.Errorf("cannot %s %s: this machine has no IPv6 on network interface %s; "+
			"allow it with `sysctl -w net.ipv6.conf.%s.disable_ipv6=0`, or create the load balancer with the IP family ipv4 alone", do, address, iface, iface)
	case errors.As(err, new(netlink.LinkNotFoundError)):
		return fmt.Errorf("cannot %s %s: there is no network interface %s; "+
			"start fakecloud with a --load-balancer-interface that `ip link` lists", do, address, iface)
	case errors.Is(err, syscall.EPERM) || errors.Is(err, syscall.EACCES):
		return fmt.Errorf("cannot %s %s on network interface %s: permission denied; "+
			"run fakecloud with CAP_NET_ADMIN, or without --load-balancer-interface and with a --load-balancer-cidr whose addresses this machine has", do, address, iface)
	}
	return fmt.Errorf("cannot %s %s on network interface %s: %w", do, address, iface, err)
}
