package dataplane_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/ccmlab/ccmlab/fakecloud/dataplane"
	"github.com/ccmlab/ccmlab/fakecloud/internal/must"
)

// inNamespace is set in the environment of the processes that runInNamespace starts.
const inNamespace = "FAKECLOUD_TEST_NAMESPACE"

// runInNamespace runs the test again, in a process with a network namespace of its own,
// and returns false. In that process it returns true.
func runInNamespace(t testing.TB) bool {
	t.Helper()
	if os.Getenv(inNamespace) != "" {
		return true
	}
	args := []string{"-test.run=^" + t.Name() + "$", "-test.v"}
	if _, ok := t.(*testing.B); ok {
		benchTime := flag.Lookup("test.benchtime").Value.String()
		args = []string{"-test.run=^$", "-test.bench=^" + t.Name() + "$", "-test.benchtime=" + benchTime}
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0], args...)
	cmd.Env = append(os.Environ(), inNamespace+"=1")
	cmd.SysProcAttr = rootAttr()
	out, err := cmd.CombinedOutput()
	if _, ran := errors.AsType[*exec.ExitError](err); err != nil && !ran {
		t.Skipf("this machine lets us have no network namespace: %v", err)
	}
	require.NoError(t, err, "%s", out)
	if _, ok := t.(*testing.B); ok {
		_, _ = os.Stdout.Write(out)
	}
	return false
}

// setLoopbackUp sets up the only link of a new namespace.
func setLoopbackUp(t *testing.T) {
	t.Helper()
	require.NoError(t, setUp("lo"))
}

// newVethPair makes two interfaces, ours and theirs, that are each other's only neighbour,
// and a socket that hears on theirs what ours says over that protocol.
func newVethPair(t *testing.T, protocol uint16) (ours *netlink.LinkAttrs, ear int) {
	t.Helper()
	require.NoError(t, netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "ours"}, PeerName: "theirs"}))
	links := map[string]*netlink.LinkAttrs{}
	for _, name := range []string{"theirs", "ours"} { // In this order, ours has a carrier from the start.
		link := must.Do(netlink.LinkByName(name))(t)
		if protocol == unix.ETH_P_IPV6 {
			setIPv6(t, name, true)
		}
		require.NoError(t, netlink.LinkSetUp(link))
		links[name] = link.Attrs()
	}
	ear = must.Do(unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0))(t)
	t.Cleanup(func() { _ = unix.Close(ear) })
	inNetworkOrder := binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, protocol))
	require.NoError(
		t, unix.Bind(ear, &unix.SockaddrLinklayer{Protocol: inNetworkOrder, Ifindex: links["theirs"].Index}),
	)
	limit := unix.NsecToTimeval(testTimeout.Nanoseconds())
	require.NoError(t, unix.SetsockoptTimeval(ear, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &limit))
	return links["ours"], ear
}

// addedAddresses lists the addresses that were added to the loopback interface.
func addedAddresses(t *testing.T) []string {
	t.Helper()
	link := must.Do(netlink.LinkByName("lo"))(t)
	all := must.Do(netlink.AddrList(link, netlink.FAMILY_V4))(t)
	var out []string
	for _, a := range all {
		if !a.IP.IsLoopback() {
			out = append(out, a.IPNet.String())
		}
	}
	return out
}

