package doctor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/bits"
	"net/netip"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ccmlab/ccmlab/lab/cluster/local"
	"github.com/ccmlab/ccmlab/lab/state"
)

const (
	// needKernel is the first kernel with pidfd_open(2), by which no process is mistaken for
	// another.
	needKernel = "5.3"
	// needMemory, in MB, is what a lab of three nodes takes, with a reserve.
	needMemory = 1500
	// needDisk, in MB, is somewhat above what one lab's folder grows to in an hour.
	needDisk = 500
	// needFiles is how many open files etcd and the API server each need.
	needFiles = 1024
	// needTasks is above the threads that a lab of three nodes has.
	needTasks = 300
	// needWatches is far above what a lab watches with InotifyPerLab.
	needWatches = 1024
	// kindInstances is the kernel's default, the limit that kind clusters reach first.
	kindInstances = 128
)

func checkSystem(_ context.Context, m *Machine) Finding {
	what := m.OS + "/" + m.Arch
	if m.OS != "linux" {
		return fixFinding("use a Linux virtual machine or container", "%s: the lab needs Linux", what)
	}
	release, err := m.Read("/proc/sys/kernel/osrelease")
	if err != nil {
		return unknownFinding(err)
	}
	kernel := strings.TrimSpace(string(release))
	if major, minor := 0, 0; scanPrefix(kernel, "%d.%d", &major, &minor) && (major < 5 || major == 5 && minor < 3) {
		return fixFinding("update the kernel", "%s, kernel %s: the lab needs %s or newer", what, kernel, needKernel)
	}
	return okFinding("%s, kernel %s", what, kernel)
}

// scanPrefix tells whether all of the format's values are at the beginning of s.
func scanPrefix(s, format string, to ...any) bool {
	n, _ := fmt.Sscanf(s, format, to...)
	return n == len(to)
}

// checkClock finds a clock that was set back. What that means for a lab that exists, `lab up` says.
func checkClock(_ context.Context, m *Machine) Finding {
	now, stamp := m.Now(), "2006-01-02 15:04 MST"
	if now.Before(m.Built) {
		return fixFinding(
			"set the clock: timedatectl set-ntp true", "it is %s, and the lab was built later, at %s",
			now.Format(stamp), m.Built.Format(stamp),
		)
	}
	return okFinding("%s", now.Format(stamp))
}

func checkPrograms(_ context.Context, m *Machine) Finding {
	if len(m.Missing) > 0 {
		return fixFinding("make build", "missing: %s", strings.Join(m.Missing, ", "))
	}
	return okFinding("all in %s and %s", m.Bin, m.Kube)
}

func checkMemory(_ context.Context, m *Machine) Finding {
	data, err := m.Read("/proc/meminfo")
	if err != nil {
		return unknownFinding(err)
	}
	free, where := uint64(0), "available"
	for line := range strings.Lines(string(data)) {
		if scanPrefix(line, "MemAvailable: %d kB", &free) {
			break
		}
	}
	free >>= 10
	if left, ok := m.leftInCgroup("memory.max", "memory.current"); ok && left>>20 < free {
		free, where = left>>20, "left of this control group's limit"
	}
	if free < needMemory {
		return fixFinding(
			"end something, or use fewer nodes: lab up --nodes 1", "%d MB %s; a lab of three nodes wants %d", free,
			where, needMemory,
		)
	}
	return okFinding("%d MB %s", free, where)
}

// leftInCgroup is what is left of the tightest limit that applies to this process (cgroups(7),
// version 2). It is not found where there is no limit. Memory that only caches files counts as
// left, too.
func (m *Machine) leftInCgroup(limit, current string) (left uint64, found bool) {
	line, err := m.Read("/proc/self/cgroup")
	_, group, ok := strings.Cut(string(line), "0::")
	if err != nil || !ok {
		return 0, false
	}
	group, _, _ = strings.Cut(group, "\n")
	for dir := path.Join("/", group); ; dir = path.Dir(dir) {
		folder := path.Join("/sys/fs/cgroup", dir)
		highest, err1 := m.readNumber(path.Join(folder, limit))
		used, err2 := m.readNumber(path.Join(folder, current))
		if err1 == nil && err2 == nil {
			if limit == "memory.max" {
				var cached uint64
				stat, _ := m.Read(path.Join(folder, "memory.stat"))
				_, rest, _ := strings.Cut(string(stat), "inactive_file ")
				_ = scanPrefix(rest, "%d", &cached)
				used -= min(used, cached)
			}
			if remaining := highest - min(highest, used); !found || remaining < left {
				left, found = remaining, true
			}
		}
		if dir == "/" {
			return left, found
		}
	}
}

