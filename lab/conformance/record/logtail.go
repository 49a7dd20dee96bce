package record

// The CCM's logs: their lines, each with its time.

import (
	"bytes"
	"errors"
	"io"
	"os"
	"regexp"
	"strconv"
	"time"
)

const (
	// maxRead is how much of a log is read at once, and maxLine how long a line
	// may be that is taken as one.
	maxRead, maxLine = 4 << 20, 64 << 10
	// zoneStep is what all time zones differ by, or a multiple of it.
	zoneStep = 15 * time.Minute
)

// logTail is how far a log file has been read.
type logTail struct {
	offset int64
	half   []byte // of a line
	// read is when the file was last read to its end: newer lines were written after
	// that. said is the time of the last line.
	read, said time.Time
}

// readLogs reads the lines that have been added to the CCM's logs. At first it only notes where they
// end: lines from before the run belong to no test.
func (r *Recorder) readLogs(first bool) {
	if r.logs == nil {
		return
	}
	for _, name := range r.logs.LogFiles() {
		t := r.tails[name]
		if t == nil {
			t = &logTail{}
			if info, err := os.Stat(name); err == nil && first {
				t.offset = info.Size()
			}
			r.tails[name] = t
		}
		now := time.Now()
		for _, line := range t.nextLines(name) {
			r.addItem(&item{Entry: t.entryOf(line, now)})
		}
		t.read = now
	}
}

// nextLines returns the lines that have been added. A file that cannot be read has none.
func (l *logTail) nextLines(name string) [][]byte {
	f, err := os.Open(name)
	if err != nil {
		return nil
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil || info.Size() == l.offset {
		return nil
	}
	if info.Size() < l.offset {
		l.offset, l.half = 0, nil // Another file, or begun anew.
	}
	data := make([]byte, min(maxRead, info.Size()-l.offset))
	n, err := f.ReadAt(data, l.offset)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil
	}
	l.offset += int64(n)
	lines := bytes.Split(append(l.half, data[:n]...), []byte("\n"))
	l.half = bytes.Clone(lines[len(lines)-1])
	lines = lines[:len(lines)-1]
	if len(l.half) > maxLine {
		lines, l.half = append(lines, l.half), nil
	}
	return lines
}

var (
	// klogPattern is k8s.io/klog's: severity, date, time, thread, place.
	klogPattern = regexp.MustCompile(`^([IWEF])(\d{4} \d\d:\d\d:\d\d\.\d+)\s+\d+ (.*)$`)
	// timestampPattern is what most others have near a line's begin.
	timestampPattern = regexp.MustCompile(`^.{0,40}?(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:?\d\d))`)
	// epochPattern is zap's, in JSON.
	epochPattern = regexp.MustCompile(`^.{0,40}?"ts":(\d{10}\.\d+)`)
	// errorPattern is what others' errors have there.
	errorPattern = regexp.MustCompile(`(?i)^.{0,60}?\b(level"?[=:] ?"?(error|fatal)|error|fatal|panic)\b`)
)

// entryOf makes an entry of a line. Its time is the one in the line, but no earlier than the
// last read of the file, and not in the future. A line without a time has that of the line before.
func (l *logTail) entryOf(line []byte, now time.Time) Entry {
	e := Entry{Source: SourceLog, Text: string(line[:min(len(line), 4*MaxTextLength)])}
	said := now
	if l.said.After(l.read) {
		said = l.said
	}
	if m := klogPattern.FindStringSubmatch(e.Text); m != nil {
		e.Text, e.Failed = m[1]+" "+m[3], m[1] == "E" || m[1] == "F"
		if clock, err := time.ParseInLocation("0102 15:04:05.999999999", m[2], now.Location()); err == nil {
			said = clock.AddDate(now.Year(), 0, 0)
			said = said.Add(now.Sub(said).Round(zoneStep)) // klog does not say of which zone it is.
		}
	} else {
		e.Failed = errorPattern.MatchString(e.Text)
		if m := timestampPattern.FindStringSubmatch(e.Text); m != nil {
			if clock, err := time.Parse(time.RFC3339, m[1]); err == nil {
				said = clock
			}
		} else if m := epochPattern.FindStringSubmatch(e.Text); m != nil {
			if s, err := strconv.ParseFloat(m[1], 64); err == nil {
				said = time.UnixMicro(int64(s * 1e6))
			}
		}
	}
	switch {
	case said.After(now):
		said = now
	case !l.read.IsZero() && said.Before(l.read):
		said = l.read
	}
	l.said, e.At, e.Text = said, said, displayText(e.Text)
	return e
}
