package doctor

// The machine as the checks see it. Each question is a function, so that a test
// can put any machine in the place of this one.

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

	"github.com/ccmlab/ccmlab/lab/cluster/embedded"
	"github.com/ccmlab/ccmlab/lab/cluster/kind"
	"github.com/ccmlab/ccmlab/lab/cluster/local"
	"github.com/ccmlab/ccmlab/lab/process"
	"github.com/ccmlab/ccmlab/lab/state"
)

// Machine is what is asked of a machine.
type Machine struct {
	OS, Arch string
	UID      int
	// Cluster is the kind of cluster that is wanted.
	Cluster string
	// Home is the folder of all labs, Cache the user's; "" if there is none,
	// for the reason in HomeErr.
	Home, Cache string
	HomeErr     error
	// Missing are the lab's programs that are not there; Bin and Kube are where
	// they were looked for. Built is when the lab command was.
	Missing   []string
	Bin, Kube string
	Built     time.Time

	Now    func() time.Time
	Getenv func(name string) string
	// Read reads a file, of /proc and /sys mostly.
	Read func(file string) ([]byte, error)
	// Space is what is free, in bytes, where a folder is or would be made.
	Space    func(dir string) (uint64, error)
	Writable func(dir string) error
	Exists   func(dir string) bool
	Deleted  func(dir string) bool // state.Deleted
	// Size is of all files in a folder.
	Size func(ctx context.Context, dir string) (int64, error)
	// Find looks for a program in PATH, Run runs one.
	Find func(program string) (string, error)
	Run  func(ctx context.Context, stdin, program string, args ...string) (string, error)
	// Listen tries whether an address can be listened on.
	Listen func(network, address string) error
	// Limit is the highest that this user may raise a limit to.
	Limit func(resource int) (uint64, error)
	// Holder names the process that has a socket, if this user may know.
	Holder func(inode string) string
	User   func(uid int) string
	// Labs are those that have a folder; one that cannot be read has no State.
	Labs func() ([]Lab, error)
	// Processes are those of this user's labs.
	Processes func() ([]process.Found, error)
	// Engine says what a kind cluster would run on.
	Engine func(ctx context.Context) (string, error)
}

// Lab is one that has a folder.
type Lab struct {
	Name, Dir string
	State     *state.Lab
}

// This is the machine that this program runs on.
func This(cluster string) *Machine {
	m := &Machine{
		OS: runtime.GOOS, Arch: runtime.GOARCH, UID: os.Geteuid(), Cluster: cluster,
		Now: time.Now, Getenv: os.Getenv, Read: os.ReadFile, Find: exec.LookPath,
		Space:    func(dir string) (uint64, error) { return process.Space(existing(dir)) },
		Writable: func(dir string) error { return unix.Access(existing(dir), unix.W_OK|unix.X_OK) },
		Exists:   func(dir string) bool { _, err := os.Stat(dir); return err == nil },
		Deleted:  state.Deleted,
		Size:     size, Run: run, Listen: listen, Limit: limit, Holder: holder, User: state.UserName, Processes: mine,
	}
	m.Home, m.HomeErr = state.Root()
	m.Cache, _ = os.UserCacheDir()
	if bin, err := local.FindBinaries("", ""); err == nil {
		m.Bin, m.Kube, m.Missing = bin.Dir, bin.Kube, bin.Missing(embedded.OwnPrograms, embedded.NeededPrograms(1))
	}
	if self, err := os.Executable(); err == nil {
		if info, err := os.Stat(self); err == nil {
			m.Built = info.ModTime()
		}
	}
	m.Labs = func() ([]Lab, error) { return labsIn(m.Home) }
	m.Engine = func(ctx context.Context) (string, error) {
		k, err := kind.Choose(ctx, "", "", m.Bin)
		if err != nil {
			return "", err
		}
		return fmt.Sprintf("%s runs; nodes would be %s", k.Engine, k.Image), nil
	}
	return m
}

// existing is the folder, or the nearest above it that is there: where the rest
// would be made.
func existing(dir string) string {
	for {
		if _, err := os.Stat(dir); err == nil || dir == filepath.Dir(dir) {
			return dir
		}
		dir = filepath.Dir(dir)
	}
}

// mine are the processes of this user's labs: those of others are not to be mended
// by this one, who may be root and see them.
func mine() ([]process.Found, error) {
	all, err := process.All()
	return slices.DeleteFunc(all, func(p process.Found) bool { return !p.Mine() }), err
}

func labsIn(home string) (all []Lab, err error) {
	names, err := state.List()
	for _, name := range names {
		dir := filepath.Join(home, name)
		st, _ := state.OpenDir(dir) // One that is damaged is there too.
		all = append(all, Lab{Name: name, Dir: dir, State: st})
	}
	return all, err
}

func size(ctx context.Context, dir string) (total int64, err error) {
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

func run(ctx context.Context, stdin, program string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Dir = os.TempDir()                                    // Not a module's: its go.mod would choose the go command.
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

func listen(network, address string) error {
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

func limit(resource int) (uint64, error) {
	var l unix.Rlimit
	err := unix.Getrlimit(resource, &l)
	return l.Max, err
}

func holder(inode string) string {
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
