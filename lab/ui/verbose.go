package ui

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"strings"
)

// Verbose is what --verbose shows beside the steps: all that is logged with slog, of level debug,
// too. Each line is written at once. On a terminal it replaces the line of the step that runs.
func Verbose(f *os.File) slog.Handler {
	return &verboseHandler{w: f, wipe: Terminal(f), color: Colored(f)}
}

type verboseHandler struct {
	w           io.Writer
	wipe, color bool
	attrs       []slog.Attr
}

func (v *verboseHandler) Enabled(context.Context, slog.Level) bool { return true }

func (v *verboseHandler) Handle(_ context.Context, r slog.Record) error {
	var b strings.Builder
	_, _ = fmt.Fprint(&b, " · ", r.Message)
	writeAttr := func(a slog.Attr) bool {
		_, _ = fmt.Fprintf(&b, "  %s: %s", a.Key, a.Value)
		return true
	}
	for _, a := range v.attrs {
		writeAttr(a)
	}
	r.Attrs(writeAttr)
	line := Paint(v.color, "2", b.String()) + "\n"
	if v.wipe {
		line = "\r\033[K" + line
	}
	_, err := io.WriteString(v.w, line)
	return err
}

func (v *verboseHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	with := *v
	with.attrs = slices.Concat(v.attrs, attrs)
	return &with
}

// WithGroup ignores the group: no two attributes here have the same name.
func (v *verboseHandler) WithGroup(string) slog.Handler { return v }
