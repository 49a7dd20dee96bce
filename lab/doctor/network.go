package doctor

// Checks of the network, of which the lab uses only loopback, and of who else listens there.

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/prometheus/procfs"

	"github.com/ccmlab/ccmlab/lab/cluster/local"
)

// checkLoopback listens on addresses in 127.0.0.0/8. Linux has all of them without configuration.
func checkLoopback(_ context.Context, m *Machine) Finding {
	const remedy = "bring up the loopback interface with all of 127.0.0.0/8: sudo ip address add 127.0.0.1/8 dev lo; sudo ip link set lo up"
	first, last := local.Slots()
	for _, address := range []string{
		"127.0.0.1:0", fmt.Sprintf("127.%d.255.254:0", first), fmt.Sprintf("127.%d.255.254:0", last),
	} {
		for _, network := range []string{"tcp4", "udp4"} {
			if err := m.Listen(network, address); err != nil {
				return fixFinding(remedy, "%v", err)
			}
		}
	}
	return okFinding("addresses in 127.0.0.0/8 can be listened on, TCP and UDP")
}

// Listener is a TCP socket that listens. A wildcard of IPv6 stands for both families.
type Listener struct {
	Address netip.AddrPort
	UID     int
	Inode   string
}

// tcpListen is the state TCP_LISTEN in the kernel's tables (proc(5), include/net/tcp_states.h).
const tcpListen = 10

// tcpListeners reads the kernel's tables of TCP sockets.
func tcpListeners() (all []Listener, err error) {
	proc, err := procfs.NewDefaultFS()
	if err != nil {
		return nil, err
	}
	sockets, err := proc.NetTCP()
	if err != nil {
		return nil, err
	}
	sockets6, _ := proc.NetTCP6() // There is none without IPv6.
	for _, s := range append(sockets, sockets6...) {
		if address, ok := netip.AddrFromSlice(s.LocalAddr); ok && s.St == tcpListen {
			all = append(all, Listener{
				netip.AddrPortFrom(address, uint16(s.LocalPort)), int(s.UID), strconv.FormatUint(s.Inode, 10),
			})
		}
	}
	return all, nil
}

// kubeletPort is the port on which a kubelet listens by default.
const kubeletPort = 10250

// kubeProxyHealthPort is where kube-proxy tells of its health by default, and load balancers ask for it.
const kubeProxyHealthPort = 10256

// checkPorts finds ports that another process holds on 0.0.0.0, and so in every slot. The lab
// takes other ports then, except for its lock, which needs one of a few.
func checkPorts(_ context.Context, m *Machine) Finding {
	all, err := m.Listeners()
	if err != nil {
		return unknownFinding(err)
	}
	wanted := map[int]string{kubeletPort: "kubelet", kubeProxyHealthPort: "kube-proxy's health"}
	for name, port := range local.PreferredPorts() {
		wanted[port] = name
	}
	locks := local.LockPorts()
	for _, port := range locks {
		wanted[port] = local.PortLock
	}
	held := map[int]string{}
	for _, l := range all {
		port := int(l.Address.Port())
		if name := wanted[port]; name != "" && l.Address.Addr().IsUnspecified() {
			held[port] = fmt.Sprintf("%d (%s) by %s", port, name, cmp.Or(m.Holder(l.Inode), m.User(l.UID)))
		}
	}
	if len(held) == 0 {
		return okFinding("those that a lab prefers are free")
	}
	text := "held on every address: " + strings.Join(slices.Collect(valuesInOrder(held)), ", ")
	if !slices.ContainsFunc(locks, func(port int) bool { return held[port] == "" }) {
		return fixFinding("end one of them, or have it listen on one address", "%s; a lab needs one of %v", text, locks)
	}
	if held[kubeProxyHealthPort] != "" {
		text += "; load balancers take what answers there for the health of every node"
	}
	return infoFinding("", "%s; a lab takes others, and a load balancer on one of them says so", text)
}

func valuesInOrder(m map[int]string) func(func(string) bool) {
	return func(yield func(string) bool) {
		for _, key := range slices.Sorted(maps.Keys(m)) {
			if !yield(m[key]) {
				return
			}
		}
	}
}

func checkLowPorts(_ context.Context, m *Machine) Finding {
	first, err := m.readNumber("/proc/sys/net/ipv4/ip_unprivileged_port_start")
	switch {
	case err != nil:
		return unknownFinding(err)
	case m.UID == 0 || first <= 80:
		return okFinding("load balancers may listen on port 80")
	}
	return infoFinding(
		"sudo sysctl net.ipv4.ip_unprivileged_port_start=80",
		"load balancers may not listen below %d; the demo uses 8080", first,
	)
}

// checkSlots counts the free slots: those on whose addresses nobody listens. A slot may be taken
// by another user.
func checkSlots(_ context.Context, m *Machine) Finding {
	all, err := m.Listeners()
	if err != nil {
		return unknownFinding(err)
	}
	first, last := local.Slots()
	owner := map[int]int{}
	for _, l := range all {
		at := l.Address.Addr()
		if b := at.As16(); at.Is4() && at.IsLoopback() && int(b[13]) >= first && int(b[13]) <= last {
			owner[int(b[13])] = l.UID
		}
	}
	others := map[int]int{}
	for _, uid := range owner {
		if uid != m.UID {
			others[uid]++
		}
	}
	text := fmt.Sprintf("%d of %d are free", last-first+1-len(owner), last-first+1)
	for _, uid := range slices.Sorted(maps.Keys(others)) {
		text += fmt.Sprintf("; %d taken by %s", others[uid], m.User(uid))
	}
	if len(owner) > last-first {
		return fixFinding("take a lab down: lab down --name NAME", "%s", text)
	}
	return okFinding("%s", text)
}

// checkProxy finds a proxy that would be used for loopback. Programs in Go never do that, but curl
// does.
func checkProxy(_ context.Context, m *Machine) Finding {
	set := ""
	// curl does not read HTTP_PROXY.
	for _, name := range []string{"http_proxy", "HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"} {
		if m.Getenv(name) != "" {
			set = name
			break
		}
	}
	if set == "" {
		return okFinding("none is set")
	}
	except := cmp.Or(m.Getenv("no_proxy"), m.Getenv("NO_PROXY"))
	for entry := range strings.SplitSeq(except, ",") {
		entry = strings.TrimSpace(entry)
		prefix, err := netip.ParsePrefix(entry)
		if entry == "*" || err == nil && prefix.Bits() <= 8 && prefix.Contains(netip.MustParseAddr("127.30.0.1")) {
			return okFinding("%s is set, and not for loopback", set)
		}
	}
	return fixFinding(
		`export NO_PROXY="127.0.0.0/8${NO_PROXY:+,$NO_PROXY}" no_proxy="127.0.0.0/8${no_proxy:+,$no_proxy}"`,
		"%s is set, and NO_PROXY does not name 127.0.0.0/8: curl would ask the proxy for the lab's load balancers", set,
	)
}
