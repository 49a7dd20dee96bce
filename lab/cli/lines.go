package cli

import (
	"bytes"
	"fmt"
	"regexp"
	"strings"
	"sync"
	"time"
)

// lines prints whole lines of several writers.
type lines struct {
	out    screen
	prefix bool
	since  time.Time

	mu    sync.Mutex
	width int
	count int
}

// prefixWidth bounds the column of names: a longer one moves its own lines only.
const prefixWidth = 24

func newLines(out screen, names []string, prefix bool, since time.Time) *lines {
	l := &lines{out: out, prefix: prefix, since: since}
	for _, name := range names {
		l.width = max(l.width, min(len(name), prefixWidth))
	}
	return l
}

// prefixColors tell components apart on a terminal.
var prefixColors = []string{"36", "33", "32", "35", "34", "96", "93", "92", "95", "94"}

// of is where a component writes to.
func (l *lines) of(name string) *lineWriter {
	l.mu.Lock()
	defer l.mu.Unlock()
	w := &lineWriter{to: l, skipping: !l.since.IsZero()}
	if l.prefix {
		w.prefix = l.out.paint(prefixColors[l.count%len(prefixColors)], fmt.Sprintf("%-*s | ", l.width, name))
	}
	l.count++
	return w
}

// lineWriter prints what one component writes, line by line.
type lineWriter struct {
	to       *lines
	prefix   string
	begun    []byte
	skipping bool // the last line that told its time was too old
}

func (w *lineWriter) Write(p []byte) (int, error) {
	w.begun = append(w.begun, p...)
	for {
		line, rest, ok := bytes.Cut(w.begun, []byte("\n"))
		if !ok {
			return len(p), nil
		}
		if err := w.line(string(line)); err != nil {
			return 0, err
		}
		w.begun = rest
	}
}

// end prints a last line that was not ended.
func (w *lineWriter) end() error {
	if len(w.begun) == 0 {
		return nil
	}
	return w.line(string(w.begun))
}

func (w *lineWriter) line(text string) error {
	if !w.to.since.IsZero() {
		if at, ok := lineTime(text, time.Now()); ok {
			w.skipping = at.Before(w.to.since)
		}
		if w.skipping {
			return nil
		}
	}
	w.to.mu.Lock()
	defer w.to.mu.Unlock()
	if _, err := fmt.Fprintln(w.to.out.w, w.prefix+text); err != nil {
		return writeError{err}
	}
	return nil
}

// writeError is where the lines go, not where they come from.
type writeError struct{ error }

var (
	klogTime = regexp.MustCompile(`^(?:\[\S+\] )?[IWEF](\d{4} \d{2}:\d{2}:\d{2}\.\d{6})`)
	fullTime = regexp.MustCompile(`\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}(?:\.\d+)?(?:Z|[+-]\d{2}:?\d{2})`)
)

// timeWithin is how far from a line's beginning its time is looked for.
const timeWithin = 120

// lineTime is the time at a line's beginning: klog's, which has no year and no
// zone, or one of RFC 3339, as slog writes, or zap's, which has no colon in its
// zone.
func lineTime(line string, now time.Time) (time.Time, bool) {
	line = line[:min(len(line), timeWithin)]
	if m := klogTime.FindStringSubmatch(line); m != nil {
		at, err := time.ParseInLocation("2006 0102 15:04:05.000000", fmt.Sprint(now.Year(), " ", m[1]), now.Location())
		if err == nil && at.After(now.AddDate(0, 0, 1)) { // Of last December.
			at = at.AddDate(-1, 0, 0)
		}
		return at, err == nil
	}
	text := fullTime.FindString(line)
	layout := time.RFC3339Nano
	if zone := text[max(0, len(text)-5):]; len(zone) == 5 && strings.ContainsAny(zone[:1], "+-") {
		layout = "2006-01-02T15:04:05.999999999-0700"
	}
	at, err := time.Parse(layout, text)
	return at, err == nil
}
