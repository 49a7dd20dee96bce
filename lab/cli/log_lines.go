package cli

import (
	"fmt"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/ccmlab/ccmlab/lab/process"
)

// logLines prints lines of several components on one screen. Lines of different
// components never mix.
type logLines struct {
	out    screen
	prefix bool
	since  time.Time

	mu          sync.Mutex
	width       int
	writerCount int
}

// maxPrefixWidth bounds the column of component names. A longer name shifts only its
// own lines.
const maxPrefixWidth = 24

// newLogLines returns logLines for components with these names. With prefix each line
// begins with its component's name. Lines older than since are left out, unless since
// is zero.
func newLogLines(out screen, names []string, prefix bool, since time.Time) *logLines {
	l := &logLines{out: out, prefix: prefix, since: since}
	for _, name := range names {
		l.width = max(l.width, min(len(name), maxPrefixWidth))
	}
	return l
}

// prefixColors are the colours of component names on a terminal, in turn.
var prefixColors = []string{"36", "33", "32", "35", "34", "96", "93", "92", "95", "94"}

// writerFor returns the writer for the log of a component.
func (l *logLines) writerFor(name string) *lineWriter {
	l.mu.Lock()
	defer l.mu.Unlock()
	w := &lineWriter{shared: l, skipping: !l.since.IsZero()}
	w.Tell = w.writeLine
	if l.prefix {
		w.prefix = l.out.paintText(prefixColors[l.writerCount%len(prefixColors)], fmt.Sprintf("%-*s | ", l.width, name))
	}
	l.writerCount++
	return w
}

// lineWriter prints the log of one component line by line.
type lineWriter struct {
	process.LineWriter
	shared   *logLines
	prefix   string
	skipping bool // The last line that had a time was too old.
}

// writeLine prints a line, unless it is older than since. A line without a time belongs
// to the line before.
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

// outputError is an error of the output, as opposed to one of the log that is read.
type outputError struct{ error }

var (
	klogTime = regexp.MustCompile(`^(?:\[\S+\] )?[IWEF](\d{4} \d{2}:\d{2}:\d{2}\.\d{6})`)
	fullTime = regexp.MustCompile(`\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}(?:\.\d+)?(?:Z|[+-]\d{2}:?\d{2})`)
)

// maxTimeOffset is how many bytes from a line's beginning lineTime looks for the time.
const maxTimeOffset = 120

// lineTime returns the time at a line's beginning. It knows klog's format, which has
// neither year nor zone, RFC 3339, which slog writes, and zap's format, whose zone has
// no colon.
func lineTime(line string, now time.Time) (time.Time, bool) {
	line = line[:min(len(line), maxTimeOffset)]
	if m := klogTime.FindStringSubmatch(line); m != nil {
		at, err := time.ParseInLocation("2006 0102 15:04:05.000000", fmt.Sprint(now.Year(), " ", m[1]), now.Location())
		if err == nil && at.After(now.AddDate(0, 0, 1)) { // A line of last December.
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
