// bench-dataplane measures fakecloud's load balancers beside HAProxy and
// nginx's stream module: the real binary, the same backends, the same clients,
// the same run. It prints a table of medians, with how many times the peer's
// figure ours is and what that is to be; a figure that misses its aim is no
// failure. `make bench-dataplane` calls it, from the root of a clone.
//
// Proxies, backends and clients are processes of their own and share the
// machine's cores. All proxies are there at once, and idle while another is
// measured; they are measured in turn, several times around, so that noise hits
// all alike. All traffic is on loopback.
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

	"github.com/ccmlab/ccmlab/fakecloud/bench/machine"
)

// size says how much is sent and waited for.
type size struct {
	Rounds    int           `json:"rounds"`
	Warm      time.Duration `json:"warmNanoseconds"`
	Period    time.Duration `json:"periodNanoseconds"`
	Streams   int           `json:"streams"` // of throughput
	Clients   int           `json:"clients"` // of all else
	Rate      int           `json:"requestsPerSecond"`
	Idle      int           `json:"idleConnections"`
	Window    int           `json:"datagramsOutstanding"` // of each client
	Balancers int           `json:"balancers"`            // over a restart
}

var (
	full  = size{Rounds: 3, Warm: 500 * time.Millisecond, Period: 3 * time.Second, Streams: 8, Clients: 64, Rate: 5000, Idle: 10_000, Window: 8, Balancers: 100}
	quick = size{Rounds: 1, Warm: 50 * time.Millisecond, Period: 200 * time.Millisecond, Streams: 4, Clients: 16, Rate: 1000, Idle: 200, Window: 8, Balancers: 10}
)

// bench is one run.
type bench struct {
	size   size
	quick  bool
	binary string
	self   string   // this program, which also is the backends
	peers  []string // to measure beside the cloud
	dir    string   // holds all that the run writes
}

func main() {
	// Not for users: the backends are this program in a process of its own.
	if len(os.Args) > 2 && os.Args[1] == backendsCommand {
		exit(runBackends(os.Args[2:]))
	}
	b := bench{size: full}
	rows := flag.String("rows", strings.Join(rowNames(), ","), "the figures to measure; \"requests\" is also \"requests-paced\"")
	peers := flag.String("peers", strings.Join(peerNames(), ","), "what to measure beside fakecloud, or none")
	flag.BoolVar(&b.quick, "quick", false, "small sizes, for a test that it works: the figures mean nothing")
	output := flag.String("o", "table", "table or json")
	flag.StringVar(&b.binary, "binary", filepath.Join("bin", "fakecloud"), "the cloud to measure")
	idle := flag.Int("idle", 0, "number of idle connections (default: 10,000, of -quick 200)")
	dir := flag.String("dir", "", "folder for what the run writes (default: the system's for temporary files)")
	flag.Parse()
	if b.quick {
		b.size = quick
	}
	if *idle > 0 {
		b.size.Idle = *idle
	}
	if *peers != "none" {
		b.peers = strings.Split(*peers, ",")
	}
	exit(machine.RunUntilInterrupted(func(ctx context.Context) error { return b.run(ctx, *dir, strings.Split(*rows, ","), *output) }))
}

func exit(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench-dataplane:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

func (b *bench) run(ctx context.Context, dir string, names []string, output string) (err error) {
	if err := b.check(names, output); err != nil {
		return err
	}
	if b.binary, err = filepath.Abs(b.binary); err != nil {
		return err
	}
	if _, err := os.Stat(b.binary); err != nil {
		return fmt.Errorf("-binary: %w; make build builds it", err)
	}
	if b.self, err = os.Executable(); err != nil {
		return err
	}
	if b.dir, err = machine.WorkDir(dir, "bench-dataplane"); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(b.dir)) }()
	r := report{Quick: b.quick, Machine: machine.Look(b.dir), Peers: versions(ctx, b.peers)}
	if err := b.raiseFiles(&r); err != nil {
		return err
	}
	r.Size = b.size
	err = b.measure(ctx, names, &r)
	if len(r.Rows) == 0 {
		return err
	}
	// What was measured before something went wrong is still so.
	return errors.Join(err, r.print(os.Stdout, output))
}

func (b *bench) check(names []string, output string) error {
	if err := machine.CheckFlags(output, names, rowNames()); err != nil {
		return err
	}
	for _, name := range b.peers {
		if !slices.Contains(peerNames(), name) {
			return fmt.Errorf("-peers: no %q: choose from %s, or none", name, strings.Join(peerNames(), ","))
		}
	}
	return nil
}

// measure has fresh processes for each figure: none is measured on what
// another left behind.
func (b *bench) measure(ctx context.Context, names []string, r *report) error {
	for _, f := range figures {
		if !slices.ContainsFunc(names, func(name string) bool { return machine.Chooses(name, f.name) }) {
			continue
		}
		fmt.Fprintf(os.Stderr, "%s %s …\n", time.Now().Format(time.TimeOnly), f.name)
		row, err := b.figure(ctx, f)
		if err != nil {
			return fmt.Errorf("%s: %w", f.name, err)
		}
		r.Rows = append(r.Rows, row)
	}
	return nil
}

func (b *bench) figure(ctx context.Context, f figure) (row, error) {
	s, err := b.setUp(ctx, f)
	defer s.end()
	if err != nil {
		return row{}, err
	}
	samples, err := s.rounds(ctx, f)
	if err != nil {
		return row{}, err
	}
	return f.row(s, samples, !b.quick), nil
}

// spareFiles are what a process opens beside its connections.
const spareFiles = 300

// raiseFiles lets us and our children have as many open files as may be, and
// the idle connections be as many as a proxy then can have, two files each.
func (b *bench) raiseFiles(r *report) error {
	var l syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &l); err != nil {
		return err
	}
	need := uint64(2*b.size.Idle + spareFiles)
	more := syscall.Rlimit{Cur: max(l.Max, need), Max: max(l.Max, need)}
	if syscall.Setrlimit(syscall.RLIMIT_NOFILE, &more) == nil { // Root may.
		return nil
	}
	more = syscall.Rlimit{Cur: l.Max, Max: l.Max}
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &more); err != nil {
		return err
	}
	if l.Max < need {
		b.size.Idle = int(l.Max-min(l.Max, spareFiles)) / 2
		r.Notes = append(r.Notes, fmt.Sprintf("a process may open %d files here (ulimit -Hn): only %d idle connections", l.Max, b.size.Idle))
	}
	return nil
}
