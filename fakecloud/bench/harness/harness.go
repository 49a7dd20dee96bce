// Package harness is what all benchmarks share: their flags, the loop over the figures,
// tables, and the machine that they run on; processes that are started and what they take;
// many calls at a time. It knows nothing of what is measured. Begin with Options.
package harness

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"golang.org/x/sync/errgroup"
)

// Options are the flags that every benchmark has.
type Options struct {
	Name   string // of the benchmark
	Quick  bool
	Output string
	Rows   string
	// Figures are the names of all figures, in the order in which they are measured.
	Figures []string
}

// NewOptions declares the flags that every benchmark has.
func NewOptions(name, quick string, figures []string) *Options {
	o := &Options{Name: name, Figures: figures}
	flag.BoolVar(&o.Quick, "quick", false, quick)
	flag.StringVar(&o.Output, "o", "table", "table or json")
	flag.StringVar(
		&o.Rows, "rows", strings.Join(figures, ","), "the figures to measure; \"name\" also selects \"name-…\"",
	)
	return o
}

// QuickSizes explains -quick where the figures depend on the size.
const QuickSizes = "small sizes, for a test that it works: the figures mean nothing"

// QuickHead says so above the table.
const QuickHead = "quick    the sizes are small: this shows that it works, the figures mean nothing"

// Selected are the figures that -rows selects: "throughput" selects both throughput-down and
// throughput-up.
func (o *Options) Selected() []string {
	rows := strings.Split(o.Rows, ",")
	return slices.DeleteFunc(slices.Clone(o.Figures), func(figure string) bool {
		return !slices.ContainsFunc(rows, func(row string) bool { return selects(row, figure) })
	})
}

func selects(row, figure string) bool { return row == figure || strings.HasPrefix(figure, row+"-") }

// Check checks the flags -o and -rows.
func (o *Options) Check() error {
	if o.Output != "table" && o.Output != "json" {
		return fmt.Errorf("-o %q: choose table or json", o.Output)
	}
	for row := range strings.SplitSeq(o.Rows, ",") {
		if !slices.ContainsFunc(o.Figures, func(figure string) bool { return selects(row, figure) }) {
			return fmt.Errorf("-rows: no figure %q: choose from %s", row, strings.Join(o.Figures, ","))
		}
	}
	return nil
}

// Main calls run with a context that ends on SIGINT and SIGTERM, and prints the report. It ends
// the process with status 1 after an error.
func (o *Options) Main(run func(context.Context) (Report, error)) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	r, err := run(ctx)
	if ctx.Err() != nil {
		err = errors.New("interrupted")
	}
	stop()
	// Rows that were measured before an error are printed all the same.
	if r != nil && len(r.Table().Rows) > 0 {
		err = errors.Join(err, Print(os.Stdout, o.Output, r))
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", o.Name, err)
		os.Exit(1)
	}
}

// EachFigure calls measure for each figure that -rows selects, until one fails.
func (o *Options) EachFigure(measure func(figure string) error) error {
	for _, figure := range o.Selected() {
		LogProgress("%s …", figure)
		if err := measure(figure); err != nil {
			return fmt.Errorf("%s: %w", figure, err)
		}
	}
	return nil
}

// LogProgress prints a line about the progress to stderr.
func LogProgress(format string, a ...any) {
	fmt.Fprintf(os.Stderr, "%s "+format+"\n", append([]any{time.Now().Format(time.TimeOnly)}, a...)...)
}

// Report is what a benchmark has measured. It is printed as JSON or as its table.
type Report interface {
	Table() Table
}

// Table is a report for people.
type Table struct {
	Head    []string // lines above the table
	Columns string   // headings, apart by tabs
	Rows    []Row
	Notes   []string // lines below the table
}

// Row is a row of a table. Holds says whether a figure meets its target; nil means that this is
// unknown.
type Row struct {
	Cells []string
	Holds *bool
}

// Print prints a report.
func Print(out io.Writer, output string, r Report) error {
	if output == "json" {
		e := json.NewEncoder(out)
		e.SetIndent("", "  ")
		return e.Encode(r)
	}
	t := r.Table()
	for _, line := range t.Head {
		_, _ = fmt.Fprintln(out, line)
	}
	w := tabwriter.NewWriter(out, 0, 0, 3, ' ', 0)
	_, _ = fmt.Fprintf(w, "\n%s\tHOLDS\n", t.Columns)
	for _, row := range t.Rows {
		verdict := ""
		if row.Holds != nil {
			verdict = map[bool]string{true: "✓", false: "✗"}[*row.Holds]
		}
		cells := append(slices.Clone(row.Cells), verdict)
		for i, cell := range cells {
			cells[i] = cmp.Or(cell, "-")
		}
		_, _ = fmt.Fprintln(w, strings.Join(cells, "\t"))
	}
	if err := w.Flush(); err != nil {
		return err
	}
	for _, line := range t.Notes {
		_, _ = fmt.Fprintln(out, line)
	}
	return nil
}

// WorkDir makes a folder in dir or, if that is empty, in the system's temporary folder.
func WorkDir(dir, name string) (string, error) {
	made, err := os.MkdirTemp(dir, name+"-")
	if err != nil {
		return "", err
	}
	return filepath.Abs(made)
}

// Sleep waits for d, or until ctx ends. It is for periods of a measurement, not for polling.
func Sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// ForAll calls do for each number below n, up to limit at the same time. After the first error
// it begins no more.
func ForAll(ctx context.Context, n, limit int, do func(ctx context.Context, i int) error) error {
	all, ctx := errgroup.WithContext(ctx)
	all.SetLimit(limit)
	for i := range n {
		all.Go(func() error {
			if err := ctx.Err(); err != nil {
				return err
			}
			return do(ctx, i)
		})
	}
	return all.Wait()
}
