package dataplane

import (
	"sync"
	"sync/atomic"
	"time"
)

// idleTimer calls onIdle once there has been no activity for the timeout. A nil
// *idleTimer does nothing.
type idleTimer struct {
	timeout      time.Duration
	start        time.Time
	lastActivity atomic.Int64 // nanoseconds after start
	onIdle       func()

	mu    sync.Mutex
	timer *time.Timer // nil once it is stopped
}

// newIdleTimer starts an idle timer. It returns nil if the timeout is 0.
func newIdleTimer(timeout time.Duration, onIdle func()) *idleTimer {
	if timeout == 0 {
		return nil
	}
	s := &idleTimer{timeout: timeout, start: time.Now(), onIdle: onIdle}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.timer = time.AfterFunc(timeout, s.checkIdle)
	return s
}

func (s *idleTimer) recordActivity() {
	if s != nil {
		s.lastActivity.Store(int64(time.Since(s.start)))
	}
}

// checkIdle calls onIdle if there was no activity for the timeout, and otherwise runs
// again when that may be so.
func (s *idleTimer) checkIdle() {
	s.mu.Lock()
	defer s.mu.Unlock()
	wait := s.timeout - (time.Since(s.start) - time.Duration(s.lastActivity.Load()))
	switch {
	case s.timer == nil:
	case wait <= 0:
		s.onIdle()
	default:
		s.timer.Reset(wait)
	}
}

func (s *idleTimer) stop() {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.timer != nil {
		s.timer.Stop()
		s.timer = nil
	}
}
