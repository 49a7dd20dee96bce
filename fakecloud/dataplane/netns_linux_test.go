package dataplane_test

// Machines made of network namespaces, and a network between them, for what takes packets. They take root, or a user
// namespace as rootAttr has one.

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

// rootAttr has a command begin in a network namespace of its own, as root there. Root itself needs no user
// namespace, which may be forbidden.
func rootAttr() *syscall.SysProcAttr {
	if os.Getuid() == 0 {
		return &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
	}
	return &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNET,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}},
	}
}

// namespace is a machine: a network namespace that lasts as long as a thread, its sockets and its programs.
type namespace struct{ calls chan func() }

// newNamespace makes a namespace without any interface that is up.
func newNamespace() (*namespace, error) {
	n := &namespace{calls: make(chan func())}
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
func (n *namespace) Do(f func()) {
	done := make(chan struct{})
	n.calls <- func() { defer close(done); f() }
	<-done
}

// Close ends the thread.
func (n *namespace) Close() { close(n.calls) }

// bridge is a switch, in a namespace of its own, that namespaces are plugged into.
type bridge struct {
	*namespace
	link netlink.Link
}

// newBridge makes a network. Close ends it.
func newBridge() (*bridge, error) {
	sw, err := newNamespace()
	if err != nil {
		return nil, err
	}
	n := &bridge{namespace: sw, link: &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "br0"}}}
	n.Do(func() { err = errors.Join(netlink.LinkAdd(n.link), netlink.LinkSetUp(n.link)) })
	return n, err
}

// Plug gives the calling thread's namespace an interface eth0 with this address in a /16, and sets loopback up.
func (b *bridge) Plug(address netip.Addr) error {
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
	b.Do(func() { thread = unix.Gettid() })
	if err := netlink.LinkSetNsPid(peer, thread); err != nil {
		return err
	}
	b.Do(func() {
		if peer, err = netlink.LinkByName(port); err == nil {
			err = errors.Join(netlink.LinkSetMaster(peer, b.link), netlink.LinkSetUp(peer))
		}
	})
	return errors.Join(err, addAddress("eth0", netip.PrefixFrom(address, 16)), setUp("eth0"), setUp("lo"))
}

// addAddress adds an address to an interface of the calling thread's namespace, unless it has it already.
func addAddress(iface string, address netip.Prefix) error {
	link, err := netlink.LinkByName(iface)
	if err != nil {
		return err
	}
	return netlink.AddrReplace(link, &netlink.Addr{IPNet: &net.IPNet{
		IP: address.Addr().AsSlice(), Mask: net.CIDRMask(address.Bits(), address.Addr().BitLen()),
	}})
}

// setUp sets an interface of the calling thread's namespace up.
func setUp(iface string) error {
	link, err := netlink.LinkByName(iface)
	if err != nil {
		return err
	}
	return netlink.LinkSetUp(link)
}

// takeAddress has the calling thread's namespace take packets for an address that another machine has, as
// kube-proxy does, without telling its neighbours.
func takeAddress(address netip.Addr) error {
	return errors.Join(
		os.WriteFile("/proc/sys/net/ipv4/conf/all/arp_ignore", []byte("1"), 0),
		os.WriteFile("/proc/sys/net/ipv4/conf/all/arp_announce", []byte("2"), 0),
		addAddress("lo", netip.PrefixFrom(address, address.BitLen())),
	)
}
