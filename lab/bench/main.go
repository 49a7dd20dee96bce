// bench-ccm measures how soon a CCM initialises a thousand tainted Nodes, with how many calls to the cloud, and
// what it uses at rest: the real binaries, a genuine API server and a cloud that answers the CCM 20 ms late each
// time. A figure that misses its aim is no failure. `make bench-ccm` calls it, from the root of a clone.
//
// Nodes are objects and instances are records, both made by this program before it measures; there are no
// kubelets and no kube-controller-manager. All processes share the machine's cores, also with whatever else runs
// there. Begin with measureAll; bed.go has what is measured on.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/prometheus/procfs"

	"github.com/ccmlab/ccmlab/fakecloud/clikit"
	"github.com/ccmlab/ccmlab/lab/dialects"
	"github.com/ccmlab/ccmlab/lab/testbed"
)

const (
	// latency is added by the cloud to each answer to the CCM.
	latency = 20 * time.Millisecond
	// fullSize is the number of Nodes that the aims are for.
	fullSize = 1000
	// maxNodes is how many instances fit into a bed's range, a /20.
	maxNodes = 4000
	// What initialising fullSize Nodes should take at most.
	initAim, initCallsAim = 8 * time.Second, 10
)

// upstreamDefaults are the defaults of k8s.io/cloud-provider: config/v1alpha1/defaults.go, and those of
// controllers/node and controllers/service.
var upstreamDefaults = []string{
	"--concurrent-node-syncs=1", "--concurrent-node-status-updates=1", "--concurrent-service-syncs=1",
	"--kube-api-qps=20", "--kube-api-burst=30",
	"--node-monitor-period=5s", "--node-status-update-frequency=5m", "--route-reconciliation-period=10s",
}

// bench is one run of this program.
type bench struct {
	nodes   int
	rows    string
	steady  time.Duration // how long the CCM is watched at rest
	settle  time.Duration // the pause before
	bound   time.Duration // of initialising the Nodes
	alone   bool          // without upstream's defaults beside ours
	bin     string
	ccm     string // the program to measure; "" is ours
	dialect string // of the cloud that it is for; "" is this one
	preset  *dialects.Preset
	flags   []string
}

func main() {
	b := bench{bound: 6 * time.Minute, settle: 15 * time.Second}
	quick := flag.Bool("quick", false, "200 Nodes and half a minute at rest, in two minutes")
	output := flag.String("o", "table", "table or json")
	flags := flag.String("flags", "", "further flags of the CCM, apart by spaces")
	flag.IntVar(&b.nodes, "nodes", 0, "number of Nodes (default: 1,000, of -quick 200)")
	flag.DurationVar(&b.steady, "steady", 0, "how long the CCM is watched at rest (default: 5m, of -quick 30s)")
	flag.StringVar(&b.rows, "rows", "init,steady", "what to measure")
	flag.StringVar(&b.bin, "bin", "bin", "folder of the programs, upstream's in its folder kube or in LAB_KUBE_BIN")
	flag.StringVar(&b.ccm, "ccm", "", "the CCM to measure (default: ccm in -bin)")
	flag.StringVar(&b.dialect, "dialect", "", "the dialect of the cloud that -ccm is for: only init is measured, alone")
	flag.BoolVar(&b.alone, "alone", false, "do not measure upstream's defaults beside ours, which takes three minutes")
	flag.Parse()
	b.flags = strings.Fields(*flags)
	b.setDefaults(*quick)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	r, err := b.measureAll(ctx, *output)
	stop()
	// Rows that were measured before an error are printed all the same.
	if len(r.Lines) > 0 {
		err = errors.Join(err, r.writeTo(os.Stdout, *output))
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "bench-ccm: %v\n", err)
		os.Exit(1)
	}
}

func (b *bench) setDefaults(quick bool) {
	nodes, steady := fullSize, 5*time.Minute
	if quick {
		nodes, steady, b.settle = 200, 30*time.Second, 5*time.Second
	}
	if b.nodes == 0 {
		b.nodes = nodes
	}
	if b.steady == 0 {
		b.steady = steady
	}
	if b.dialect != "" {
		b.alone, b.rows = true, "init"
	}
}