func (m *Machine) readNumber(file string) (uint64, error) {
	data, err := m.Read(file)
	if err != nil {
		return 0, err
	}
	return strconv.ParseUint(strings.TrimSpace(string(data)), 10, 64) // "max", for no limit, is an error.
}

func checkDisk(_ context.Context, m *Machine) Finding {
	free, err := m.FreeSpace()
	switch {
	case err != nil:
		return unknownFinding(err)
	case free>>20 < needDisk:
		return fixFinding(
			"free some space, or set CCMLAB_HOME to a folder on another disk", "%d MB free for %s; a lab wants %d",
			free>>20, m.Home, needDisk,
		)
	}
	return okFinding("%d MB free for %s", free>>20, m.Home)
}

func checkFolder(_ context.Context, m *Machine) Finding {
	if err := m.CheckHome(); err != nil {
		return fixFinding(state.OwnFolderAdvice, "%s", strings.TrimSuffix(err.Error(), "; "+state.OwnFolderAdvice))
	}
	return okFinding("labs are kept in %s", m.Home)
}

func checkOpenFiles(_ context.Context, m *Machine) Finding {
	limit, err := m.Limit(unix.RLIMIT_NOFILE)
	switch {
	case err != nil:
		return unknownFinding(err)
	case limit < needFiles:
		return fixFinding(
			fmt.Sprintf("ulimit -n %d; for good in /etc/security/limits.conf", needFiles),
			"up to %d per process; etcd and the API server want %d", limit, needFiles,
		)
	}
	return okFinding("up to %s per process", formatLimit(limit))
}

// checkProcesses checks both limits, which count threads. The user's does not hold for root.
func checkProcesses(_ context.Context, m *Machine) Finding {
	limit, err := m.Limit(unix.RLIMIT_NPROC)
	left, grouped := m.leftInCgroup("pids.max", "pids.current")
	switch {
	case err != nil:
		return unknownFinding(err)
	case m.UID != 0 && limit < needTasks:
		return fixFinding(
			fmt.Sprintf("ulimit -u %d; for good in /etc/security/limits.conf", 10*needTasks),
			"up to %d threads of this user; a lab of three nodes wants %d", limit, needTasks,
		)
	case grouped && left < needTasks:
		return fixFinding(
			"raise the limit: docker run --pids-limit, or TasksMax= of the systemd unit",
			"%d more threads in this control group; a lab of three nodes wants %d", left, needTasks,
		)
	}
	return okFinding("up to %s threads of this user", formatLimit(limit))
}

// formatLimit shows a limit, or that there is none.
func formatLimit(n uint64) string {
	if n >= 1<<62 {
		return "any number"
	}
	return strconv.FormatUint(n, 10)
}

// InotifyPerLab is how many inotify instances an embedded lab takes, however many nodes it has: its
// CCM two, its agent one. A test in lab/e2e counts them.
const InotifyPerLab = 3

const inotifyInstances = "/proc/sys/fs/inotify/max_user_instances"

// raiseInotify is the command that raises inotify's limits until the machine is restarted.
const raiseInotify = "sudo sysctl fs.inotify.max_user_instances=1024 fs.inotify.max_user_watches=524288"

func checkInotify(_ context.Context, m *Machine) Finding {
	instances, err1 := m.readNumber(inotifyInstances)
	watches, err2 := m.readNumber("/proc/sys/fs/inotify/max_user_watches")
	used, err3 := m.InotifyInUse()
	if err := errors.Join(err1, err2, err3); err != nil {
		return unknownFinding(err)
	}
	text := fmt.Sprintf("%d instances per user, %d in use, and %d watches", instances, used, watches)
	switch {
	case instances < used+InotifyPerLab || watches < needWatches:
		return fixFinding(raiseInotify, "%s; a lab wants %d and %d", text, InotifyPerLab, needWatches)
	case instances <= kindInstances:
		return infoFinding(raiseInotify, "%s; a third kind cluster beside two others would want more", text)
	}
	return okFinding("%s", text)
}

