package suite

import (
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/ccmlab/ccmlab/lab/conformance"
)

// reminderInterval is when a suite that says nothing would look like one that hangs.
const reminderInterval = 20 * time.Second

// progressReminder breaks a suite's that lasts.
type progressReminder struct {
	mu      sync.Mutex
	running []string // tests, by ID
	since   time.Time
	timer   *time.Timer
	stopped bool
}

func startProgressReminder(tell func(string)) *progressReminder {
	s := &progressReminder{since: time.Now()}
	s.timer = time.AfterFunc(reminderInterval, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.stopped {
			return
		}
		if len(s.running) > 0 {
			others := ""
			if n := len(s.running) - 1; n > 0 {
				others = fmt.Sprintf(" and %d more", n)
			}
			tell(fmt.Sprintf("%s%s: still running (%s)", s.running[0], others, time.Since(s.since).Round(time.Second)))
		}
		s.timer.Reset(reminderInterval)
	})
	return s
}

func (s *progressReminder) stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stopped = true
	s.timer.Stop()
}

// observeTest is told of each test that begins or ends.
func (s *progressReminder) observeTest(t conformance.TestReport) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.running = slices.DeleteFunc(s.running, func(id string) bool { return id == t.ID })
	if t.Result == "" {
		s.running = append(s.running, t.ID)
	}
	s.since = time.Now()
	s.timer.Reset(reminderInterval)
}
