package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ccmlab/ccmlab/lab/cluster"
	_ "github.com/ccmlab/ccmlab/lab/cluster/kinds" // So that they are registered.
	"github.com/ccmlab/ccmlab/lab/process"
	"github.com/ccmlab/ccmlab/lab/state"
)

// Machine is the machine as the checks see it. Whatever they ask is a function, so that a test can
// put another machine in the place of this one.
type Machine struct {
	OS, Arch string
	UID      int
	// Cluster is the kind of cluster that the user wants.
	Cluster string
	// Home is the folder of all labs; "" if it is not known, for the reason in HomeErr. Cache is
	// the user's cache folder, or "".
	Home, Cache string
	HomeErr     error
	// Missing are the lab's programs that do not exist. Our own programs are in Bin, upstream's in
	// Kube. Built is when the lab command was built.
	Missing   []string
	Bin, Kube string
	Built     time.Time

	Now    func() time.Time
	Getenv func(name string) string
	// Read reads a file, of /proc and /sys mostly.
	Read func(file string) ([]byte, error)
	// Space is the free space, in bytes, where a folder is or would be made.
	Space    func(dir string) (uint64, error)
	Writable func(dir string) error
	Private  func(dir string) error // state.CheckPrivate
	Exists   func(dir string) bool
	Deleted  func(dir string) bool // state.Deleted
	// Size is the size of all files in a folder, in bytes.
	Size func(ctx context.Context, dir string) (int64, error)
	// Find finds a program in PATH. Run runs a program, and returns its output.
	Find func(program string) (string, error)
	Run  func(ctx context.Context, stdin, program string, args ...string) (string, error)
	// Listen listens on an address for a moment, to see whether that is possible.
	Listen func(network, address string) error
	// Listeners are the TCP sockets that listen, whoever's they are.
	Listeners func() ([]Listener, error)
	// Limit is the hard limit of a resource, up to which this user may raise the limit.
	Limit func(resource int) (uint64, error)
	// Holder names the process that has the socket with this inode, if this user may know.
	Holder func(inode string) string
	User   func(uid int) string
	// InotifyInUse counts the inotify instances that this user's processes have.
	InotifyInUse func() (uint64, error)
	// Labs are the labs that have a folder. A lab whose record cannot be read has no State.
	Labs func() ([]Lab, error)
	// Processes are the processes of this user's labs.
	Processes func() ([]process.Found, error)
	// Engine names the container engine and the image that a kind cluster would use.
	Engine func(ctx context.Context) (string, error)
}

// Lab is a lab that has a folder.
type Lab struct {
	Name, Dir string
	State     *state.Lab
}

// ThisMachine is the machine that this program runs on.
func ThisMachine(clusterKind string) *Machine {
	m := &Machine{
		OS: runtime.GOOS, Arch: runtime.GOARCH, UID: os.Geteuid(), Cluster: clusterKind,
		Now: time.Now, Getenv: os.Getenv, Read: os.ReadFile, Find: exec.LookPath,
		Space:    func(dir string) (uint64, error) { return process.FreeSpace(nearestExisting(dir)) },
		Writable: func(dir string) error { return unix.Access(nearestExisting(dir), unix.W_OK|unix.X_OK) },
		Private:  state.CheckPrivate,
		Exists:   func(dir string) bool { _, err := os.Stat(dir); return err == nil },
		Deleted:  state.Deleted,
		Size:     folderSize, Run: runProgram, Listen: tryListen, Listeners: tcpListeners, Limit: hardLimit, Holder: socketHolder,
		User: state.UserName, Processes: ownProcesses, InotifyInUse: countInotify,
	}
	m.Home, m.HomeErr = state.Root()
	m.Cache, _ = os.UserCacheDir()
	if bin, err := cluster.FindBinaries("", ""); err == nil {
		m.Bin, m.Kube, m.Missing = bin.Dir, bin.Kube, bin.Missing(cluster.KindNamed(cluster.KindEmbedded).Programs(1))
	}
	if self, err := os.Executable(); err == nil {
		if info, err := os.Stat(self); err == nil {
			m.Built = info.ModTime()
		}
	}
	m.Labs = func() ([]Lab, error) { return listLabs(m.Home) }
	m.Engine = func(ctx context.Context) (string, error) {
		var chosen state.Lab
		if err := cluster.KindNamed(cluster.KindKind).
			Choose(ctx, &chosen, cluster.Settings{}, cluster.Binaries{Dir: m.Bin}); err != nil {
			return "", err
		}
		return fmt.Sprintf("%s runs; nodes would be %s", chosen.Kind.Engine, chosen.Kind.Image), nil
	}
	return m
}

