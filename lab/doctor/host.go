package doctor

// What the machine is, and how much of it there is.

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"go/version"
	"io/fs"
	"path"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/ccmlab/ccmlab/lab/pki"
)

const (
	// NeedGo is go.mod's.
	NeedGo = "1.26.0"
	// needKernel has pidfd_open(2), by which no process is mistaken for another.
	needKernel = "5.3"
	// needMemory, in MB, is what a lab of three nodes takes, with some room.
	needMemory = 1500
	// needDisk, in MB, is some rooms above what one lab's folder grows to in an
	// hour; buildDisk is what Go's cache grows to at the first build.
	needDisk  = 500
	buildDisk = 8 << 10
	// needFiles is what etcd and the API server want of open files, per process.
	needFiles = 1024
	// needTasks is above the threads that a lab of three nodes has.
	needTasks = 300
	// needInstances and needWatches of inotify are above a lab's; kind's first
	// limit is the kernel's default of instances.
	needInstances, needWatches = 32, 1024
	kindInstances              = 128
)

func system(_ context.Context, m *Machine) Finding {
	what := m.OS + "/" + m.Arch
	if m.OS != "linux" {
		return fix("use a Linux virtual machine or container", "%s: the lab needs Linux", what)
	}
	release, err := m.Read("/proc/sys/kernel/osrelease")
	if err != nil {
		return unknown(err)
	}
	kernel := strings.TrimSpace(string(release))
	if major, minor := 0, 0; scan(kernel, "%d.%d", &major, &minor) && (major < 5 || major == 5 && minor < 3) {
		return fix("update the kernel", "%s, kernel %s: the lab needs %s or newer", what, kernel, needKernel)
	}
	return ok("%s, kernel %s", what, kernel)
}

func scan(s, format string, to ...any) bool {
	n, _ := fmt.Sscanf(s, format, to...)
	return n == len(to)
}

// clock: certificates and leases are of no use to one that has gone back.
func clock(_ context.Context, m *Machine) Finding {
	now, stamp := m.Now(), "2006-01-02 15:04 MST"
	const fixed = "set the clock: timedatectl set-ntp true"
	if now.Before(m.Built) {
		return fix(fixed, "it is %s, and the lab was built later, at %s", now.Format(stamp), m.Built.Format(stamp))
	}
	all, _ := m.Labs()
	seen := ok("%s", now.Format(stamp))
	for _, l := range all {
		if l.State == nil || !now.Before(l.State.StartedAt) {
			continue
		}
		made := fmt.Sprintf("it is %s, and lab %s was made later, at %s", now.Format(stamp), l.Name, l.State.StartedAt.Format(stamp))
		if now.Before(l.State.StartedAt.Add(-pki.Margin)) {
			return fix(fixed+"; or make the lab anew: lab down --name "+l.Name, "%s: its certificates are not valid yet", made)
		}
		seen = info(fixed, "%s: its certificates are valid all the same, and its timeline is out of order", made)
	}
	return seen
}

func programs(_ context.Context, m *Machine) Finding {
	if len(m.Missing) > 0 {
		return fix("make build", "missing: %s", strings.Join(m.Missing, ", "))
	}
	return ok("all in %s and %s", m.Bin, m.Kube)
}

// toBuild is a finding about a tool that only building needs.
func (m *Machine) toBuild(remedy, format string, args ...any) Finding {
	if len(m.Missing) > 0 {
		return fix(remedy, format, args...)
	}
	return info(remedy+" (to build; what is built runs without)", format, args...)
}

func goTool(ctx context.Context, m *Machine) Finding {
	install := "install Go " + NeedGo + " or newer: https://go.dev/dl"
	file, err := m.Find("go")
	if err != nil {
		return m.toBuild(install, "not in PATH")
	}
	said, err := m.Run(ctx, "", file, "version")
	if err != nil {
		return m.toBuild(install, "%s: %v", file, err)
	}
	// go version go1.26.8 linux/amd64
	fields := strings.Fields(said)
	if len(fields) < 3 || !version.IsValid(fields[2]) {
		return info("", "%s says of itself: %s", file, said)
	}
	if version.Compare(fields[2], "go"+NeedGo) < 0 {
		return m.toBuild(install, "%s is %s", file, fields[2])
	}
	return ok("%s, %s", fields[2], file)
}

