package cli

import (
	"bytes"
	"fmt"
	"regexp"
	"strings"
	"sync"
	"time"
)

// logLines prints whole lines of several writers.
type logLines struct {
	out    screen
	prefix bool
	since  time.Time

	mu          sync.Mutex
	width       int
	writerCount int
}

// maxPrefixWidth bounds the column of names: a longer one moves its own lines only.
const maxPrefixWidth = 24

func newLogLines(out screen, names []string, prefix bool, since time.Time) *logLines {
	l := &logLines{out: out, prefix: prefix, since: since}
	for _, name := range names {
		l.width = max(l.width, min(len(name), maxPrefixWidth))
	}
	return l
}

// prefixColors tell components apart on a terminal.
var prefixColors = []string{"36", "33", "32", "35", "34", "96", "93", "92", "95", "94"}

// writerFor is where a component writes to.
func (l *logLines) writerFor(name string) *lineWriter {
	l.mu.Lock()
	defer l.mu.Unlock()
	w := &lineWriter{shared: l, skipping: !l.since.IsZero()}
	if l.prefix {
		w.prefix = l.out.paintText(prefixColors[l.writerCount%len(prefixColors)], fmt.Sprintf("%-*s | ", l.width, name))
	}
	l.writerCount++
	return w
}

// lineWriter prints what one component writes, line by line.
type lineWriter struct {
	shared   *logLines
	prefix   string
	partial  []byte
	skipping bool // the last line that told its time was too old
}

func (w *lineWriter) Write(p []byte) (int, error) {
	w.partial = append(w.partial, p...)
	for {
		line, rest, ok := bytes.Cut(w.partial, []byte("\n"))
		if !ok {
			return len(p), nil
		}
		if err := w.writeLine(string(line)); err != nil {
			return 0, err
		}
		w.partial = rest
	}
}

// flush prints a last line that was not ended.
func (w *lineWriter) flush() error {
	if len(w.partial) == 0 {
		return nil
	}
	return w.writeLine(string(w.partial))
}

func (w *lineWriter) writeLine(text string) error {
	if !w.shared.since.IsZero() {
		if at, ok := lineTime(text, time.Now()); ok {
			w.skipping = at.Before(w.shared.since)
		}
		if w.skipping {
			return nil
		}
	}
	w.shared.mu.Lock()
	defer w.shared.mu.Unlock()
	if _, err := fmt.Fprintln(w.shared.out.w, w.prefix+text); err != nil {
		return outputError{err}
	}
	return nil
}

// outputError is where the lines go, not where they come from.
type outputError struct{ error }

var (
	klogTime = regexp.MustCompile(`^(?:\[\S+\] )?[IWEF](\d{4} \d{2}:\d{2}:\d{2}\.\d{6})`)
	fullTime = regexp.MustCompile(`\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}(?:\.\d+)?(?:Z|[+-]\d{2}:?\d{2})`)
)

// maxTimeOffset is how far from a line's beginning its time is looked for.
const maxTimeOffset = 120

// lineTime is the time at a line's beginning: klog's, which has no year and no
// zone, or one of RFC 3339, as slog writes, or zap's, which has no colon in its
// zone.
func lineTime(line string, now time.Time) (time.Time, bool) {
	line = line[:min(len(line), maxTimeOffset)]
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