// CheckInotify returns an error, with the command that helps, if this user has not enough inotify
// instances left for so many labs more. Where that cannot be known it returns nil.
func (m *Machine) CheckInotify(labs int) error {
	instances, err := m.readNumber(inotifyInstances)
	used, unknown := m.InotifyInUse()
	need := uint64(labs) * InotifyPerLab //nolint:gosec // It is not negative.
	if err != nil || unknown != nil || instances >= used+need {
		return nil //nolint:nilerr // A lab that cannot begin says why.
	}
	return fmt.Errorf(
		"%d labs take %d inotify instances, and %d of this user's %d are in use; `sudo sysctl fs.inotify.max_user_instances=%d` is enough until the machine is restarted, the same line in a file of /etc/sysctl.d for good",
		labs, need, used, instances, 1<<bits.Len64(used+need-1),
	)
}

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

const (
	// kubeletPort is the port on which a kubelet listens by default.
	kubeletPort = 10250
	// kubeProxyHealthPort is where kube-proxy tells of its health by default, and load balancers ask for it.
	kubeProxyHealthPort = 10256
)

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
			held[port] = fmt.Sprintf("%d (%s) by %s", port, name, m.Holder(l))
		}
	}
	if len(held) == 0 {
		return okFinding("those that a lab prefers are free")
	}
	var each []string
	for _, port := range slices.Sorted(maps.Keys(held)) {
		each = append(each, held[port])
	}
	text := "held on every address: " + strings.Join(each, ", ")
	if !slices.ContainsFunc(locks, func(port int) bool { return held[port] == "" }) {
		return fixFinding("end one of them, or have it listen on one address", "%s; a lab needs one of %v", text, locks)
	}
	if held[kubeProxyHealthPort] != "" {
		text += "; load balancers take what answers there for the health of every node"
	}
	return infoFinding("", "%s; a lab takes others, and a load balancer on one of them says so", text)
}

// checkLeftovers finds processes whose lab's folder was deleted. They keep their memory and their slot.
func checkLeftovers(_ context.Context, m *Machine) Finding {
	found, err := m.Leftovers()
	if err != nil {
		return unknownFinding(err)
	}
	if len(found) == 0 {
		return okFinding("none: every process of a lab has its folder")
	}
	var shown []string
	dir := found[0].Lab
	for _, p := range found {
		shown = append(shown, fmt.Sprintf("%s (pid %d)", p.Component, p.PID))
		dir = min(dir, p.Lab)
	}
	return fixFinding(
		fmt.Sprintf("CCMLAB_HOME=%s lab down --name %s", filepath.Dir(dir), filepath.Base(dir)),
		"processes of a lab whose folder is gone, %s: %s", dir, strings.Join(shown, ", "),
	)
}

// proxyVariables name a proxy to curl, which does not read HTTP_PROXY.
var proxyVariables = []string{"http_proxy", "HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"}

// checkProxy finds a proxy that would be used for loopback. Programs in Go never do that, but curl
// does.
func checkProxy(_ context.Context, m *Machine) Finding {
	i := slices.IndexFunc(proxyVariables, func(name string) bool { return m.Getenv(name) != "" })
	if i < 0 {
		return okFinding("none is set")
	}
	set := proxyVariables[i]
	for entry := range strings.SplitSeq(cmp.Or(m.Getenv("no_proxy"), m.Getenv("NO_PROXY")), ",") {
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

// engineBound is how long a container engine may take to answer. One that hangs answers never.
const engineBound = 1800 * time.Millisecond

func checkContainerEngine(ctx context.Context, m *Machine) Finding {
	ctx, cancel := context.WithTimeout(ctx, engineBound)
	defer cancel()
	engine, err := m.Engine(ctx)
	switch {
	case err == nil:
		return okFinding("%s", engine)
	case ctx.Err() != nil:
		return unknownFinding(fmt.Errorf("no answer within %s", engineBound))
	}
	why, remedy := causeAndRemedy(err)
	if m.Cluster == "kind" {
		return fixFinding(
			cmp.Or(remedy, "install Docker and start it: https://docs.docker.com/engine/install"), "not to be had: %s",
			why,
		)
	}
	return infoFinding(remedy, "not to be had, and the embedded cluster needs none: %s", why)
}

// causeAndRemedy takes apart an error of package kind. It has a line for each container engine:
// the cause, the remedy, and what else could be used, which is left out.
func causeAndRemedy(err error) (cause, remedy string) {
	var causes, remedies []string
	for line := range strings.Lines(err.Error()) {
		why, mends, _ := strings.Cut(strings.TrimSpace(line), "; ")
		causes = append(causes, why)
		if mends, _, _ = strings.Cut(mends, "; or: "); mends != "" {
			remedies = append(remedies, mends)
		}
	}
	return strings.Join(causes, "\n"), strings.Join(remedies, "; or ")
}
