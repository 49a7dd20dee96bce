package ui

import (
	"cmp"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/term"
)

// Tests prints one line per test that has ended. On a terminal a last line
// shows how many have, and which run; elsewhere those that take long are named
// when nothing else is said for a while.
type Tests struct {
	w     io.Writer
	tty   bool
	color bool
	width func() int // of the terminal
	total int

	mu      sync.Mutex
	began   time.Time
	running map[string]time.Time // since when
	done    int
	failed  int
	said    time.Time     // when a line was last printed
	stop    chan struct{} // nil while nothing is drawn
	drawn   sync.WaitGroup
}

// Outcome is how a test ended.
type Outcome int

// Outcomes.
const (
	Pass Outcome = iota
	Fail
	Tolerated // a failure that does not count
	Skip
)

// NewTests prints to f. total is how many tests there will be.
func NewTests(f *os.File, total int) *Tests {
	tty := Terminal(f)
	return &Tests{
		w: f, tty: tty, color: Colored(f), total: total, running: map[string]time.Time{},
		width: func() int {
			width, _, err := term.GetSize(int(f.Fd()))
			if err != nil || width <= 0 {
				return 80
			}
			return width
		},
	}
}

// Begin says that a test runs.
func (t *Tests) Begin(name string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := time.Now()
	if t.stop == nil {
		t.began, t.said = now, now
		t.stop = make(chan struct{})
		stop := t.stop
		t.drawn.Go(func() { t.show(stop) })
	}
	t.running[name] = now
}

// End prints how a test ended and why, which is "" for one that passed.
func (t *Tests) End(name string, outcome Outcome, took time.Duration, why string) {
	t.mu.Lock()
	delete(t.running, name)
	t.done++
	t.clear()
	code, mark, note := "32", "✓", ""
	switch outcome {
	case Fail:
		code, mark = "31", "✗"
		t.failed++
	case Tolerated:
		code, mark, note = "33", "✗", "  not required"
	case Skip:
		code, mark = "2", "–"
	}
	_, _ = fmt.Fprintf(t.w, " %s %-58s %s%s\n", paint(t.color, code, mark), name, paint(t.color, "2", fmt.Sprintf("%6.1fs", took.Seconds())), note)
	if why != "" {
		_, _ = fmt.Fprintln(t.w, "     "+strings.ReplaceAll(why, "\n", "\n     "))
	}
	t.said = time.Now()
	t.draw()
	last := t.done == t.total
	t.mu.Unlock()
	if last {
		t.Close()
	}
}

// Close takes the line that shows what runs away. It can be called again.
func (t *Tests) Close() {
	t.mu.Lock()
	if t.stop != nil {
		close(t.stop)
		t.stop = nil
		t.clear()
	}
	t.mu.Unlock()
	t.drawn.Wait()
}

const (
	drawEvery = 100 * time.Millisecond
	// longSilence is when silence would look like a hang.
	longSilence = 30 * time.Second
)

func (t *Tests) show(stop <-chan struct{}) {
	tick := time.NewTicker(drawEvery)
	defer tick.Stop()
	for {
		t.mu.Lock()
		select {
		case <-stop: // Looked at with the lock held: nothing is drawn after Close.
			t.mu.Unlock()
			return
		default:
		}
		t.clear()
		t.draw()
		t.announce()
		t.mu.Unlock()
		select {
		case <-stop:
		case <-tick.C:
		}
	}
}

func (t *Tests) clear() {
	if t.tty {
		_, _ = fmt.Fprint(t.w, "\r\033[K")
	}
}

// draw writes the last line, never wider than the terminal: one that wraps
// could not be drawn over.
func (t *Tests) draw() {
	if !t.tty || t.stop == nil {
		return
	}
	line := fmt.Sprintf(" … %d/%d", t.done, t.total)
	if t.failed > 0 {
		line += fmt.Sprintf(", %d failed", t.failed)
	}
	line = fmt.Sprintf("%s, %.0fs: %s", line, time.Since(t.began).Seconds(), strings.Join(t.byAge(), ", "))
	if runes := []rune(line); len(runes) >= t.width() {
		line = string(runes[:max(0, t.width()-2)]) + "…"
	}
	_, _ = fmt.Fprint(t.w, line)
}

// announce is for where no line can be drawn over.
func (t *Tests) announce() {
	if t.tty || time.Since(t.said) < longSilence || len(t.running) == 0 {
		return
	}
	oldest := t.byAge()[0]
	_, _ = fmt.Fprintf(t.w, " … %d/%d, still running: %s (%s)\n", t.done, t.total, strings.Join(t.byAge(), ", "), time.Since(t.running[oldest]).Round(time.Second))
	t.said = time.Now()
}

// byAge lists what runs, the oldest first.
func (t *Tests) byAge() []string {
	var names []string
	for name := range t.running {
		names = append(names, name)
	}
	slices.SortFunc(names, func(a, b string) int {
		return cmp.Or(t.running[a].Compare(t.running[b]), strings.Compare(a, b))
	})
	return names
}
