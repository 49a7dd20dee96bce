package client

import (
	"context"
	"net/http"
	"time"

	"github.com/ccmlab/ccmlab/fakecloud/api"
)

// longTimeout is the timeout for moving a virtual clock and for creating or restoring a
// snapshot.
const longTimeout = time.Hour

// withLongTimeout is the same client with the timeout longTimeout. As a rule the context
// of the call ends earlier.
func (c *Client) withLongTimeout() *Client {
	longer := *c
	longer.timeout = longTimeout
	return &longer
}

// Clock returns the cloud's time, and whether its clock is virtual.
func (c *Client) Clock(ctx context.Context) (*api.Clock, error) {
	return readWithRetries[api.Clock](ctx, c, func(ctx context.Context) (*http.Response, error) {
		return c.raw.GetClock(ctx)
	})
}

// AdvanceClock moves the cloud's virtual clock by a duration, which it truncates to
// milliseconds. It returns when everything that falls due on the way has happened, or when
// ctx ends.
func (c *Client) AdvanceClock(ctx context.Context, by time.Duration) (*api.ClockAdvanced, error) {
	seconds := by.Truncate(time.Millisecond).Seconds()
	return c.advanceClock(ctx, api.ClockAdvance{Seconds: &seconds})
}

// AdvanceClockTo moves the cloud's virtual clock to a time, as AdvanceClock does.
func (c *Client) AdvanceClockTo(ctx context.Context, until time.Time) (*api.ClockAdvanced, error) {
	return c.advanceClock(ctx, api.ClockAdvance{Until: &until})
}

func (c *Client) advanceClock(ctx context.Context, body api.ClockAdvance) (*api.ClockAdvanced, error) {
	return sendOnce[api.ClockAdvanced](ctx, c.withLongTimeout(), func(ctx context.Context) (*http.Response, error) {
		return c.raw.AdvanceClock(ctx, body)
	})
}
