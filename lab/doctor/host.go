package doctor

// Checks of the operating system, the tools, the resources and their limits.

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"go/version"
	"io/fs"
	"math/bits"
	"path"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/ccmlab/ccmlab/fakecloud/certs"
	"github.com/ccmlab/ccmlab/lab/state"
)

const (
	// NeedGo is the version of Go in go.mod.
	NeedGo = "1.26.0"
	// needKernel is the first kernel with pidfd_open(2), by which no process is mistaken for
	// another.
	needKernel = "5.3"
	// needMemory, in MB, is what a lab of three nodes takes, with a reserve.
	needMemory = 1500
	// needDisk, in MB, is somewhat above what one lab's folder grows to in an
	// hour. buildDisk, in MB, is what Go's cache grows to at the first build.
	needDisk  = 500
	buildDisk = 8 << 10
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

// checkClock finds a clock that was set back: then certificates and leases are not valid yet.
func checkClock(_ context.Context, m *Machine) Finding {
	now, stamp := m.Now(), "2006-01-02 15:04 MST"
	const fixed = "set the clock: timedatectl set-ntp true"
	if now.Before(m.Built) {
		return fixFinding(
			fixed, "it is %s, and the lab was built later, at %s", now.Format(stamp), m.Built.Format(stamp),
		)
	}
	all, _ := m.Labs()
	finding := okFinding("%s", now.Format(stamp))
	for _, l := range all {
		if l.State == nil || !now.Before(l.State.StartedAt) {
			continue
		}
		made := fmt.Sprintf(
			"it is %s, and lab %s was made later, at %s", now.Format(stamp), l.Name, l.State.StartedAt.Format(stamp),
		)
		if now.Before(l.State.StartedAt.Add(-certs.Margin)) {
			return fixFinding(
				fixed+"; or make the lab anew: lab down --name "+l.Name, "%s: its certificates are not valid yet", made,
			)
		}
		finding = infoFinding(
			fixed, "%s: its certificates are valid all the same, and its timeline is out of order", made,
		)
	}
	return finding
}

func checkPrograms(_ context.Context, m *Machine) Finding {
	if len(m.Missing) > 0 {
		return fixFinding("make build", "missing: %s", strings.Join(m.Missing, ", "))
	}
	return okFinding("all in %s and %s", m.Bin, m.Kube)
}

// buildToolFinding is a finding about a tool that only building needs. It must be fixed where
// programs are still to be built.
func (m *Machine) buildToolFinding(remedy, format string, args ...any) Finding {
	if len(m.Missing) > 0 {
		return fixFinding(remedy, format, args...)
	}
	return infoFinding(remedy+" (to build; what is built runs without)", format, args...)
}

func checkGo(ctx context.Context, m *Machine) Finding {
	install := "install Go " + NeedGo + " or newer: https://go.dev/dl"
	file, err := m.Find("go")
	if err != nil {
		return m.buildToolFinding(install, "not in PATH")
	}
	output, err := m.Run(ctx, "", file, "version")
	if err != nil {
		return m.buildToolFinding(install, "%s: %v", file, err)
	}
	// go version go1.26.8 linux/amd64
	fields := strings.Fields(output)
	if len(fields) < 3 || !version.IsValid(fields[2]) {
		return infoFinding("", "%s says of itself: %s", file, output)
	}
	if version.Compare(fields[2], "go"+NeedGo) < 0 {
		return m.buildToolFinding(install, "%s is %s", file, fields[2])
	}
	return okFinding("%s, %s", fields[2], file)
}

// checkGCC has gcc compile and link a program, statically as the build does. A compiler without
// the static half of the C library fails.
func checkGCC(ctx context.Context, m *Machine) Finding {
	install := "install gcc and the C library's headers, such as: sudo apt-get install gcc libc6-dev (the cloud's database, SQLite, is C)"
	compiler := cmp.Or(m.Getenv("CC"), "gcc")
	file, err := m.Find(strings.Fields(compiler)[0])
	if err != nil {
		return m.buildToolFinding(install, "%s is not in PATH", compiler)
	}
	if _, err := m.Run(
		ctx, "#include <stdio.h>\nint main(void) { return puts(\"\") < 0; }\n", file, "-x", "c", "-static", "-o",
		"/dev/null", "-",
	); err != nil {
		return m.buildToolFinding(install, "%s compiles nothing: %v", file, err)
	}
	return okFinding("%s compiles", file)
}

func checkTools(_ context.Context, m *Machine) Finding {
	var missing, found []string
	for _, tool := range []string{"make", "git", "curl"} {
		if _, err := m.Find(tool); err != nil {
			missing = append(missing, tool)
		} else {
			found = append(found, tool)
		}
	}
	switch {
	case len(missing) == 0:
		return okFinding("%s", strings.Join(found, ", "))
	case strings.Contains(strings.Join(missing, " "), "make"):
		return m.buildToolFinding("install make", "not in PATH: %s", strings.Join(missing, ", "))
	}
	return infoFinding(
		"git is for the sources, curl to ask the load balancers", "not in PATH: %s", strings.Join(missing, ", "),
	)
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
		highest, err1 := m.readNumber(path.Join(folder, limit))
		used, err2 := m.readNumber(path.Join(folder, current))
		if err1 == nil && err2 == nil {
			if stat, err := m.Read(path.Join(folder, "memory.stat")); err == nil && limit == "memory.max" {
				var cached uint64
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

func checkDisk(ctx context.Context, m *Machine) Finding {
	if m.HomeErr != nil {
		return unknownFinding(m.HomeErr)
	}
	free, err := m.Space(m.Home)
	if err != nil {
		return unknownFinding(err)
	}
	if free>>20 < needDisk {
		return fixFinding(
			"free some space, or set CCMLAB_HOME to a folder on another disk", "%d MB free for %s; a lab wants %d",
			free>>20, m.Home, needDisk,
		)
	}
	text := fmt.Sprintf("%d MB free for %s", free>>20, m.Home)
	if len(m.Missing) == 0 {
		return okFinding("%s", text)
	}
	cache, err := m.Run(ctx, "", "go", "env", "GOCACHE")
	if err != nil {
		return okFinding("%s", text)
	}
	if free, err = m.Space(cache); err == nil && free>>20 < buildDisk {
		return infoFinding(
			"free some space, or set GOCACHE to a folder on another disk",
			"%s, %d MB for Go's cache, %s, which grows to some %d at the first build", text, free>>20, cache, buildDisk,
		)
	}
	return okFinding("%s, %d MB for Go's cache", text, free>>20)
}

func checkFolder(_ context.Context, m *Machine) Finding {
	if m.HomeErr != nil {
		return fixFinding(state.OwnFolderAdvice, "%v", m.HomeErr)
	}
	if err := m.Writable(m.Home); err != nil {
		return fixFinding(state.OwnFolderAdvice, "%s: %v", m.Home, err)
	}
	// As it will be for a lab: the folder of all labs may be sticky.
	if err := m.Private(filepath.Join(m.Home, "lab")); err != nil {
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

// formatLimit shows a limit, or that there is none.
func formatLimit(n uint64) string {
	if n >= 1<<62 {
		return "any number"
	}
	return strconv.FormatUint(n, 10)
}

// checkProcesses checks both limits, which count threads. The user's does not hold for root.
func checkProcesses(_ context.Context, m *Machine) Finding {
	limit, err := m.Limit(rlimitProcesses)
	if err != nil {
		return unknownFinding(err)
	}
	if m.UID != 0 && limit < needTasks {
		return fixFinding(
			fmt.Sprintf("ulimit -u %d; for good in /etc/security/limits.conf", 10*needTasks),
			"up to %d threads of this user; a lab of three nodes wants %d", limit, needTasks,
		)
	}
	if left, ok := m.leftInCgroup("pids.max", "pids.current"); ok && left < needTasks {
		return fixFinding(
			"raise the limit: docker run --pids-limit, or TasksMax= of the systemd unit",
			"%d more threads in this control group; a lab of three nodes wants %d", left, needTasks,
		)
	}
	return okFinding("up to %s threads of this user", formatLimit(limit))
}

// InotifyPerLab is how many inotify instances an embedded lab takes, however many nodes it has: its
// CCM two, its agent one. A test in lab/e2e counts them.
const InotifyPerLab = 3

// raiseInotify is the command that raises inotify's limits until the machine is restarted.
const raiseInotify = "sudo sysctl fs.inotify.max_user_instances=1024 fs.inotify.max_user_watches=524288"

func checkInotify(_ context.Context, m *Machine) Finding {
	instances, err1 := m.readNumber("/proc/sys/fs/inotify/max_user_instances")
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
	instances, err := m.readNumber("/proc/sys/fs/inotify/max_user_instances")
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

func checkBundles(ctx context.Context, m *Machine) Finding {
	dir := filepath.Join(m.Cache, "ccmlab", "bundles")
	bytes, err := m.Size(ctx, dir)
	switch {
	case m.Cache == "" || errors.Is(err, fs.ErrNotExist):
		return okFinding("none unpacked")
	case err != nil:
		return unknownFinding(err)
	}
	return infoFinding("rm -r "+dir+" (while no lab runs from it)", "unpacked bundles take %d MB", bytes>>20)
}

func checkContainerEngine(ctx context.Context, m *Machine) Finding {
	engine, err := m.Engine(ctx)
	if err == nil {
		return okFinding("%s", engine)
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
