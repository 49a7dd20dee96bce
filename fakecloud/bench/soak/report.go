package main

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

	"github.com/ccmlab/ccmlab/fakecloud/bench/machine"
)

const (
	// maxHeap and maxResident are how much more memory, in MiB, a soak may have at
	// its end than when it was warm. A connection costs its balancer some hundred
	// bytes while it lasts: were they kept of only one in ten, a million would
	// leave ten MiB on the heap. What the kernel counts as resident, stacks and
	// holes of the heap among it, is noise up to some ten MiB.
	maxHeap     = 8
	maxResident = 48
	// maxLoss: of so many datagrams one may be lost without a crash: in a socket's
	// buffer on a busy machine, or under way when its target leaves.
	maxLoss = 100
)

// figures are what this process has at a time. Memory is in MiB.
type figures struct {
	files, goroutines int
	heap, resident    float64
}

// measure takes the figures as they are. Where /proc is not there, what it tells
// is 0.
func measure() figures {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	f := figures{goroutines: runtime.NumGoroutine(), heap: float64(m.HeapAlloc) / (1 << 20)}
	if files, err := os.ReadDir("/proc/self/fd"); err == nil {
		f.files = len(files)
	}
	if resident, _, err := machine.MemoryOf(os.Getpid()); err == nil {
		f.resident = float64(resident) / (1 << 20)
	}
	return f
}

// look measures what is in use: the garbage is collected, and with it the pipes
// that were kept for splicing.
func look() figures {
	for range 3 {
		runtime.GC()
	}
	debug.FreeOSMemory()
	return measure()
}

// settled looks until there are no more files and goroutines than there were,
// but not forever: what ends does so in its own time.
func settled(were figures) figures {
	deadline := time.Now().Add(5 * time.Second)
	if were.goroutines == 0 {
		deadline = time.Now().Add(500 * time.Millisecond)
	}
	for {
		f := look()
		if f.files <= were.files && f.goroutines <= were.goroutines || time.Now().After(deadline) {
			return f
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// beyond says which files and goroutines are more than there were.
func (f figures) beyond(were figures, when string) error {
	var errs []error
	if f.files > were.files {
		errs = append(errs, fmt.Errorf("%d files are open %s, %d were before", f.files, when, were.files))
	}
	if f.goroutines > were.goroutines {
		errs = append(errs, fmt.Errorf("%d goroutines run %s, %d did before", f.goroutines, when, were.goroutines))
	}
	return errors.Join(errs...)
}

// report is what a soak found.
type report struct {
	limit, took               time.Duration
	wanted                    int64 // connections
	made, crashed, failed     int64
	clients, told, lost       int64
	sessions, open            int64 // open at a crash, when they were fewest
	changes, crashes          int64
	before, begin, end, after figures // without balancers; warm; done; without them again
	errs                      []error
}

// memory says what has grown beyond bounds.
func (r report) memory() error {
	var errs []error
	if grown := r.end.heap - r.begin.heap; grown > maxHeap {
		errs = append(errs, fmt.Errorf("the heap grew by %.1f MiB, more than %d", grown, maxHeap))
	}
	if grown := r.end.resident - r.begin.resident; grown > maxResident {
		errs = append(errs, fmt.Errorf("resident memory grew by %.1f MiB, more than %d", grown, maxResident))
	}
	return errors.Join(errs...)
}

func (r report) print(w io.Writer) {
	fmt.Fprintf(w, "%d connections in %v (%.0f/s): %d failed, %d crashed with a target\n",
		r.made, r.took.Round(time.Second), float64(r.made)/r.took.Seconds(), r.failed, r.crashed)
	fmt.Fprintf(w, "%d datagrams: %d lost\n%d changes of targets, %d crashes, each with %d sessions open or more\n\n", r.told, r.lost, r.changes, r.crashes, r.open)
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
