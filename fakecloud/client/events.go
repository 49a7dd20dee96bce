package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/tmaxmax/go-sse"

	"github.com/ccmlab/ccmlab/fakecloud/api"
)

// FromOldest is the sequence number that starts with the oldest event kept.
const FromOldest int64 = 0

// Watch calls fn for each event after the given sequence number, in order.
// With follow it goes on until ctx ends, the stream breaks or fn returns an
// error; without, it ends after the events already stored. A broken stream is
// an error; the caller resumes from the last number it saw. HasCode(err,
// api.EventsExpired) means that the number is older than what the cloud keeps:
// list anew, then watch.
func (c *Client) Watch(ctx context.Context, after int64, follow bool, fn func(api.Event) error) error {
	resp, err := c.raw.StreamEvents(ctx, &api.StreamEventsParams{After: &after, Follow: &follow})
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	if err := asError(resp); err != nil {
		return err
	}
	for msg, err := range sse.Read(resp.Body, &sse.ReadConfig{MaxEventSize: 1 << 20}) {
		if err != nil {
			return fmt.Errorf("reading the event stream: %w", err)
		}
		var ev api.Event
		if err := json.Unmarshal([]byte(msg.Data), &ev); err != nil {
			return fmt.Errorf("event %s of the stream: %w", msg.LastEventID, err)
		}
		if err := fn(ev); err != nil {
			return err
		}
	}
	if follow && ctx.Err() == nil {
		return errStreamEnded
	}
	return ctx.Err()
}

var errStreamEnded = errors.New("the cloud ended the event stream")

// Follow is Watch that resumes after a broken stream, until ctx ends, fn
// returns an error, or the cloud refuses (no such token, events expired).
// onBreak, when not nil, is told of each break.
func (c *Client) Follow(ctx context.Context, after int64, fn func(api.Event) error, onBreak func(error)) error {
	wait := &backoff.ExponentialBackOff{InitialInterval: 200 * time.Millisecond, Multiplier: 2, RandomizationFactor: 0.2, MaxInterval: 2 * time.Second}
	wait.Reset()
	var own error
	for {
		err := c.Watch(ctx, after, true, func(ev api.Event) error {
			wait.Reset()
			if own = fn(ev); own != nil {
				return own
			}
			after = ev.Seq
			return nil
		})
		var refused *Error
		switch {
		case own != nil:
			return own
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.As(err, &refused) && refused.Status < 500:
			return err
		}
		if onBreak != nil {
			onBreak(err)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(wait.NextBackOff()):
		}
	}
}