func (b *bench) checkFlags(output string) (err error) {
	if output != "table" && output != "json" {
		return fmt.Errorf("-o %q: choose table or json", output)
	}
	for row := range strings.SplitSeq(b.rows, ",") {
		if row != "init" && row != "steady" {
			return fmt.Errorf("-rows: there is no row %q: choose from init,steady", row)
		}
	}
	if b.nodes < 1 || b.nodes > maxNodes {
		return fmt.Errorf("-nodes %d: choose from 1 to %d, for which there are addresses", b.nodes, maxNodes)
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
	return testbed.Check(b.bedOptions())
}

// measureAll measures the CCM with its own defaults and then, unless it is alone, our provider without its cache and
// with upstream's defaults, in a cluster of its own.
func (b *bench) measureAll(ctx context.Context, output string) (report, error) {
	r := report{CCM: "fakecloud", Command: "make bench-ccm", Size: size{b.nodes}, Machine: describeMachine()}
	if b.ccm != "" {
		r.CCM = filepath.Base(b.ccm)
		of := "-ccm ./" + r.CCM
		if b.dialect != "" {
			of = "-dialect " + b.dialect + " " + of
		}
		r.Command += fmt.Sprintf(` BENCH=%q`, of)
	}
	if err := b.checkFlags(output); err != nil {
		return r, err
	}
	if err := b.measureOwnDefaults(ctx, &r); err != nil || b.alone {
		return r, err
	}
	peer, err := b.openBed(ctx)
	if err != nil {
		return r, err
	}
	defer peer.closeBed(&err)
	v, err := peer.measureInit(ctx, []string{"FAKECLOUD_CACHE=false"}, upstreamDefaults)
	r.Lines[0].Peer = &v
	return r, err
}

func (b *bench) measureOwnDefaults(ctx context.Context, r *report) (err error) {
	ours, err := b.openBed(ctx)
	if err != nil {
		return err
	}
	defer ours.closeBed(&err)
	v, err := ours.measureInit(ctx, nil, b.flags)
	if err != nil {
		return err
	}
	l := line{Name: "init", Figure: fmt.Sprintf("%d tainted Nodes: last taint lifted", b.nodes), Ours: v}
	if b.nodes == fullSize {
		holds := v.Left == 0 && v.Seconds <= initAim.Seconds() && v.Taken.Calls <= initCallsAim
		l.Aim, l.Holds = fmt.Sprintf("≤ %.0f s, ≤ %d calls", initAim.Seconds(), initCallsAim), &holds
	}
	r.Lines = append(r.Lines, l)
	if !strings.Contains(b.rows, "steady") {
		return nil
	}
	if v.Left > 0 {
		return fmt.Errorf("%d of %d Nodes were not initialised within %s: there is no rest", v.Left, b.nodes, b.bound)
	}
	v, err = ours.measureRest(ctx)
	if err == nil {
		r.Lines = append(r.Lines, line{
			Name: "steady", Figure: fmt.Sprintf("%d initialised Nodes at rest, %s", b.nodes, b.steady), Ours: v,
		})
	}
	return err
}

// report is everything that is printed. `lab conformance table` reads its JSON.
type report struct {
	// CCM is the program that was measured, and Command what does so again.
	CCM     string `json:"ccm"`
	Command string `json:"command"`
	Machine string `json:"machine"`
	Size    size   `json:"size"`
	Lines   []line `json:"lines"`
}

type size struct {
	Nodes int `json:"nodes"`
}

// line is one line of the table.
type line struct {
	Name   string `json:"name"`
	Figure string `json:"figure"`
	Ours   value  `json:"ours"`
	// Peer is our provider without its cache, with upstream's defaults.
	Peer  *value `json:"upstreamDefaultsNoCache,omitempty"`
	Aim   string `json:"aim,omitempty"`
	Holds *bool  `json:"holds,omitempty"`
}

// value is the result of one measurement.
type value struct {
	// Seconds is the time that it took. If Left Nodes were not done within the bound, it is the bound.
	Seconds float64 `json:"seconds"`
	Left    int     `json:"left,omitempty"`
	Taken   taken   `json:"taken"`
	CPU     float64 `json:"cpuSeconds"` // the CCM's
	// Memory is what the CCM has resident at the end, Peak the most since its start, in bytes.
	Memory int64 `json:"residentBytes"`
	Peak   int64 `json:"peakBytes"`
}

// taken are the CCM's calls to the cloud.
type taken struct {
	Calls int64            `json:"calls"`
	By    map[string]int64 `json:"callsByOperation"`
}

func (v value) String() string {
	what := fmt.Sprintf("%.1f s", v.Seconds)
	if v.Left > 0 {
		what = fmt.Sprintf("%d not within %.0f s", v.Left, v.Seconds)
	}
	return fmt.Sprintf("%s, %d calls, %.2f CPU s, %d MiB (at most %d)",
		what, v.Taken.Calls, v.CPU, v.Memory>>20, v.Peak>>20)
}

// callList shows the calls by operation.
func (v value) callList() string {
	var calls []string
	for _, op := range slices.Sorted(maps.Keys(v.Taken.By)) {
		calls = append(calls, fmt.Sprintf("%s %d", op, v.Taken.By[op]))
	}
	return strings.Join(calls, ", ")
}

// formatRatio compares the peer's time and calls with ours. Where the peer was not done when its time was up, the
// first is a lower bound.
func (l line) formatRatio() string {
	if l.Peer == nil || l.Ours.Left > 0 || l.Ours.Seconds == 0 {
		return ""
	}
	atLeast := ""
	if l.Peer.Left > 0 {
		atLeast = "≥ "
	}
	return fmt.Sprintf("%s%.1f× / %.0f×", atLeast, l.Peer.Seconds/l.Ours.Seconds,
		float64(l.Peer.Taken.Calls)/float64(max(1, l.Ours.Taken.Calls)))
}

func (r report) writeTo(out io.Writer, output string) error {
	if output == "json" {
		return clikit.PrintData(out, output, r)
	}
	_, _ = fmt.Fprintf(out, "%s\n%d Nodes as objects; each answer of the cloud to the CCM is late by %s; "+
		"all programs share the cores\n\n", r.Machine, r.Size.Nodes, latency)
	var rows [][]string
	for _, l := range r.Lines {
		peer, holds := "", ""
		if l.Peer != nil {
			peer = l.Peer.String()
		}
		if l.Holds != nil {
			holds = map[bool]string{true: "✓", false: "✗"}[*l.Holds]
		}
		rows = append(rows, []string{l.Figure, l.Ours.String(), peer, l.formatRatio(), l.Aim, holds})
	}
	header := []string{"FIGURE", "OURS", "UPSTREAM'S DEFAULTS, NO CACHE", "RATIO", "AIM", "HOLDS"}
	if err := clikit.WriteTable(out, header, rows); err != nil {
		return err
	}
	for _, l := range r.Lines {
		_, _ = fmt.Fprintf(out, "%s: calls: %s\n", l.Name, l.Ours.callList())
	}
	return nil
}

// describeMachine says where the figures come from. A busy machine makes them worse, so its load is told.
func describeMachine() string {
	cpu, load := runtime.GOARCH, "unknown"
	if proc, err := procfs.NewDefaultFS(); err == nil {
		if cpus, err := proc.CPUInfo(); err == nil && len(cpus) > 0 && cpus[0].ModelName != "" {
			cpu = cpus[0].ModelName
		}
		if avg, err := proc.LoadAvg(); err == nil {
			load = fmt.Sprintf("%.1f", avg.Load1)
		}
	}
	return fmt.Sprintf("%d cores (%s), %s, load before: %s", runtime.NumCPU(), cpu, runtime.Version(), load)
}
