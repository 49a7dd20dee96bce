package client

import (
	"context"
	"net/http"
	"time"

	"github.com/ccmlab/ccmlab/fakecloud/api"
)

// maxPatience is how long moving a virtual clock, and taking or restoring a
// snapshot, may take.
const maxPatience = time.Hour

// patient is the client for calls that take so long; their context bounds them.
func (c *Client) patient() *Client {
	patient := *c
	patient.timeout = maxPatience
	return &patient
}

// Clock is the cloud's time, and whether that stands still.
func (c *Client) Clock(ctx context.Context) (*api.Clock, error) {
	return read[api.Clock](ctx, c, func(ctx context.Context) (*http.Response, error) { return c.raw.GetClock(ctx) })
}

// AdvanceClock moves the cloud's virtual clock by that much, in milliseconds. It
// returns when all that fell due on the way has happened; ctx bounds it.
func (c *Client) AdvanceClock(ctx context.Context, by time.Duration) (*api.ClockAdvanced, error) {
	seconds := by.Truncate(time.Millisecond).Seconds()
	return c.advance(ctx, api.ClockAdvance{Seconds: &seconds})
}

// AdvanceClockTo is AdvanceClock to a time.
func (c *Client) AdvanceClockTo(ctx context.Context, until time.Time) (*api.ClockAdvanced, error) {
	return c.advance(ctx, api.ClockAdvance{Until: &until})
}

func (c *Client) advance(ctx context.Context, body api.ClockAdvance) (*api.ClockAdvanced, error) {
	return write[api.ClockAdvanced](ctx, c.patient(), func(ctx context.Context) (*http.Response, error) { return c.raw.AdvanceClock(ctx, body) })
}
