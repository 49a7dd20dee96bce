package dataplane

import (
	"net/netip"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/ccmlab/ccmlab/fakecloud/api"
)

func TestBindErrorByIPFamily(t *testing.T) {
	four, six := netip.MustParseAddr("127.30.64.1"), netip.IPv6Loopback()
	for _, c := range []struct {
		address netip.Addr
		err     syscall.Errno
		want    []string
	}{
		{four, syscall.EADDRINUSE, []string{"127.30.64.1:53", "(0.0.0.0)", "`ss -lnup 'sport = :53'`"}},
		{six, syscall.EADDRINUSE, []string{"[::1]:53", "([::])", "`ss -6lnup 'sport = :53'`"}},
		{
			four, syscall.EADDRNOTAVAIL,
			[]string{"does not have that address", "a --load-balancer-cidr whose", "127.0.0.0/8"},
		},
		{
			six, syscall.EADDRNOTAVAIL,
			[]string{"does not have that address", "a --load-balancer-cidr6 whose", "::1/128"},
		},
		{six, syscall.EAFNOSUPPORT, []string{"this machine has no IPv6", "ipv4 alone"}},
		{six, syscall.EACCES, []string{"permission denied", "ip_unprivileged_port_start=53"}},
	} {
		said := bindError(listenAddress{port{api.ProtocolUDP, 53}, c.address}, c.err).Error()
		for _, want := range c.want {
			assert.Contains(t, said, want)
		}
	}
}
