package ui

// What `--verbose` tells, beside the steps: each line is written at once, and
// first wipes out the step's line that is being drawn over.

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"strings"
)

// Verbose shows what the lab's parts tell with slog, debugging among it.
func Verbose(f *os.File) slog.Handler {
	return &verbose{w: f, wipe: Terminal(f), color: Colored(f)}
}

type verbose struct {
	w           io.Writer
	wipe, color bool
	attrs       []slog.Attr
}

func (v *verbose) Enabled(context.Context, slog.Level) bool { return true }

func (v *verbose) Handle(_ context.Context, r slog.Record) error {
	var b strings.Builder
	_, _ = fmt.Fprint(&b, " · ", r.Message)
	tell := func(a slog.Attr) bool {
		_, _ = fmt.Fprintf(&b, "  %s: %s", a.Key, a.Value)
		return true
	}
	for _, a := range v.attrs {
		tell(a)
	}
	r.Attrs(tell)
	line := paint(v.color, "2", b.String()) + "\n"
	if v.wipe {
		line = "\r\033[K" + line
	}
	_, err := io.WriteString(v.w, line)
	return err
}

func (v *verbose) WithAttrs(attrs []slog.Attr) slog.Handler {
	with := *v
	with.attrs = slices.Concat(v.attrs, attrs)
	return &with
}

// WithGroup leaves the group out: nothing here has names that meet.
func (v *verbose) WithGroup(string) slog.Handler { return v }
