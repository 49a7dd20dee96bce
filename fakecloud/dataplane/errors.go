package dataplane

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"syscall"

	"github.com/ccmlab/ccmlab/fakecloud/api"
)

// isTargetFailure tells whether err is the fault of the target or of the network to it,
// rather than of this machine (no free ports) or of the client (a datagram that is too
// large).
func isTargetFailure(err error) bool {
	return isAny(err, os.ErrDeadlineExceeded, syscall.ECONNREFUSED, syscall.ECONNRESET, syscall.EPIPE, syscall.ETIMEDOUT,
		syscall.EHOSTUNREACH, syscall.ENETUNREACH, syscall.EHOSTDOWN, syscall.ENETDOWN)
}

// isShortage tells whether this machine lacks a resource without which no target can be
// reached.
func isShortage(err error) bool {
	return isAny(err, syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM)
}

func isAny(err error, any ...error) bool {
	return slices.ContainsFunc(any, func(e error) bool { return errors.Is(err, e) })
}

// bindError says why a balancer cannot listen at an address, and what helps.
func bindError(where listenAddress, err error) error {
	address := netip.AddrPortFrom(where.address, uint16(where.number))
	allAddresses, ssOption, cidr, example := "0.0.0.0", "", "--load-balancer-cidr", "one in 127.0.0.0/8"
	if where.address.Is6() {
		allAddresses, ssOption, cidr, example = "[::]", "6", "--load-balancer-cidr6", "::1/128"
	}
	switch {
	case errors.Is(err, syscall.EACCES) || errors.Is(err, syscall.EPERM):
		return fmt.Errorf("cannot listen on %s: permission denied, low ports are privileged; "+
			"lower the limit with `sysctl -w net.ipv4.ip_unprivileged_port_start=%d`, run fakecloud with CAP_NET_BIND_SERVICE, or use a port from 1024 on", address, address.Port())
	case errors.Is(err, syscall.EADDRINUSE):
		protocol := "t"
		if where.protocol == api.ProtocolUDP {
			protocol = "u"
		}
		return fmt.Errorf("cannot listen on %s: another server holds port %d there, or on all addresses (%s); "+
			"find it with `ss -%sln%sp 'sport = :%d'` and stop it, or use another port", address, address.Port(),
			allAddresses, ssOption, protocol, address.Port())
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return fmt.Errorf("cannot listen on %s: this machine does not have that address; "+
			"start fakecloud with a %s whose addresses it has, such as %s, "+
			"or let it add them with --load-balancer-interface", address, cidr, example)
	case errors.Is(err, syscall.EAFNOSUPPORT):
		return fmt.Errorf("cannot listen on %s: this machine has no IPv6; "+
			"create the load balancer with the IP family ipv4 alone, or run fakecloud where the kernel has IPv6", address)
	}
	return fmt.Errorf("cannot listen on %s: %w", address, err)
}
