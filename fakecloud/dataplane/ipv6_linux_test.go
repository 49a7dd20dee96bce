package dataplane_test

import (
	"bytes"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/ccmlab/ccmlab/fakecloud/dataplane"
	"github.com/ccmlab/ccmlab/fakecloud/internal/must"
)

// setIPv6 turns IPv6 on or off for an interface of the test's namespace.
func setIPv6(t *testing.T, iface string, on bool) {
	t.Helper()
	value := "1"
	if on {
		value = "0"
	}
	err := os.WriteFile("/proc/sys/net/ipv6/conf/"+iface+"/disable_ipv6", []byte(value), 0)
	if err != nil {
		t.Skipf("this machine has no IPv6, or leaves it to others whether %s has: %v", iface, err)
	}
}

// addedIPv6Addresses lists the IPv6 addresses that were added to an interface.
func addedIPv6Addresses(t *testing.T, iface string) []string {
	t.Helper()
	link := must.Do(netlink.LinkByName(iface))(t)
	all := must.Do(netlink.AddrList(link, netlink.FAMILY_V6))(t)
	var out []string
	for _, a := range all {
		if !a.IP.IsLoopback() && !a.IP.IsLinkLocalUnicast() {
			assert.Zero(t, a.Flags&unix.IFA_F_TENTATIVE, "nothing could listen on %s yet", a.IPNet)
			out = append(out, a.IPNet.String())
		}
	}
	return out
}

func TestInterfaceIPv6AddressesFollowBalancers(t *testing.T) {
	if !runInNamespace(t) {
		return
	}
	setLoopbackUp(t)
	setIPv6(t, "lo", true)
	p := dataplane.New(dataplane.Options{Interface: "lo"})
	defer p.Close()
	f := forwarding(startTarget(t, two, 0, greetAndEcho("two")), []string{two}, 80)
	f.Addresses = []netip.Addr{netip.MustParseAddr("198.51.100.1"), netip.MustParseAddr("2001:db8::1")}
	answers := func(a netip.Addr) {
		t.Helper()
		c, err := net.DialTimeout("tcp", netip.AddrPortFrom(a, 80).String(), testTimeout)
		require.NoError(t, err)
		defer func() { _ = c.Close() }()
		line := make([]byte, 4)
		must.Do(c.Read(line))(t)
		assert.Equal(t, "two\n", string(line))
	}
	require.NoError(t, p.Apply(f))
	require.NoError(t, p.Apply(f), "again")
	answers(f.Addresses[0])
	answers(f.Addresses[1])
	assert.Equal(t, []string{"198.51.100.1/32"}, addedAddresses(t))
	assert.Equal(t, []string{"2001:db8::1/128"}, addedIPv6Addresses(t, "lo"))

	blocker, err := net.Listen("tcp6", "[::]:81")
	require.NoError(t, err)
	defer func() { _ = blocker.Close() }()
	blocked := forwarding(1, nil, 81)
	blocked.ID = "lb-2"
	blocked.Addresses = []netip.Addr{netip.MustParseAddr("198.51.100.2"), netip.MustParseAddr("2001:db8::2")}
	err = p.Apply(blocked)
	require.ErrorContains(t, err, "another server holds port 81 there, or on all addresses ([::])")
	require.ErrorContains(t, err, "`ss -6lntp 'sport = :81'`")
	assert.Len(t, addedAddresses(t), 1, "what cannot be bound takes neither address")
	assert.Len(t, addedIPv6Addresses(t, "lo"), 1)

	f.Addresses = append(f.Addresses[:1:1], netip.MustParseAddr("2001:db8::3"))
	require.NoError(t, p.Apply(f))
	answers(f.Addresses[1])
	assert.Equal(t, []string{"2001:db8::3/128"}, addedIPv6Addresses(t, "lo"))
	f.Addresses = f.Addresses[:1]
	require.NoError(t, p.Apply(f))
	assert.Empty(t, addedIPv6Addresses(t, "lo"))
	assert.Len(t, addedAddresses(t), 1)

	f.Addresses = append(f.Addresses[:1:1], netip.MustParseAddr("2001:db8::1"))
	require.NoError(t, p.Apply(f))
	p.Close()
	assert.Empty(t, addedAddresses(t))
	assert.Empty(t, addedIPv6Addresses(t, "lo"))
}

func TestInterfaceWithoutIPv6Error(t *testing.T) {
	if !runInNamespace(t) {
		return
	}
	setLoopbackUp(t)
	setIPv6(t, "lo", false)
	p := dataplane.New(dataplane.Options{Interface: "lo"})
	defer p.Close()
	f := forwarding(1, nil, 80)
	f.Addresses = []netip.Addr{netip.MustParseAddr("198.51.100.1"), netip.MustParseAddr("2001:db8::1")}
	err := p.Apply(f)
	require.ErrorContains(t, err, "this machine has no IPv6 on network interface lo")
	require.ErrorContains(t, err, "sysctl -w net.ipv6.conf.lo.disable_ipv6=0")
	assert.Empty(t, addedAddresses(t), "the IPv4 address is not kept either")
}

func TestNewAddressIsAnnouncedByNDP(t *testing.T) {
	if !runInNamespace(t) {
		return
	}
	ours, ear := newVethPair(t, unix.ETH_P_IPV6)
	var log bytes.Buffer
	p := dataplane.New(dataplane.Options{Interface: "ours", Logger: slog.New(slog.NewTextHandler(&log, nil))})
	defer p.Close()
	f := forwarding(1, nil, 80)
	f.Addresses = []netip.Addr{netip.MustParseAddr("198.51.100.1"), netip.MustParseAddr("2001:db8::1")}
	setCapabilities(t, unix.CAP_NET_ADMIN, unix.CAP_NET_RAW, unix.CAP_NET_BIND_SERVICE)
	require.NoError(t, p.Apply(f))
	assert.NotContains(t, log.String(), "CAP_NET_RAW") // Whether packets are forwarded is the machine's.

	// The kernel sends messages of its own.
	buf := make([]byte, 2048)
	said := func(n int) bool { return n == 72 && buf[6] == unix.IPPROTO_ICMPV6 && buf[40] == 136 }
	n := 0
	for late := time.Now().Add(testTimeout); !said(n) && time.Now().Before(late); {
		var err error
		if n, _, err = unix.Recvfrom(ear, buf, 0); err != nil {
			require.ErrorIs(t, err, unix.EINTR)
		}
	}
	require.True(t, said(n))
	assert.Equal(t, byte(255), buf[7], "or nobody believes it")
	assert.Equal(t, f.Addresses[1].AsSlice(), buf[8:24])
	assert.Equal(t, netip.IPv6LinkLocalAllNodes().AsSlice(), buf[24:40])
	assert.Equal(t, byte(0x20), buf[44], "overrides, and is no answer")
	assert.Equal(t, f.Addresses[1].AsSlice(), buf[48:64])
	assert.Equal(t, append([]byte{2, 1}, ours.HardwareAddr...), buf[64:72])
}
