package soak

import (
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"runtime/debug"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/ccmlab/ccmlab/fakecloud/bench/harness"
)

const (
	// maxHeap and maxResident are how much memory, in MiB, may grow from the warm
	// state to the end. A connection takes some hundred bytes in its balancer while
	// it is open: if they leaked for only one connection in ten, a million would
	// leave ten MiB on the heap. Resident memory, which includes stacks and holes in
	// the heap, varies by some ten MiB.
	maxHeap     = 8
	maxResident = 48
	// maxLoss is of how many datagrams one may be lost without a crash: in a full
	// socket buffer on a busy machine, or on its way when the target is taken out.
	maxLoss = 100
)

// figures are what this process uses at one time. Memory is in MiB.
type figures struct {
	files, goroutines int
	heap, resident    float64
}

// currentFigures measures the figures. Without /proc, files and resident memory are 0.
func currentFigures() figures {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	f := figures{
		files: harness.FilesOf(os.Getpid()), goroutines: runtime.NumGoroutine(), heap: float64(m.HeapAlloc) / (1 << 20),
	}
	if resident, _, err := harness.MemoryOf(os.Getpid()); err == nil {
		f.resident = float64(resident) / (1 << 20)
	}
	return f
}

// figuresAfterGC measures the figures after collecting garbage, which also closes the pipes that
// sync.Pool keeps for splicing.
func figuresAfterGC() figures {
	for range 3 {
		runtime.GC()
	}
	debug.FreeOSMemory()
	return currentFigures()
}

// settledFigures measures the figures, repeatedly for some time until there are no more files and
// goroutines than before: some end a little later.
func settledFigures(were figures) figures {
	deadline := time.Now().Add(5 * time.Second)
	if were.goroutines == 0 {
		deadline = time.Now().Add(500 * time.Millisecond)
	}
	for {
		f := figuresAfterGC()
		if f.files <= were.files && f.goroutines <= were.goroutines || time.Now().After(deadline) {
			return f
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// excessOver is an error if there are more files or goroutines than before.
func (f figures) excessOver(were figures, when string) error {
	var errs []error
	if f.files > were.files {
		errs = append(errs, fmt.Errorf("%d files are open %s, %d were before", f.files, when, were.files))
	}
	if f.goroutines > were.goroutines {
		errs = append(errs, fmt.Errorf("%d goroutines run %s, %d did before", f.goroutines, when, were.goroutines))
	}
	return errors.Join(errs...)
}

// report is the result of a soak.
type report struct {
	limit, took                           time.Duration
	wanted                                int64 // connections
	made, crashed, failed                 int64
	clients, datagramsSent, datagramsLost int64
	sessions, fewestOpen                  int64 // fewestOpen: the fewest that were open at a crash
	changes, crashes                      int64
	// before the balancers; warm; after all connections; after the balancers
	before, begin, end, after figures
	errs                      []error
}

// memoryGrowth is an error if memory has grown by more than is allowed.
func (r report) memoryGrowth() error {
	var errs []error
	if grown := r.end.heap - r.begin.heap; grown > maxHeap {
		errs = append(errs, fmt.Errorf("the heap grew by %.1f MiB, more than %d", grown, maxHeap))
	}
	if grown := r.end.resident - r.begin.resident; grown > maxResident {
		errs = append(errs, fmt.Errorf("resident memory grew by %.1f MiB, more than %d", grown, maxResident))
	}
	return errors.Join(errs...)
}

func (r report) printReport(w io.Writer) {
	fmt.Fprintf(w, "%d connections in %v (%.0f/s): %d failed, %d crashed with a target\n",
		r.made, r.took.Round(time.Second), float64(r.made)/r.took.Seconds(), r.failed, r.crashed)
	fmt.Fprintf(
		w, "%d datagrams: %d lost\n%d changes of targets, %d crashes, each with %d sessions open or more\n\n",
		r.datagramsSent, r.datagramsLost, r.changes, r.crashes, r.fewestOpen,
	)
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(table, strings.Join([]string{"", "files", "goroutines", "heap MiB", "resident MiB", ""}, "\t"))
	for _, row := range []struct {
		when string
		figures
	}{{"before", r.before}, {"begin", r.begin}, {"end", r.end}, {"after", r.after}} {
		fmt.Fprintf(table, "%s\t%d\t%d\t%.1f\t%.1f\t\n", row.when, row.files, row.goroutines, row.heap, row.resident)
	}
	_ = table.Flush()
}
