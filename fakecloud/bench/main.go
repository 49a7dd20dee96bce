// bench-cloud measures fakecloud as its users meet it: the real binary in a
// process of its own, over loopback, its data on disk. It prints a table with
// the target beside each figure; a figure that misses its target is no failure.
// `make bench-cloud` calls it, from the root of a clone.
//
// The clients share the machine's cores with the server, so they are lean:
// HTTP/1.1 written and read by hand on keep-alive connections, every status
// checked. All they take is the server's loss, as the figures mean it. The peer
// is asked by the same clients.
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

// size says how much is stored, asked and waited for.
type size struct {
	Clients       int           `json:"clients"`
	Instances     int           `json:"instances"`
	Balancers     int           `json:"balancers"`
	Watchers      int           `json:"watchers"`
	ChangesPerSec int           `json:"changesPerSecond"`
	Warm          time.Duration `json:"warmNanoseconds"`
	Period        time.Duration `json:"periodNanoseconds"`
	// Creates bounds what a create row may make beyond what is stored.
	Creates  int64 `json:"creates"`
	Restarts int   `json:"restarts"`
}

var (
	full  = size{Clients: 64, Instances: 10_000, Balancers: 1_000, Watchers: 200, ChangesPerSec: 500, Warm: 2 * time.Second, Period: 10 * time.Second, Creates: 20_000, Restarts: 3}
	quick = size{Clients: 16, Instances: 200, Balancers: 20, Watchers: 10, ChangesPerSec: 50, Warm: 200 * time.Millisecond, Period: time.Second, Creates: 200, Restarts: 1}
)

// bench is one run.
type bench struct {
	size   size
	quick  bool
	binary string
	peer   string // the folder of the peer's module
	dir    string // holds all that the run writes
	limits []string
	quotas bool // the cloud has some

	cloud     *machine.Cloud
	instances []string // IDs of those stored
	pages     []string // tokens of the list's full pages but the first
}

func main() {
	b := bench{size: full}
	rows := flag.String("rows", strings.Join(rowNames(), ","), "the figures to measure")
	flag.BoolVar(&b.quick, "quick", false, "small sizes, for a test that it works: the figures mean nothing")
	output := flag.String("o", "table", "table or json")
	flag.StringVar(&b.binary, "binary", filepath.Join("bin", "fakecloud"), "the cloud to measure")
	flag.StringVar(&b.peer, "peer", filepath.Join("fakecloud", "bench", "peer"), "folder of the peer's module")
	dir := flag.String("dir", "", "folder in which the data are, for its file system (default: the system's for temporary files)")
	flag.Parse()
	err := machine.RunUntilInterrupted(func(ctx context.Context) error { return b.run(ctx, *dir, strings.Split(*rows, ","), *output) })
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
		b.size = quick
	}
	if b.binary, err = filepath.Abs(b.binary); err != nil {
		return err
	}
	if b.dir, err = machine.WorkDir(dir, "bench-cloud"); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(b.dir)) }()
	if b.limits, err = limits(ctx, b.binary); err != nil {
		return err
	}
	r := report{Quick: b.quick, Size: b.size, Machine: machine.Look(b.dir)}
	err = b.measure(ctx, names, &r)
	if len(r.Rows) == 0 {
		return err
	}
	// What was measured before something went wrong is still so.
	return errors.Join(err, r.print(os.Stdout, output))
}

// measure has the cloud's rows on one cloud, then the peer's when that is gone.
func (b *bench) measure(ctx context.Context, names []string, r *report) error {
	own := slices.DeleteFunc(slices.Clone(names), func(n string) bool { return n == peerRow })
	if len(own) > 0 {
		if err := b.measureCloud(ctx, own, r); err != nil {
			return err
		}
	}
	if slices.Contains(names, peerRow) {
		b.note("the peer")
		r.Rows = append(r.Rows, b.measurePeer(ctx, r)...)
	}
	return ctx.Err()
}

func (b *bench) measureCloud(ctx context.Context, names []string, r *report) error {
	defer b.end()
	err := b.startCloud(ctx)
	if err != nil {
		return err
	}
	if r.Server, err = b.lookAtServer(ctx); err != nil {
		return err
	}
	if err := b.fill(ctx); err != nil {
		return err
	}
	for _, f := range figures {
		if !slices.Contains(names, f.name) {
			continue
		}
		b.note("%s", f.name)
		row, err := f.measure(b, ctx)
		if err != nil {
			return fmt.Errorf("%s: %w", f.name, err)
		}
		r.Rows = append(r.Rows, row)
	}
	return nil
}

// end kills the cloud that runs now, if there is one.
func (b *bench) end() {
	if b.cloud != nil {
		b.cloud.Kill()
	}
}

// note says how far it is.
func (b *bench) note(format string, a ...any) {
	fmt.Fprintf(os.Stderr, "%s "+format+" …\n", append([]any{time.Now().Format(time.TimeOnly)}, a...)...)
}
