// This file answers: why can a port not be bound, and what helps?

package dataplane

import (
	"errors"
	"fmt"
	"net/netip"
	"syscall"
)

func bindError(at netip.AddrPort, err error) error {
	switch {
	case errors.Is(err, syscall.EACCES) || errors.Is(err, syscall.EPERM):
		return fmt.Errorf("cannot listen on %s: permission denied, low ports are privileged; "+
			"lower the limit with `sysctl -w net.ipv4.ip_unprivileged_port_start=%d`, run fakecloud with CAP_NET_BIND_SERVICE, or use a port from 1024 on", at, at.Port())
	case errors.Is(err, syscall.EADDRINUSE):
		return fmt.Errorf("cannot listen on %s: another server holds port %d there, or on all addresses (0.0.0.0); "+
			"find it with `ss -ltnp 'sport = :%d'` and stop it, or use another port", at, at.Port(), at.Port())
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return fmt.Errorf("cannot listen on %s: this machine does not have that address; "+
			"start fakecloud with a --load-balancer-cidr whose addresses it has, such as one in 127.0.0.0/8", at)
	}
	return fmt.Errorf("cannot listen on %s: %w", at, err)
}
