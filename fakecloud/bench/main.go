// bench-cloud measures fakecloud as users run it: the real binary in a process of its own,
// over loopback, with its data on disk. It prints a table with the target beside each
// figure. A figure that misses its target is no failure. `make bench-cloud` calls it, from
// the root of a clone.
//
// The clients share the machine's cores with the server, and the processor time that they
// take lowers the server's figures. So they are lean: they write and read HTTP/1.1 by hand
// on keep-alive connections, and check every status. The peer, a vSphere simulator, is
// measured with the same clients.
//
// Begin with figures in figures.go. load.go makes the calls, changes.go and events.go what
// the figures are measured on.
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
	"time"

	"github.com/ccmlab/ccmlab/fakecloud/bench/machine"
)

// size says how many resources, clients and watchers there are, and how long is measured.
type size struct {
	Clients       int           `json:"clients"`
	Instances     int           `json:"instances"`
	Balancers     int           `json:"balancers"`
	Watchers      int           `json:"watchers"`
	ChangesPerSec int           `json:"changesPerSecond"`
	Warm          time.Duration `json:"warmNanoseconds"`
	Period        time.Duration `json:"periodNanoseconds"`
	// Creates is how many instances the create row may create beyond those stored.
	Creates  int64 `json:"creates"`
	Restarts int   `json:"restarts"`
}

var (
	fullSize = size{
		Clients: 64, Instances: 10_000, Balancers: 1_000, Watchers: 200, ChangesPerSec: 500, Warm: 2 * time.Second,
		Period: 10 * time.Second, Creates: 20_000, Restarts: 3,
	}
	quickSize = size{
		Clients: 16, Instances: 200, Balancers: 20, Watchers: 10, ChangesPerSec: 50, Warm: 200 * time.Millisecond,
		Period: time.Second, Creates: 200, Restarts: 1,
	}
)

// bench is one run of the benchmark.
type bench struct {
	size           size
	quick          bool
	binary         string
	peer           string // folder of the peer's module
	dir            string // folder of all files that the run writes
	rateLimitFlags []string
	quotas         bool // the measured cloud has quotas

	cloud     *machine.Cloud
	instances []string // IDs of the stored ones
	pages     []string // tokens of the full pages of the list, without the first page
}

func main() {
	b := bench{size: fullSize}
	rows := flag.String("rows", strings.Join(rowNames(), ","), "the figures to measure")
	flag.BoolVar(&b.quick, "quick", false, "small sizes, for a test that it works: the figures mean nothing")
	output := flag.String("o", "table", "table or json")
	flag.StringVar(&b.binary, "binary", filepath.Join("bin", "fakecloud"), "the cloud to measure")
	flag.StringVar(&b.peer, "peer", filepath.Join("fakecloud", "bench", "peer"), "folder of the peer's module")
	dir := flag.String(
		"dir", "", "folder in which the data are, for its file system (default: the system's for temporary files)",
	)
	flag.Parse()
	err := machine.RunUntilInterrupted(func(ctx context.Context) error {
		return b.run(ctx, *dir, strings.Split(*rows, ","), *output)
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench-cloud:", err)
		os.Exit(1)
	}
}

func (b *bench) run(ctx context.Context, dir string, names []string, output string) (err error) {
	if err := machine.CheckFlags(output, names, rowNames()); err != nil {
		return err
	}
	if b.quick {
		b.size = quickSize
	}
	if b.binary, err = filepath.Abs(b.binary); err != nil {
		return err
	}
	if b.dir, err = machine.WorkDir(dir, "bench-cloud"); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(b.dir)) }()
	if b.rateLimitFlags, err = rateLimitFlags(ctx, b.binary); err != nil {
		return err
	}
	r := report{Quick: b.quick, Size: b.size, Machine: machine.Describe(b.dir)}
	err = b.measureRows(ctx, names, &r)
	if len(r.Rows) == 0 {
		return err
	}
	// Rows that were measured before an error are printed all the same.
	return errors.Join(err, r.print(os.Stdout, output))
}

// measureRows measures the rows of the cloud, and the peer's rows after the cloud has ended.
func (b *bench) measureRows(ctx context.Context, names []string, r *report) error {
	own := slices.DeleteFunc(slices.Clone(names), func(n string) bool { return n == peerRow })
	if len(own) > 0 {
		if err := b.measureCloud(ctx, own, r); err != nil {
			return err
		}
	}
	if slices.Contains(names, peerRow) {
		b.logProgress("the peer")
		r.Rows = append(r.Rows, b.measurePeer(ctx, r)...)
	}
	return ctx.Err()
}

func (b *bench) measureCloud(ctx context.Context, names []string, r *report) error {
	defer b.killCloud()
	err := b.startCloud(ctx)
	if err != nil {
		return err
	}
	if r.Server, err = b.inspectServer(ctx); err != nil {
		return err
	}
	if err := b.fillCloud(ctx); err != nil {
		return err
	}
	for _, f := range figures {
		if !slices.Contains(names, f.name) {
			continue
		}
		b.logProgress("%s", f.name)
		row, err := f.measure(b, ctx)
		if err != nil {
			return fmt.Errorf("%s: %w", f.name, err)
		}
		r.Rows = append(r.Rows, row)
	}
	return nil
}

// killCloud kills the running cloud, if there is one.
func (b *bench) killCloud() {
	if b.cloud != nil {
		b.cloud.Kill()
	}
}

// logProgress prints a line about the progress to stderr.
func (b *bench) logProgress(format string, a ...any) {
	fmt.Fprintf(os.Stderr, "%s "+format+" …\n", append([]any{time.Now().Format(time.TimeOnly)}, a...)...)
}