// nearestExisting is the folder, or the nearest one above that exists, in which it would be made.
func nearestExisting(dir string) string {
	for {
		if _, err := os.Stat(dir); err == nil || dir == filepath.Dir(dir) {
			return dir
		}
		dir = filepath.Dir(dir)
	}
}

// ownProcesses are the processes of this user's labs. Root sees those of other users, too, but
// need not fix anything about them.
func ownProcesses() ([]process.Found, error) {
	all, err := process.All()
	return slices.DeleteFunc(all, func(p process.Found) bool { return !p.BelongsToUser() }), err
}

func listLabs(home string) (all []Lab, err error) {
	names, err := state.List()
	for _, name := range names {
		dir := filepath.Join(home, name)
		st, _ := state.OpenDir(dir) // A damaged lab is listed, too.
		all = append(all, Lab{Name: name, Dir: dir, State: st})
	}
	return all, err
}

func folderSize(ctx context.Context, dir string) (total int64, err error) {
	err = filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return errors.Join(err, ctx.Err())
		}
		info, err := d.Info()
		if err == nil {
			total += info.Size()
		}
		return err
	})
	return total, err
}

func runProgram(ctx context.Context, stdin, program string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, program, args...)
	// In a module's folder go.mod would choose the go command.
	cmd.Dir = os.TempDir()
	cmd.Env = append(process.Unmarked(), "GOTOOLCHAIN=local") // Nothing is downloaded.
	cmd.Stdin = strings.NewReader(stdin)
	cmd.WaitDelay = 100 * time.Millisecond
	out, err := cmd.Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) && len(exit.Stderr) > 0 {
		line, _, _ := strings.Cut(strings.TrimSpace(string(exit.Stderr)), "\n")
		err = fmt.Errorf("%w: %s", err, line)
	}
	return strings.TrimSpace(string(out)), err
}

func tryListen(network, address string) error {
	if strings.HasPrefix(network, "udp") {
		c, err := net.ListenPacket(network, address)
		if err != nil {
			return err
		}
		return c.Close()
	}
	l, err := net.Listen(network, address)
	if err != nil {
		return err
	}
	return l.Close()
}

func hardLimit(resource int) (uint64, error) {
	var l unix.Rlimit
	err := unix.Getrlimit(resource, &l)
	return l.Max, err
}

func socketHolder(inode string) string {
	files, _ := filepath.Glob("/proc/[0-9]*/fd/*")
	for _, file := range files {
		if to, err := os.Readlink(file); err == nil && to == "socket:["+inode+"]" {
			pid := strings.Split(file, "/")[2]
			name, _ := os.ReadFile(filepath.Join("/proc", pid, "comm"))
			return fmt.Sprintf("%s (pid %s)", strings.TrimSpace(string(name)), pid)
		}
	}
	return ""
}

// countInotify looks at the open files of all processes of this user. The kernel counts by user,
// not by process.
func countInotify() (count uint64, err error) {
	processes, err := filepath.Glob("/proc/[0-9]*")
	for _, process := range processes {
		var owner unix.Stat_t
		if unix.Stat(process, &owner) != nil || int(owner.Uid) != os.Geteuid() {
			continue
		}
		files, _ := os.ReadDir(process + "/fd") // None if it has ended.
		for _, file := range files {
			if to, _ := os.Readlink(process + "/fd/" + file.Name()); to == "anon_inode:inotify" {
				count++
			}
		}
	}
	return count, err
}

// rlimitProcesses is the limit of a user's threads.
const rlimitProcesses = unix.RLIMIT_NPROC
