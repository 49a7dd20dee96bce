package cloud

import (
	"sync"
	"time"

	"github.com/jonboulle/clockwork"
)

// steadyClock is the real clock, except that it never runs backwards. Times are stored, and lose Go's monotonic reading
// by that: if the system's clock is set back by an hour, whatever is due would come an hour late. The steadyClock goes on
// instead, by the monotonic clock, ahead of the system's until that catches up or the process ends.
type steadyClock struct {
	clockwork.Clock                      // its timers go by the monotonic clock already
	wall            func() time.Time     // without monotonic reading
	elapsed         func() time.Duration // by the monotonic clock

	mu    sync.Mutex
	start time.Time // wall time at which elapsed was 0, by the reading that was furthest ahead
}

func newSteadyClock() *steadyClock {
	start := time.Now()
	return &steadyClock{
		Clock: clockwork.NewRealClock(), wall: func() time.Time { return time.Now().Round(0) },
		elapsed: func() time.Duration { return time.Since(start) },
	}
}

// Now implements clockwork.Clock. A clock that is set forward, and a machine that slept, are followed at once.
func (c *steadyClock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	elapsed := c.elapsed()
	if start := c.wall().Add(-elapsed); start.After(c.start) {
		c.start = start
	}
	return c.start.Add(elapsed)
}

// Since implements clockwork.Clock.
func (c *steadyClock) Since(t time.Time) time.Duration { return c.Now().Sub(t) }

// Until implements clockwork.Clock.
func (c *steadyClock) Until(t time.Time) time.Duration { return t.Sub(c.Now()) }
