package doctor

// Checks of the network, of which the lab uses only loopback, and of who else listens there.

import (
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

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

// listener is a line of /proc/net/tcp or tcp6 (proc(5)) that listens.
type listener struct {
	address netip.Addr
	port    int
	uid     int
	inode   string
}

func (m *Machine) listeners() ([]listener, error) {
	v4, err := m.Read("/proc/net/tcp")
	if err != nil {
		return nil, err
	}
	v6, _ := m.Read("/proc/net/tcp6") // There is none without IPv6.
	var all []listener
	for line := range strings.Lines(string(v4) + string(v6)) {
		fields := strings.Fields(line)
		if len(fields) < 10 || fields[3] != "0A" {
			continue
		}
		host, port, _ := strings.Cut(fields[1], ":")
		raw, err1 := hex.DecodeString(host)
		number, err2 := strconv.ParseUint(port, 16, 16)
		uid, err3 := strconv.Atoi(fields[7])
		if errors.Join(err1, err2, err3) != nil {
			continue
		}
		for word := range slices.Chunk(raw, 4) { // Each word is in the machine's byte order.
			slices.Reverse(word)
		}
		if address, ok := netip.AddrFromSlice(raw); ok {
			all = append(all, listener{address, int(number), uid, fields[9]})
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
	all, err := m.listeners()
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
		if name := wanted[l.port]; name != "" && l.address.IsUnspecified() {
			held[l.port] = fmt.Sprintf("%d (%s) by %s", l.port, name, cmp.Or(m.Holder(l.inode), m.User(l.uid)))
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
	all, err := m.listeners()
	if err != nil {
		return unknownFinding(err)
	}
	first, last := local.Slots()
	owner := map[int]int{}
	for _, l := range all {
		if b := l.address.As16(); l.address.Is4() && l.address.IsLoopback() && int(b[13]) >= first &&
			int(b[13]) <= last {
			owner[int(b[13])] = l.uid
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