func TestInterfaceAddressesFollowBalancers(t *testing.T) {
	if !runInNamespace(t) {
		return
	}
	setLoopbackUp(t)
	p := dataplane.New(dataplane.Options{Interface: "lo"})
	defer p.Close()
	target := startTarget(t, two, 0, greetAndEcho("two"))
	one, another := forwarding(target, []string{two}, 80), forwarding(target, []string{two}, 80)
	one.Addresses = []netip.Addr{netip.MustParseAddr("198.51.100.1")}
	another.ID, another.Addresses = "lb-2", []netip.Addr{netip.MustParseAddr("198.51.100.2")}
	answers := func(a netip.Addr) {
		t.Helper()
		c := must.Do(net.DialTimeout("tcp4", netip.AddrPortFrom(a, 80).String(), testTimeout))(t)
		_ = c.Close()
	}
	require.NoError(t, p.Apply(one))
	require.NoError(t, p.Apply(one), "again")
	require.NoError(t, p.Apply(another))
	answers(one.Addresses[0])
	answers(another.Addresses[0])
	assert.Equal(t, []string{"198.51.100.1/32", "198.51.100.2/32"}, addedAddresses(t))

	blocker := must.Do(net.Listen("tcp4", ":81"))(t)
	defer func() { _ = blocker.Close() }()
	third := forwarding(target, nil, 81)
	third.ID, third.Addresses = "lb-3", []netip.Addr{netip.MustParseAddr("198.51.100.3")}
	require.ErrorContains(t, p.Apply(third), "another server")
	assert.Len(t, addedAddresses(t), 2, "what cannot be bound takes no address")

	moved := one
	moved.Addresses = []netip.Addr{netip.MustParseAddr("198.51.100.4")}
	require.NoError(t, p.Apply(moved))
	answers(moved.Addresses[0])
	assert.Equal(t, []string{"198.51.100.2/32", "198.51.100.4/32"}, addedAddresses(t))
	p.Remove("lb-1")
	assert.Equal(t, []string{"198.51.100.2/32"}, addedAddresses(t))

	// A process that crashed has left its address behind.
	next := dataplane.New(dataplane.Options{Interface: "lo"})
	another.Listeners[0].Port = 8080
	require.NoError(t, next.Apply(another))
	next.Close()
	assert.Empty(t, addedAddresses(t))
}

// setCapabilities leaves the test's thread only these capabilities. The thread stays locked
// to the test, and ends with it.
func setCapabilities(t *testing.T, capabilities ...int) {
	t.Helper()
	runtime.LockOSThread()
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var sets [2]unix.CapUserData
	require.NoError(t, unix.Capget(&header, &sets[0]))
	sets[0].Effective, sets[1].Effective = 0, 0
	for _, c := range capabilities {
		sets[0].Effective |= 1 << c
	}
	require.NoError(t, unix.Capset(&header, &sets[0]))
}

func TestNewAddressIsAnnouncedByARP(t *testing.T) {
	if !runInNamespace(t) {
		return
	}
	ours, ear := newVethPair(t, unix.ETH_P_ARP)
	var log bytes.Buffer
	p := dataplane.New(dataplane.Options{Interface: "ours", Logger: slog.New(slog.NewTextHandler(&log, nil))})
	defer p.Close()
	f, quiet := forwarding(1, nil, 80), forwarding(1, nil, 80)
	f.Addresses = []netip.Addr{netip.MustParseAddr("198.51.100.1")}
	// As a container of the lab has.
	setCapabilities(t, unix.CAP_NET_ADMIN, unix.CAP_NET_RAW, unix.CAP_NET_BIND_SERVICE)
	require.NoError(t, p.Apply(f))
	assert.NotContains(t, log.String(), "CAP_NET_RAW") // Whether packets are forwarded is the machine's.
	setCapabilities(t, unix.CAP_NET_ADMIN, unix.CAP_NET_BIND_SERVICE)
	for i := byte(2); i < 4; i++ {
		quiet.ID, quiet.Addresses = fmt.Sprint("lb-", i), []netip.Addr{netip.AddrFrom4([4]byte{198, 51, 100, i})}
		require.NoError(t, p.Apply(quiet))
	}
	assert.Equal(t, 1, strings.Count(log.String(), "CAP_NET_RAW"), "said once: %s", &log)
	buf := make([]byte, 64)
	n, _, err := unix.Recvfrom(ear, buf, 0)
	for errors.Is(err, unix.EINTR) {
		n, _, err = unix.Recvfrom(ear, buf, 0)
	}
	require.NoError(t, err)
	require.Equal(t, 28, n)
	assert.Equal(t, []byte(ours.HardwareAddr), buf[8:14])
	assert.Equal(t, f.Addresses[0].AsSlice(), buf[14:18])
	assert.Equal(t, f.Addresses[0].AsSlice(), buf[24:28])
}

func TestInterfaceErrorsSayWhatToDo(t *testing.T) {
	p := dataplane.New(dataplane.Options{Interface: "no-such-thing"})
	defer p.Close()
	f := forwarding(1, nil, freePort(t))
	require.ErrorContains(t, p.Apply(f), "there is no network interface no-such-thing")
	if os.Getuid() == 0 {
		t.Skip("root may do the rest")
	}
	p = dataplane.New(dataplane.Options{Interface: "lo"})
	defer p.Close()
	require.ErrorContains(t, p.Apply(f), "CAP_NET_ADMIN")
}
