package doctor

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/procfs"
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
	// Home is the folder of all labs; "" if it is not known.
	Home string
	// Missing are the lab's programs that do not exist. Our own programs are in Bin, upstream's in
	// Kube. Built is when the lab command was built.
	Missing   []string
	Bin, Kube string
	Built     time.Time

	Now    func() time.Time
	Getenv func(name string) string
	// Read reads a file, of /proc and /sys mostly.
	Read func(file string) ([]byte, error)
	// FreeSpace is the free space, in bytes, where Home is or would be made.
	FreeSpace func() (uint64, error)
	// CheckHome fails if Home is not known, cannot be written to, or is open to others.
	CheckHome func() error
	// Listen listens on an address for a moment, to see whether that is possible.
	Listen func(network, address string) error
	// Listeners are the TCP sockets that listen, whoever's they are.
	Listeners func() ([]Listener, error)
	// Holder names the process that has a socket if this user may know, else the user.
	Holder func(Listener) string
	// Limit is the hard limit of a resource, up to which this user may raise the limit.
	Limit func(resource int) (uint64, error)
	// InotifyInUse counts the inotify instances that this user's processes have.
	InotifyInUse func() (uint64, error)
	// Leftovers are this user's processes of labs whose folder was deleted.
	Leftovers func() ([]process.Found, error)
	// Engine names the container engine and the image that a kind cluster would use.
	Engine func(ctx context.Context) (string, error)
}

// ThisMachine is the machine that this program runs on.
func ThisMachine(clusterKind string) *Machine {
	m := &Machine{
		OS: runtime.GOOS, Arch: runtime.GOARCH, UID: os.Geteuid(), Cluster: clusterKind,
		Now: time.Now, Getenv: os.Getenv, Read: os.ReadFile,
		Listen: tryListen, Listeners: tcpListeners, Holder: socketHolder, Limit: hardLimit,
		InotifyInUse: countInotify, Leftovers: leftovers,
	}
	var unknown error
	m.Home, unknown = state.Root()
	m.FreeSpace = func() (uint64, error) {
		if unknown != nil {
			return 0, unknown
		}
		return process.FreeSpace(nearestExisting(m.Home))
	}
	m.CheckHome = func() error {
		if unknown != nil {
			return unknown
		}
		if err := unix.Access(nearestExisting(m.Home), unix.W_OK|unix.X_OK); err != nil {
			return fmt.Errorf("%s: %w", m.Home, err)
		}
		// As it will be for a lab: the folder of all labs may be sticky.
		return state.CheckPrivate(filepath.Join(m.Home, "lab"))
	}
	if bin, err := cluster.FindBinaries("", ""); err == nil {
		m.Bin, m.Kube, m.Missing = bin.Dir, bin.Kube, bin.Missing(cluster.KindNamed(cluster.KindEmbedded).Programs(1))
	}
	if self, err := os.Executable(); err == nil {
		if info, err := os.Stat(self); err == nil {
			m.Built = info.ModTime()
		}
	}
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

// leftovers lists processes of deleted labs. Root sees those of other users, too, but need not fix
// anything about them.
func leftovers() ([]process.Found, error) {
	all, err := process.All()
	return slices.DeleteFunc(all, func(p process.Found) bool { return !p.BelongsToUser() || !state.Deleted(p.Lab) }), err
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

// Listener is a TCP socket that listens. A wildcard of IPv6 stands for both families.
type Listener struct {
	Address netip.AddrPort
	UID     int
	Inode   uint64
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
	sockets6, _ := proc.NetTCP6() // There is none without IPv6.
	for _, s := range append(sockets, sockets6...) {
		if address, ok := netip.AddrFromSlice(s.LocalAddr); ok && s.St == tcpListen {
			all = append(all, Listener{netip.AddrPortFrom(address, uint16(s.LocalPort)), int(s.UID), s.Inode})
		}
	}
	return all, err
}

func socketHolder(l Listener) string {
	processes, _ := procfs.AllProcs()
	for _, p := range processes {
		if files, _ := p.FileDescriptorTargets(); slices.Contains(files, fmt.Sprintf("socket:[%d]", l.Inode)) {
			name, _ := p.Comm()
			return fmt.Sprintf("%s (pid %d)", name, p.PID)
		}
	}
	return state.UserName(l.UID)
}

// countInotify looks at the open files of all processes of this user. The kernel counts by user,
// not by process.
func countInotify() (count uint64, err error) {
	processes, err := procfs.AllProcs()
	for _, p := range processes {
		if !(&process.Process{PID: p.PID}).BelongsToUser() {
			continue
		}
		files, _ := p.FileDescriptorTargets() // None if it has ended.
		for _, file := range files {
			if file == "anon_inode:inotify" {
				count++
			}
		}
	}
	return count, err
}
