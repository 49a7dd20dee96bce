// bench-dataplane compares fakecloud's load balancers of both kinds with HAProxy, nginx's stream module
// and IPVS: the real binary, with the same backends and clients in the same run. It prints a table with
// the ratios of the proxy's figures to those of other proxies, and of the network balancer's to those of
// IPVS and of no balancer at all, and the aims for the ratios. A figure that misses its aim is no
// failure. `make bench-dataplane` calls it, from the root of a clone.
//
// Clients, balancers and each backend are in network namespaces of their own, around a switch, as a
// client, the cloud and the nodes of a lab on kind are. They are processes and share the machine's cores.
// All balancers run at the same time; the others are idle while one is measured. They are measured
// in turn, once each; whoever wants to know how much the figures vary runs it several times.
//
// Begin with figures in figures.go. machines.go makes the network, stage.go runs what a figure needs;
// tcp.go, udp.go, idle.go and restart.go measure.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/ccmlab/ccmlab/fakecloud/bench/harness"
)

// size says how many clients there are, and how long is measured.
type size struct {
	Warm      time.Duration `json:"warmNanoseconds"`
	Period    time.Duration `json:"periodNanoseconds"`
	Streams   int           `json:"streams"` // of throughput
	Clients   int           `json:"clients"` // of all other figures
	Rate      int           `json:"requestsPerSecond"`
	Idle      int           `json:"idleConnections"`
	Window    int           `json:"datagramsOutstanding"` // of each client
	Balancers int           `json:"balancers"`            // of the figure restart
}

var (
	fullSize = size{
		Warm: 500 * time.Millisecond, Period: 3 * time.Second, Streams: 8, Clients: 64, Rate: 5000, Idle: 10_000,
		Window: 8, Balancers: 100,
	}
	quickSize = size{
		Warm: 50 * time.Millisecond, Period: 200 * time.Millisecond, Streams: 4, Clients: 16, Rate: 1000, Idle: 200,
		Window: 8, Balancers: 10,
	}
)

// bench is one run of the benchmark.
type bench struct {
	*harness.Options
	size   size
	binary string
	self   string   // this program's file, which also runs as the backends
	peers  []string // to compare with
	dir    string   // folder of all files that the run writes
	*machines
}

func main() {
	// Not for users: the backends run as this program, in a process of their own.
	if len(os.Args) > 2 && os.Args[1] == backendsCommand {
		fmt.Fprintln(os.Stderr, runBackends(os.Args[2:]))
		os.Exit(1)
	}
	enterNamespace()
	b := bench{Options: harness.NewOptions("bench-dataplane", harness.QuickSizes, rowNames()), size: fullSize}
	peers := flag.String("peers", strings.Join(peerNames(), ","), "what to measure beside fakecloud's balancers, or none")
	flag.StringVar(&b.binary, "binary", filepath.Join("bin", "fakecloud"), "the cloud to measure")
	idle := flag.Int("idle", 0, "number of idle connections (default: 10,000, of -quick 200)")
	dir := flag.String("dir", "", "folder for what the run writes (default: the system's for temporary files)")
	flag.Parse()
	if b.Quick {
		b.size = quickSize
	}
	if *idle > 0 {
		b.size.Idle = *idle
	}
	if *peers != "none" {
		b.peers = strings.Split(*peers, ",")
	}
	b.Main(func(ctx context.Context) (harness.Report, error) { return b.run(ctx, *dir) })
}

func (b *bench) run(ctx context.Context, dir string) (_ harness.Report, err error) {
	if err := b.checkFlags(); err != nil {
		return nil, err
	}
	if b.binary, err = filepath.Abs(b.binary); err != nil {
		return nil, err
	}
	if _, err := os.Stat(b.binary); err != nil {
		return nil, fmt.Errorf("-binary: %w; make build builds it", err)
	}
	if b.self, err = os.Executable(); err != nil {
		return nil, err
	}
	if b.dir, err = harness.WorkDir(dir, b.Name); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(b.dir)) }()
	if b.machines, err = newMachines(); err != nil {
		return nil, err
	}
	defer b.close()
	r := &report{Quick: b.Quick, Machine: harness.Describe(b.dir), Peers: peerVersions(ctx, b.peers)}
	if err := b.raiseFiles(r); err != nil {
		return nil, err
	}
	r.Size = b.size
	// New processes for each figure, so that figures do not affect each other.
	return r, b.EachFigure(func(name string) error {
		i := slices.IndexFunc(figures, func(f figure) bool { return f.name == name })
		row, err := b.measureFigure(ctx, figures[i])
		if err == nil {
			r.Rows = append(r.Rows, row)
		}
		return err
	})
}

func (b *bench) checkFlags() error {
	if err := b.Check(); err != nil {
		return err
	}
	for _, name := range b.peers {
		if !slices.Contains(peerNames(), name) {
			return fmt.Errorf("-peers: no %q: choose from %s, or none", name, strings.Join(peerNames(), ","))
		}
	}
	return nil
}

func (b *bench) measureFigure(ctx context.Context, f figure) (row, error) {
	s, err := b.setUp(ctx, f)
	defer s.killProcesses()
	if err != nil {
		return row{}, err
	}
	samples, err := s.measureContenders(ctx, f)
	if err != nil {
		return row{}, err
	}
	return f.makeRow(s, samples, !b.Quick), nil
}

// spareFiles is how many files a process opens beside its connections.
const spareFiles = 300

// raiseFiles raises the limit of open files for this process and its children. If the limit cannot
// be high enough, it lowers the number of idle connections, of which each takes two of the
// proxy's files.
func (b *bench) raiseFiles(r *report) error {
	var l syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &l); err != nil {
		return err
	}
	need := uint64(2*b.size.Idle + spareFiles)
	more := syscall.Rlimit{Cur: max(l.Max, need), Max: max(l.Max, need)}
	if syscall.Setrlimit(syscall.RLIMIT_NOFILE, &more) == nil { // Only root can raise the hard limit.
		return nil
	}
	more = syscall.Rlimit{Cur: l.Max, Max: l.Max}
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &more); err != nil {
		return err
	}
	if l.Max < need {
		b.size.Idle = int(l.Max-min(l.Max, spareFiles)) / 2
		r.Notes = append(
			r.Notes,
			fmt.Sprintf("a process may open %d files here (ulimit -Hn): only %d idle connections", l.Max, b.size.Idle),
		)
	}
	return nil
}
