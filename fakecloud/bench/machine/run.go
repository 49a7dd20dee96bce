package machine

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
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
)

// RunUntilInterrupted calls run with a context that ends on SIGINT and SIGTERM.
func RunUntilInterrupted(run func(ctx context.Context) error) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	err := run(ctx)
	if ctx.Err() != nil {
		return errors.New("interrupted")
	}
	return err
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

// Selects tells whether a value of -rows selects a figure: "throughput" selects both
// throughput-down and throughput-up.
func Selects(row, figure string) bool { return row == figure || strings.HasPrefix(figure, row+"-") }

// CheckFlags checks the flags that every benchmark has: -o and -rows.
func CheckFlags(output string, rows, figures []string) error {
	if output != "table" && output != "json" {
		return fmt.Errorf("-o %q: choose table or json", output)
	}
	for _, row := range rows {
		if !slices.ContainsFunc(figures, func(figure string) bool { return Selects(row, figure) }) {
			return fmt.Errorf("-rows: no figure %q: choose from %s", row, strings.Join(figures, ","))
		}
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

// PrintJSON prints a report.
func PrintJSON(out io.Writer, report any) error {
	e := json.NewEncoder(out)
	e.SetIndent("", "  ")
	return e.Encode(report)
}

// PrintTable prints the rows of a report. The last column says whether a figure meets its
// target; nil means that this is unknown. An empty cell becomes a dash.
func PrintTable[R any](out io.Writer, header string, rows []R, cells func(R) ([]string, *bool)) error {
	t := tabwriter.NewWriter(out, 0, 0, 3, ' ', 0)
	_, _ = fmt.Fprintf(t, "\n%s\tHOLDS\n", header)
	for _, r := range rows {
		shown, holds := cells(r)
		verdict := ""
		if holds != nil {
			verdict = map[bool]string{true: "✓", false: "✗"}[*holds]
		}
		shown = append(shown, verdict)
		for i, cell := range shown {
			shown[i] = cmp.Or(cell, "-")
		}
		_, _ = fmt.Fprintln(t, strings.Join(shown, "\t"))
	}
	return t.Flush()
}
