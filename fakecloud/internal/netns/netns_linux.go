// Package netns makes machines of network namespaces, and a network between them, for tests and
// benchmarks of what takes packets, on Linux. It takes root, or a user namespace as RootAttr has one.
package netns

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"syscall"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// RootAttr has a command begin in a network namespace of its own, as root there. Root itself needs no user
// namespace, which may be forbidden.
func RootAttr() *syscall.SysProcAttr {
	if os.Getuid() == 0 {
		return &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
	}
	return &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNET,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}},
	}
}

// Namespace is a machine: a network namespace that lasts as long as a thread, its sockets and its programs.
type Namespace struct{ calls chan func() }

// New makes a namespace without any interface that is up.
func New() (*Namespace, error) {
	n := &Namespace{calls: make(chan func())}
	made := make(chan error)
	go func() {
		runtime.LockOSThread() // And never unlocks: the thread ends with the goroutine.
		made <- unix.Unshare(unix.CLONE_NEWNET)
		for f := range n.calls {
			f()
		}
	}()
	return n, <-made
}

// Do runs a function on a thread that is in the namespace, one at a time. Sockets that it opens and programs
// that it starts stay there.
func (n *Namespace) Do(f func()) {
	done := make(chan struct{})
	n.calls <- func() { defer close(done); f() }
	<-done
}

// Close ends the thread.
func (n *Namespace) Close() { close(n.calls) }

// Network is a switch, in a namespace of its own, that namespaces are plugged into.
type Network struct {
	*Namespace
	bridge netlink.Link
}

// NewNetwork makes a network. Close ends it.
func NewNetwork() (*Network, error) {
	sw, err := New()
	if err != nil {
		return nil, err
	}
	n := &Network{Namespace: sw, bridge: &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "br0"}}}
	n.Do(func() { err = errors.Join(netlink.LinkAdd(n.bridge), netlink.LinkSetUp(n.bridge)) })
	return n, err
}

// Plug gives the calling thread's namespace an interface eth0 with this address in a /16, and sets loopback up.
func (n *Network) Plug(address netip.Addr) error {
	port := fmt.Sprintf("p%x", address.AsSlice())
	if err := netlink.LinkAdd(
		&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "eth0"}, PeerName: port},
	); err != nil {
		return err
	}
	peer, err := netlink.LinkByName(port)
	if err != nil {
		return err
	}
	var thread int
	n.Do(func() { thread = unix.Gettid() })
	if err := netlink.LinkSetNsPid(peer, thread); err != nil {
		return err
	}
	n.Do(func() {
		if peer, err = netlink.LinkByName(port); err == nil {
			err = errors.Join(netlink.LinkSetMaster(peer, n.bridge), netlink.LinkSetUp(peer))
		}
	})
	return errors.Join(err, AddAddress("eth0", netip.PrefixFrom(address, 16)), SetUp("eth0"), SetUp("lo"))
}

// AddAddress adds an address to an interface of the calling thread's namespace, unless it has it already.
func AddAddress(iface string, address netip.Prefix) error {
	link, err := netlink.LinkByName(iface)
	if err != nil {
		return err
	}
	return netlink.AddrReplace(link, &netlink.Addr{IPNet: &net.IPNet{
		IP: address.Addr().AsSlice(), Mask: net.CIDRMask(address.Bits(), address.Addr().BitLen()),
	}})
}

// SetUp sets an interface of the calling thread's namespace up.
func SetUp(iface string) error {
	link, err := netlink.LinkByName(iface)
	if err != nil {
		return err
	}
	return netlink.LinkSetUp(link)
}

// TakeAddress has the calling thread's namespace take packets for an address that another machine has, as
// kube-proxy does, without telling its neighbours.
func TakeAddress(address netip.Addr) error {
	return errors.Join(
		os.WriteFile("/proc/sys/net/ipv4/conf/all/arp_ignore", []byte("1"), 0),
		os.WriteFile("/proc/sys/net/ipv4/conf/all/arp_announce", []byte("2"), 0),
		AddAddress("lo", netip.PrefixFrom(address, address.BitLen())),
	)
}
