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

// RunUntilInterrupted has ctx end with the user's patience.
func RunUntilInterrupted(run func(ctx context.Context) error) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	err := run(ctx)
	if ctx.Err() != nil {
		return errors.New("interrupted")
	}
	return err
}

// Sleep is for periods that are part of what is measured. It ends with ctx, too.
func Sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Chooses tells whether a row asked for is this figure: "throughput" is both
// throughput-down and throughput-up.
func Chooses(row, figure string) bool { return row == figure || strings.HasPrefix(figure, row+"-") }

// CheckFlags checks what every benchmark can be told: -o and -rows.
func CheckFlags(output string, rows, figures []string) error {
	if output != "table" && output != "json" {
		return fmt.Errorf("-o %q: choose table or json", output)
	}
	for _, row := range rows {
		if !slices.ContainsFunc(figures, func(figure string) bool { return Chooses(row, figure) }) {
			return fmt.Errorf("-rows: no figure %q: choose from %s", row, strings.Join(figures, ","))
		}
	}
	return nil
}

// WorkDir makes a folder below dir, or where temporary files are.
func WorkDir(dir, name string) (string, error) {
	made, err := os.MkdirTemp(dir, name+"-")
	if err != nil {
		return "", err
	}
	return filepath.Abs(made)
}

// PrintJSON shows a whole report.
func PrintJSON(out io.Writer, report any) error {
	e := json.NewEncoder(out)
	e.SetIndent("", "  ")
	return e.Encode(report)
}

// PrintTable shows the rows of a report. The last column says whether a figure
// holds, nil that nobody can say. A cell without text is a dash.
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
