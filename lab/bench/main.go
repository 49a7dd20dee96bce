// bench-ccm measures what our CCM costs a cluster and a cloud, and how long both
// wait for it, at a thousand nodes: the real binaries, a genuine API server and
// a cloud that answers the CCM 20 ms late each time. It prints a table; a
// figure that misses its aim is no failure. `make bench-ccm` calls it, from the
// root of a clone.
//
// Nodes are objects and instances are records, both made by this program before
// it measures; there are no kubelets and no kube-controller-manager. All
// processes share the machine's cores, also with whatever else runs there. What
// each of them used is printed below the table.
//
// Begin with the list of figures in figures.go.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/ccmlab/ccmlab/fakecloud/bench/harness"
	"github.com/ccmlab/ccmlab/lab/dialects"
	"github.com/ccmlab/ccmlab/lab/testbed"
)

// size is how many objects there are of each kind, and how long to wait.
type size struct {
	Nodes     int           `json:"nodes"`
	Stop      int           `json:"stop"`      // of the nodes
	Terminate int           `json:"terminate"` // of the nodes
	Services  int           `json:"services"`
	Steady    time.Duration `json:"steadyNanoseconds"`
	// Settle is the pause before measuring, after nodes were initialised.
	Settle time.Duration `json:"settleNanoseconds"`
	// Bound is after how long a figure is given up. PeerBound is the same with upstream's
	// defaults.
	Bound     time.Duration `json:"boundNanoseconds"`
	PeerBound time.Duration `json:"patienceNanoseconds"`
}

var (
	full = size{
		Nodes: 1000, Stop: 500, Terminate: 100, Services: 200, Steady: 5 * time.Minute, Settle: 15 * time.Second,
		Bound: 3 * time.Minute, PeerBound: 6 * time.Minute,
	}
	quick = size{
		Nodes: 200, Stop: 100, Terminate: 20, Services: 40, Steady: 30 * time.Second, Settle: 5 * time.Second,
		Bound: time.Minute, PeerBound: 2 * time.Minute,
	}
)

// latency is added by the cloud to each answer to the CCM.
const latency = 20 * time.Millisecond

// bench is one run of this program.
type bench struct {
	*harness.Options
	size        size
	bin         string
	ccm         string // the program to measure
	dialect     string // of the cloud that it is for; "" for this one
	preset      *dialects.Preset
	flags       []string
	withoutPeer bool   // without upstream's defaults beside it
	profile     string // folder for CPU profiles of the CCM
}

func main() {
	b := bench{size: full, Options: harness.NewOptions(
		"bench-ccm", "a fifth of the size, in three minutes: the figures are not those of 1,000 nodes", figureNames(),
	)}
	nodes := flag.Int("nodes", 0, "number of nodes (default: 1,000, of -quick 200)")
	steady := flag.Duration("steady", 0, "how long the steady state is looked at (default: 5m, of -quick 30s)")
	flag.StringVar(
		&b.bin, "bin", "bin", "folder of the programs, with upstream's in its folder kube or in LAB_KUBE_BIN",
	)
	flag.StringVar(&b.ccm, "ccm", "", "the CCM to measure (default: ccm in -bin)")
	flag.StringVar(
		&b.dialect, "dialect", "", "the dialect of the cloud that -ccm is for: how soon it initialises Nodes is measured, alone",
	)
	flags := flag.String(
		"flags", "", "further flags of the CCM when it is measured with its own defaults, apart by spaces",
	)
	flag.BoolVar(
		&b.withoutPeer, "alone", false, "do not measure upstream's defaults beside ours, which takes three minutes",
	)
	flag.StringVar(
		&b.profile, "profile", "", "folder for a CPU profile of the CCM for each figure, of the first ten seconds",
	)
	flag.Parse()
	b.flags = strings.Fields(*flags)
	if b.dialect != "" { // The others look into our CCM, or take its routes and balancers for granted.
		b.withoutPeer, b.Rows = true, "init"
	}
	if b.Quick {
		b.size = quick
	}
	if *nodes > 0 {
		b.size.scaleTo(*nodes)
	}
	if *steady > 0 {
		b.size.Steady = *steady
	}
	b.Main(func(ctx context.Context) (harness.Report, error) { return b.measureFigures(ctx) })
}

// scaleTo sets the number of nodes, and changes in proportion how many of them stop and terminate.
func (s *size) scaleTo(nodes int) {
	s.Stop, s.Terminate = max(1, s.Stop*nodes/s.Nodes), max(1, s.Terminate*nodes/s.Nodes)
	s.Nodes = nodes
}

func (b *bench) measureFigures(ctx context.Context) (report, error) {
	r := report{Quick: b.Quick, Size: b.size, CCM: "fakecloud", Command: "make bench-ccm"}
	if b.ccm != "" {
		r.CCM = filepath.Base(b.ccm)
		of := "-ccm ./" + r.CCM
		if b.dialect != "" {
			of = "-dialect " + b.dialect + " " + of
		}
		r.Command += fmt.Sprintf(` BENCH=%q`, of)
	}
	if err := b.checkArguments(); err != nil {
		return r, err
	}
	r.Machine = harness.Describe(os.TempDir())
	return r, b.EachFigure(func(name string) error {
		i := slices.IndexFunc(figures, func(f figure) bool { return f.name == name })
		lines, err := figures[i].measure(ctx, b)
		r.Lines = append(r.Lines, lines...)
		return err
	})
}

func (b *bench) checkArguments() (err error) {
	if err := b.Check(); err != nil {
		return err
	}
	if b.size.Nodes > maxNodes {
		return fmt.Errorf("-nodes: %d are more than the %d that there are addresses for", b.size.Nodes, maxNodes)
	}
	if b.ccm != "" {
		if b.ccm, err = filepath.Abs(b.ccm); err != nil {
			return err
		}
	}
	b.preset = &dialects.Preset{}
	if b.dialect != "" {
		if b.preset, err = dialects.Named(b.dialect); err != nil {
			return err
		}
	}
	if b.profile != "" {
		if err := os.MkdirAll(b.profile, 0o755); err != nil {
			return err
		}
	}
	return testbed.Check(b.bedOptions())
}

// maxNodes is how many nodes fit into a bed's range of instances (a /20), and into clusterCIDR.
const maxNodes = 4000

// bedOptions are the same for every figure.
func (b *bench) bedOptions() testbed.Options {
	return testbed.Options{
		Name: "bench", Bin: b.bin,
		// This program makes and ends hundreds of instances at once; the cloud's
		// limit of calls a second is not what is measured.
		CloudFlags: []string{"--rate-limit=0"},
	}
}