// gcc must compile and link, statically as the build does: a compiler without
// the C library's static half is of no use.
func gcc(ctx context.Context, m *Machine) Finding {
	install := "install gcc and the C library's headers, such as: sudo apt-get install gcc libc6-dev (the cloud's database, SQLite, is C)"
	compiler := cmp.Or(m.Getenv("CC"), "gcc")
	file, err := m.Find(strings.Fields(compiler)[0])
	if err != nil {
		return m.toBuild(install, "%s is not in PATH", compiler)
	}
	if _, err := m.Run(ctx, "#include <stdio.h>\nint main(void) { return puts(\"\") < 0; }\n", file, "-x", "c", "-static", "-o", "/dev/null", "-"); err != nil {
		return m.toBuild(install, "%s compiles nothing: %v", file, err)
	}
	return ok("%s compiles", file)
}

func tools(_ context.Context, m *Machine) Finding {
	var missing, there []string
	for _, tool := range []string{"make", "git", "curl"} {
		if _, err := m.Find(tool); err != nil {
			missing = append(missing, tool)
		} else {
			there = append(there, tool)
		}
	}
	switch {
	case len(missing) == 0:
		return ok("%s", strings.Join(there, ", "))
	case strings.Contains(strings.Join(missing, " "), "make"):
		return m.toBuild("install make", "not in PATH: %s", strings.Join(missing, ", "))
	}
	return info("git is for the sources, curl to ask the load balancers", "not in PATH: %s", strings.Join(missing, ", "))
}

func memory(_ context.Context, m *Machine) Finding {
	data, err := m.Read("/proc/meminfo")
	if err != nil {
		return unknown(err)
	}
	free, where := uint64(0), "available"
	for line := range strings.Lines(string(data)) {
		if scan(line, "MemAvailable: %d kB", &free) {
			break
		}
	}
	free >>= 10
	if left, ok := m.cgroup("memory.max", "memory.current"); ok && left>>20 < free {
		free, where = left>>20, "left of this control group's limit"
	}
	if free < needMemory {
		return fix("end something, or use fewer nodes: lab up --nodes 1", "%d MB %s; a lab of three nodes wants %d", free, where, needMemory)
	}
	return ok("%d MB %s", free, where)
}

// cgroup is what is left of the tightest limit that this process is under (cgroups(7),
// version 2); not ok where there is none. Memory that only caches files is left, too.
func (m *Machine) cgroup(limit, current string) (left uint64, found bool) {
	line, err := m.Read("/proc/self/cgroup")
	if err != nil {
		return 0, false
	}
	_, group, ok := strings.Cut(string(line), "0::")
	if !ok {
		return 0, false
	}
	group, _, _ = strings.Cut(group, "\n")
	for dir := path.Join("/", group); ; dir = path.Dir(dir) {
		folder := path.Join("/sys/fs/cgroup", dir)
		highest, err1 := m.number(path.Join(folder, limit))
		used, err2 := m.number(path.Join(folder, current))
		if err1 == nil && err2 == nil {
			if stat, err := m.Read(path.Join(folder, "memory.stat")); err == nil && limit == "memory.max" {
				var cached uint64
				_, rest, _ := strings.Cut(string(stat), "inactive_file ")
				_ = scan(rest, "%d", &cached)
				used -= min(used, cached)
			}
			if here := highest - min(highest, used); !found || here < left {
				left, found = here, true
			}
		}
		if dir == "/" {
			return left, found
		}
	}
}

func (m *Machine) number(file string) (uint64, error) {
	data, err := m.Read(file)
	if err != nil {
		return 0, err
	}
	return strconv.ParseUint(strings.TrimSpace(string(data)), 10, 64) // "max" is none.
}

func disk(ctx context.Context, m *Machine) Finding {
	if m.HomeErr != nil {
		return unknown(m.HomeErr)
	}
	free, err := m.Space(m.Home)
	if err != nil {
		return unknown(err)
	}
	if free>>20 < needDisk {
		return fix("free some space, or set CCMLAB_HOME to a folder on another disk", "%d MB free for %s; a lab wants %d", free>>20, m.Home, needDisk)
	}
	seen := fmt.Sprintf("%d MB free for %s", free>>20, m.Home)
	if len(m.Missing) == 0 {
		return ok("%s", seen)
	}
	cache, err := m.Run(ctx, "", "go", "env", "GOCACHE")
	if err != nil {
		return ok("%s", seen)
	}
	if free, err = m.Space(cache); err == nil && free>>20 < buildDisk {
		return info("free some space, or set GOCACHE to a folder on another disk", "%s, %d MB for Go's cache, %s, which grows to some %d at the first build", seen, free>>20, cache, buildDisk)
	}
	return ok("%s, %d MB for Go's cache", seen, free>>20)
}

