// Package ui prints for people: steps and tests with their durations, Markdown, and what
// --verbose adds. It uses colours on a terminal only.
//
// It does not know which commands print. Begin with Steps.
package ui

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/term"
)

// Steps prints one line per step when it has ended. On a terminal the step
// that runs is shown with its time so far. Elsewhere a step that takes long is
// announced.
type Steps struct {
	w     io.Writer
	start time.Time
	tty   bool
	color bool
	quiet bool
}

// New makes Steps that print to f. With quiet they print nothing but problems.
func New(f *os.File, quiet bool) *Steps {
	return &Steps{w: f, start: time.Now(), tty: Terminal(f), color: Colored(f), quiet: quiet}
}

// Discard makes Steps that print nothing.
func Discard() *Steps { return &Steps{w: io.Discard, start: time.Now(), quiet: true} }

// underWay is the status of a step until it has called note.
const underWay = "under way"

// longStep is after how long without output a person would suspect that a step hangs.
const longStep = 2 * time.Second

// Do runs one step. The text that step returns is shown beside the title.
func (s *Steps) Do(title string, step func(note func(string)) (string, error)) error {
	began := time.Now()
	var mu sync.Mutex
	status := underWay
	done := make(chan struct{})
	var shown sync.WaitGroup
	shown.Go(func() {
		s.showProgress(title, began, done, func() string {
			mu.Lock()
			defer mu.Unlock()
			return status
		})
	})
	detail, err := step(func(text string) {
		mu.Lock()
		defer mu.Unlock()
		status = text
	})
	close(done)
	shown.Wait()
	if err != nil {
		if s.tty {
			_, _ = fmt.Fprint(s.w, "\r\033[K")
		}
		_, _ = fmt.Fprintf(s.w, " %s %s\n", s.paint("31", "✗"), title)
		return err
	}
	if s.quiet {
		return nil
	}
	if s.tty {
		_, _ = fmt.Fprint(s.w, "\r\033[K")
	}
	_, _ = fmt.Fprintf(s.w, " %s %-16s %-70s %s\n", s.paint("32", "✓"), title, detail,
		s.paint("2", fmt.Sprintf("%5.1fs  (+%.1fs)", time.Since(s.start).Seconds(), time.Since(began).Seconds())))
	return nil
}

// showProgress shows the status of a step until it is done.
func (s *Steps) showProgress(title string, began time.Time, done <-chan struct{}, status func() string) {
	if s.quiet {
		<-done
		return
	}
	if !s.tty {
		s.announceProgress(title, began, done, status)
		return
	}
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		_, _ = fmt.Fprintf(
			s.w, "\r\033[K … %-16s %s %s", title, status(),
			s.paint("2", fmt.Sprintf("%.1fs", time.Since(began).Seconds())),
		)
		select {
		case <-done:
			return
		case <-tick.C:
		}
	}
}

// announceProgress shows the status where lines cannot be overwritten: one line after longStep,
// then each time the wait has doubled.
func (s *Steps) announceProgress(title string, began time.Time, done <-chan struct{}, status func() string) {
	for wait := longStep; ; wait *= 2 {
		select {
		case <-done:
			return
		case <-time.After(time.Until(began.Add(wait))):
			_, _ = fmt.Fprintf(s.w, " … %-16s %s (%s)\n", title, status(), time.Since(began).Round(time.Second))
		}
	}
}

// Say prints lines that belong to no step.
func (s *Steps) Say(format string, args ...any) {
	if !s.quiet {
		_, _ = fmt.Fprintf(s.w, format+"\n", args...)
	}
}

func (s *Steps) paint(code, text string) string { return Paint(s.color, code, text) }

// Paint is text in a colour, which is an SGR code, or the plain text if color is false.
func Paint(color bool, code, text string) string {
	if !color {
		return text
	}
	return "\033[" + code + "m" + text + "\033[0m"
}

// maxSentence is how many bytes of a sentence fit into a line.
const maxSentence = 110

// FirstSentence shortens what a component says to its first sentence, and that to a line.
func FirstSentence(s string) string {
	if i := strings.Index(s, ". "); i > 0 {
		s = s[:i]
	}
	if len(s) > maxSentence {
		s = s[:maxSentence-3] + "..."
	}
	return s
}

// Terminal tells whether f is a terminal on which lines can be overwritten and coloured.
func Terminal(f *os.File) bool { return term.IsTerminal(int(f.Fd())) && os.Getenv("TERM") != "dumb" }

// Colored tells whether output to w may be coloured: if w is such a terminal, and NO_COLOR is not
// set (no-color.org).
func Colored(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && Terminal(f) && os.Getenv("NO_COLOR") == ""
}

// JoinFirst joins the first items, at most so many, with commas, and counts the rest.
func JoinFirst(items []string, most int) string {
	if len(items) > most {
		return fmt.Sprintf("%s and %d more", strings.Join(items[:most], ", "), len(items)-most)
	}
	return strings.Join(items, ", ")
}
