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

	"github.com/ccmlab/ccmlab/fakecloud/clikit"
)

// Tests prints one line per test that has ended. On a terminal a last line
// shows how many tests have ended, and which run. Elsewhere the tests that still run are named
// when nothing was printed for longSilence.
type Tests struct {
	w     io.Writer
	tty   bool
	color bool
	width func() int // of the terminal
	total int

	mu          sync.Mutex
	began       time.Time
	running     map[string]time.Time // since when
	done        int
	failed      int
	lastPrinted time.Time     // when a line was last printed
	stop        chan struct{} // ends the goroutine that draws the last line; nil while there is none
	drawing     sync.WaitGroup
}

// Outcome is how a test ended.
type Outcome int

// Outcomes.
const (
	Pass Outcome = iota
	Fail
	Tolerated // a failure that is not counted
	Skip
	Block // not run, since what it builds on has failed; why is told on the same line
)

// NewTests makes a Tests that prints to f. total is how many tests there will be.
func NewTests(f *os.File, total int) *Tests {
	tty := Terminal(f)
	return &Tests{
		w: f, tty: tty, color: Colored(f), total: total, running: map[string]time.Time{},
		width: func() int {
			width, _ := clikit.TerminalSize(f)
			return cmp.Or(width, 80)
		},
	}
}

// Begin says that a test runs.
func (t *Tests) Begin(name string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := time.Now()
	if t.stop == nil {
		t.began, t.lastPrinted = now, now
		t.stop = make(chan struct{})
		stop := t.stop
		t.drawing.Go(func() { t.drawUntil(stop) })
	}
	t.running[name] = now
}

// End prints how a test ended and why. why is "" for a test that passed.
func (t *Tests) End(name string, outcome Outcome, took time.Duration, why string) {
	t.mu.Lock()
	delete(t.running, name)
	t.done++
	t.clearLine()
	code, mark, note := "32", "✓", ""
	switch outcome {
	case Fail:
		code, mark = "31", "✗"
		t.failed++
	case Tolerated:
		code, mark, note = "33", "✗", "  not required"
	case Skip:
		code, mark = "2", "–"
	case Block:
		code, mark, note, why = "33", "⊘", "  "+why, ""
	}
	_, _ = fmt.Fprintf(
		t.w, " %s %-58s %s%s\n", Paint(t.color, code, mark), name,
		Paint(t.color, "2", fmt.Sprintf("%6.1fs", took.Seconds())), note,
	)
	if why != "" {
		_, _ = fmt.Fprintln(t.w, "     "+strings.ReplaceAll(why, "\n", "\n     "))
	}
	t.lastPrinted = time.Now()
	t.drawLine()
	last := t.done == t.total
	t.mu.Unlock()
	if last {
		t.Close()
	}
}

// Close removes the last line. It can be called again.
func (t *Tests) Close() {
	t.mu.Lock()
	if t.stop != nil {
		close(t.stop)
		t.stop = nil
		t.clearLine()
	}
	t.mu.Unlock()
	t.drawing.Wait()
}

const (
	drawInterval = 100 * time.Millisecond
	// longSilence is after how long without output a person would suspect a hang.
	longSilence = 30 * time.Second
)

// drawUntil redraws the last line until stop is closed.
func (t *Tests) drawUntil(stop <-chan struct{}) {
	tick := time.NewTicker(drawInterval)
	defer tick.Stop()
	for {
		t.mu.Lock()
		select {
		case <-stop: // Checked with the lock held, so that nothing is drawn after Close.
			t.mu.Unlock()
			return
		default:
		}
		t.clearLine()
		t.drawLine()
		t.announceRunning()
		t.mu.Unlock()
		select {
		case <-stop:
		case <-tick.C:
		}
	}
}

func (t *Tests) clearLine() {
	if t.tty {
		_, _ = fmt.Fprint(t.w, "\r\033[K")
	}
}

// drawLine writes the last line. It is never wider than the terminal, because a line that wraps
// could not be overwritten.
func (t *Tests) drawLine() {
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

// announceRunning names the tests that run, where lines cannot be overwritten.
func (t *Tests) announceRunning() {
	if t.tty || time.Since(t.lastPrinted) < longSilence || len(t.running) == 0 {
		return
	}
	oldest := t.byAge()[0]
	_, _ = fmt.Fprintf(
		t.w, " … %d/%d, still running: %s (%s)\n", t.done, t.total, strings.Join(t.byAge(), ", "),
		time.Since(t.running[oldest]).Round(time.Second),
	)
	t.lastPrinted = time.Now()
}

// byAge lists the tests that run, the oldest first.
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
