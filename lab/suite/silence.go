package suite

import (
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/ccmlab/ccmlab/lab/conformance"
)

// longSilence is when a suite that says nothing would look like one that hangs.
const longSilence = 20 * time.Second

// silence breaks a suite's that lasts.
type silence struct {
	mu      sync.Mutex
	running []string // tests, by ID
	since   time.Time
	timer   *time.Timer
	over    bool
}

func newSilence(tell func(string)) *silence {
	s := &silence{since: time.Now()}
	s.timer = time.AfterFunc(longSilence, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.over {
			return
		}
		if len(s.running) > 0 {
			others := ""
			if n := len(s.running) - 1; n > 0 {
				others = fmt.Sprintf(" and %d more", n)
			}
			tell(fmt.Sprintf("%s%s: still running (%s)", s.running[0], others, time.Since(s.since).Round(time.Second)))
		}
		s.timer.Reset(longSilence)
	})
	return s
}

func (s *silence) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.over = true
	s.timer.Stop()
}

// observe is told of each test that begins or ends.
func (s *silence) observe(t conformance.TestReport) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.running = slices.DeleteFunc(s.running, func(id string) bool { return id == t.ID })
	if t.Result == "" {
		s.running = append(s.running, t.ID)
	}
	s.since = time.Now()
	s.timer.Reset(longSilence)
}
