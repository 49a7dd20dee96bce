// bench-cloud measures fakecloud as users run it: the real binary in a process of its own,
// over loopback, with its data on disk. It prints a table with the target beside each
// figure. A figure that misses its target is no failure. `make bench-cloud` calls it, from
// the root of a clone.
//
// The clients share the machine's cores with the server, and the processor time that they
// take lowers the server's figures.
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
	"time"

	"github.com/ccmlab/ccmlab/fakecloud/bench/harness"
	"github.com/ccmlab/ccmlab/fakecloud/client"
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
	Creates  int `json:"creates"`
	Restarts int `json:"restarts"`
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
	*harness.Options
	size   size
	binary string
	dir    string // folder of all files that the run writes

	cloud     *harness.Cloud
	client    *client.Client
	instances []string // IDs of the stored ones
	pages     []string // tokens of the full pages of the list, without the first page
}

func main() {
	b := bench{Options: harness.NewOptions("bench-cloud", harness.QuickSizes, rowNames()), size: fullSize}
	flag.StringVar(&b.binary, "binary", filepath.Join("bin", "fakecloud"), "the cloud to measure")
	dir := flag.String(
		"dir", "", "folder in which the data are, for its file system (default: the system's for temporary files)",
	)
	flag.Parse()
	b.Main(func(ctx context.Context) (harness.Report, error) { return b.run(ctx, *dir) })
}

func (b *bench) run(ctx context.Context, dir string) (_ harness.Report, err error) {
	if err := b.Check(); err != nil {
		return nil, err
	}
	if b.Quick {
		b.size = quickSize
	}
	if b.binary, err = filepath.Abs(b.binary); err != nil {
		return nil, err
	}
	if b.dir, err = harness.WorkDir(dir, b.Name); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(b.dir)) }()
	r := &report{Quick: b.Quick, Size: b.size, Machine: harness.Describe(b.dir)}
	return r, b.measureRows(ctx, r)
}

func (b *bench) measureRows(ctx context.Context, r *report) error {
	if err := b.startCloud(ctx); err != nil {
		return err
	}
	defer func() { b.cloud.Kill() }()
	if err := b.fillCloud(ctx); err != nil {
		return err
	}
	return b.EachFigure(func(name string) error {
		i := slices.IndexFunc(figures, func(f figure) bool { return f.name == name })
		row, err := figures[i].measure(b, ctx)
		if err == nil {
			r.Rows = append(r.Rows, row)
		}
		return err
	})
}

// unreachableRate is a rate limit that no client here reaches: the limiter counts, but refuses
// nothing.
const unreachableRate = "1000000"

func (b *bench) startCloud(ctx context.Context) (err error) {
	b.cloud, err = harness.StartCloud(
		ctx, b.binary, b.dir, "--rate-limit", unreachableRate, "--rate-burst", unreachableRate,
	)
	if err != nil {
		return err
	}
	b.client, err = b.cloud.NewClient(b.Name)
	if err != nil {
		b.cloud.Kill()
	}
	return err
}

// report is what is printed.
type report struct {
	Quick   bool            `json:"quick"`
	Machine harness.Machine `json:"machine"`
	Size    size            `json:"size"`
	Rows    []row           `json:"rows"`
}

// row is one line of the table.
type row struct {
	Name     string             `json:"name"`
	Figure   string             `json:"figure"`
	Measured string             `json:"measured"`
	Target   string             `json:"target,omitempty"`
	Holds    *bool              `json:"holds,omitempty"`
	Values   map[string]float64 `json:"values"` // seconds, bytes, counts and calls per second
	Note     string             `json:"note,omitempty"`
}

// Table shows the report.
func (r *report) Table() harness.Table {
	t := harness.Table{Head: []string{r.Machine.String()}, Columns: "FIGURE\tMEASURED\tTARGET"}
	if r.Machine.FileSystem == "tmpfs" {
		t.Head = append(
			t.Head, "         tmpfs keeps nothing: durable costs nothing here; choose a folder on a disk with -dir",
		)
	}
	t.Head = append(t.Head,
		fmt.Sprintf("size     %d clients on the same machine; %s instances and %s load balancers stored", r.Size.Clients,
			harness.Grouped(float64(r.Size.Instances)), harness.Grouped(float64(r.Size.Balancers))),
		"server   authentication on, validation on, audit on, rate limiting on; logs each call to a file",
	)
	if r.Quick {
		t.Head = append(t.Head, harness.QuickHead)
	}
	for _, row := range r.Rows {
		t.Rows = append(t.Rows, harness.Row{Cells: []string{row.Figure, row.Measured, row.Target}, Holds: row.Holds})
		if row.Note != "" {
			t.Notes = append(t.Notes, row.Figure+": "+row.Note)
		}
	}
	return t
}