func folder(_ context.Context, m *Machine) Finding {
	const remedy = "set CCMLAB_HOME to a folder you may write: export CCMLAB_HOME=/tmp/$USER-labs"
	if m.HomeErr != nil {
		return fix(remedy, "%v", m.HomeErr)
	}
	if err := m.Writable(m.Home); err != nil {
		return fix(remedy, "%s: %v", m.Home, err)
	}
	return ok("labs are kept in %s", m.Home)
}

func openFiles(_ context.Context, m *Machine) Finding {
	limit, err := m.Limit(unix.RLIMIT_NOFILE)
	switch {
	case err != nil:
		return unknown(err)
	case limit < needFiles:
		return fix(fmt.Sprintf("ulimit -n %d; for good in /etc/security/limits.conf", needFiles), "up to %d per process; etcd and the API server want %d", limit, needFiles)
	}
	return ok("up to %s per process", amount(limit))
}

// amount is a limit, which may be none.
func amount(n uint64) string {
	if n >= 1<<62 {
		return "any number"
	}
	return strconv.FormatUint(n, 10)
}

// processes: the limits count threads. The first does not hold for root.
func processes(_ context.Context, m *Machine) Finding {
	limit, err := m.Limit(rlimitProcesses)
	if err != nil {
		return unknown(err)
	}
	if m.UID != 0 && limit < needTasks {
		return fix(fmt.Sprintf("ulimit -u %d; for good in /etc/security/limits.conf", 10*needTasks), "up to %d threads of this user; a lab of three nodes wants %d", limit, needTasks)
	}
	if left, ok := m.cgroup("pids.max", "pids.current"); ok && left < needTasks {
		return fix("raise the limit: docker run --pids-limit, or TasksMax= of the systemd unit", "%d more threads in this control group; a lab of three nodes wants %d", left, needTasks)
	}
	return ok("up to %s threads of this user", amount(limit))
}

func inotify(_ context.Context, m *Machine) Finding {
	instances, err1 := m.number("/proc/sys/fs/inotify/max_user_instances")
	watches, err2 := m.number("/proc/sys/fs/inotify/max_user_watches")
	if err := errors.Join(err1, err2); err != nil {
		return unknown(err)
	}
	seen := fmt.Sprintf("%d instances and %d watches per user", instances, watches)
	const raise = "sudo sysctl fs.inotify.max_user_instances=1024 fs.inotify.max_user_watches=524288"
	switch {
	case instances < needInstances || watches < needWatches:
		return fix(raise, "%s; a lab wants %d and %d", seen, needInstances, needWatches)
	case instances <= kindInstances:
		return info(raise, "%s; a third kind cluster beside two others would want more", seen)
	}
	return ok("%s", seen)
}

func bundles(ctx context.Context, m *Machine) Finding {
	dir := filepath.Join(m.Cache, "ccmlab", "bundles")
	bytes, err := m.Size(ctx, dir)
	switch {
	case m.Cache == "" || errors.Is(err, fs.ErrNotExist):
		return ok("none unpacked")
	case err != nil:
		return unknown(err)
	}
	return info("rm -r "+dir+" (while no lab runs from it)", "unpacked bundles take %d MB", bytes>>20)
}

func containers(ctx context.Context, m *Machine) Finding {
	seen, err := m.Engine(ctx)
	if err == nil {
		return ok("%s", seen)
	}
	why, remedy := causeAndRemedy(err)
	if m.Cluster == "kind" {
		return fix(cmp.Or(remedy, "install Docker and start it: https://docs.docker.com/engine/install"), "not to be had: %s", why)
	}
	return info(remedy, "not to be had, and the embedded cluster needs none: %s", why)
}

// causeAndRemedy takes package kind's errors apart, a line for each engine: what is
// so, what mends it, and what else there is, which is left out.
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
