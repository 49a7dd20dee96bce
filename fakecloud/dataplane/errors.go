// This file answers: why can a balancer not listen where it is to, and what
// helps? And whose fault is it that a target is not reached?

package dataplane

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"syscall"

	"github.com/ccmlab/ccmlab/fakecloud/cloud"
)

// blames tells whether an error is a target's, or of the way there, and not for
// want of something here, such as ports, or of a datagram that is too large.
func blames(err error) bool {
	return is(err, os.ErrDeadlineExceeded, syscall.ECONNREFUSED, syscall.ECONNRESET, syscall.EPIPE, syscall.ETIMEDOUT,
		syscall.EHOSTUNREACH, syscall.ENETUNREACH, syscall.EHOSTDOWN, syscall.ENETDOWN)
}

// isShortage tells whether there is too little of something for any target to be
// reached.
func isShortage(err error) bool {
	return is(err, syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM)
}

func is(err error, any ...error) bool {
	return slices.ContainsFunc(any, func(e error) bool { return errors.Is(err, e) })
}

func bindError(where place, err error) error {
	at := netip.AddrPortFrom(where.address, uint16(where.number))
	everywhere, option, cidr, such := "0.0.0.0", "", "--load-balancer-cidr", "one in 127.0.0.0/8"
	if where.address.Is6() {
		everywhere, option, cidr, such = "[::]", "6", "--load-balancer-cidr6", "::1/128"
	}
	switch {
	case errors.Is(err, syscall.EACCES) || errors.Is(err, syscall.EPERM):
		return fmt.Errorf("cannot listen on %s: permission denied, low ports are privileged; "+
			"lower the limit with `sysctl -w net.ipv4.ip_unprivileged_port_start=%d`, run fakecloud with CAP_NET_BIND_SERVICE, or use a port from 1024 on", at, at.Port())
	case errors.Is(err, syscall.EADDRINUSE):
		protocol := "t"
		if where.protocol == cloud.UDP {
			protocol = "u"
		}
		return fmt.Errorf("cannot listen on %s: another server holds port %d there, or on all addresses (%s); "+
			"find it with `ss -%sln%sp 'sport = :%d'` and stop it, or use another port", at, at.Port(), everywhere, option, protocol, at.Port())
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return fmt.Errorf("cannot listen on %s: this machine does not have that address; "+
			"start fakecloud with a %s whose addresses it has, such as %s, "+
			"or let it add them with --load-balancer-interface", at, cidr, such)
	case errors.Is(err, syscall.EAFNOSUPPORT):
		return fmt.Errorf("cannot listen on %s: this machine has no IPv6; "+
			"create the load balancer with the IP family ipv4 alone, or run fakecloud where the kernel has IPv6", at)
	}
	return fmt.Errorf("cannot listen on %s: %w", at, err)
}
