package process

import "bytes"

// LineWriter calls Tell with each line that is written to it, without the line's end. It is for one writer at a time.
type LineWriter struct {
	Tell func(line string) error
	rest []byte // of a line that has not ended
}

// Write tells the lines that p completes, and keeps the rest.
func (w *LineWriter) Write(p []byte) (int, error) {
	w.rest = append(w.rest, p...)
	for {
		line, rest, ended := bytes.Cut(w.rest, []byte("\n"))
		if !ended {
			return len(p), nil
		}
		if err := w.Tell(string(line)); err != nil {
			return 0, err
		}
		w.rest = rest
	}
}

// Flush tells a last line that has no end.
func (w *LineWriter) Flush() error {
	if len(w.rest) == 0 {
		return nil
	}
	return w.Tell(string(w.rest))
}
