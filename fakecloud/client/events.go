package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
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
// an error, and so is one that falls silent; the caller resumes from the last
// number it saw. HasCode(err, api.EventsExpired) means that the number is older
// than what the cloud keeps: list anew, then watch.
func (c *Client) Watch(ctx context.Context, after int64, follow bool, fn func(api.Event) error) error {
	stream, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	dog := time.AfterFunc(c.silence, func() { cancel(errSilent) })
	defer dog.Stop()
	resp, err := c.raw.StreamEvents(stream, &api.StreamEventsParams{After: &after, Follow: &follow})
	if err != nil {
		return orSilent(stream, err)
	}
	defer func() { _ = resp.Body.Close() }()
	if err := asError(resp); err != nil {
		return orSilent(stream, err)
	}
	body := &watched{from: resp.Body, dog: dog, limit: c.silence}
	for msg, err := range sse.Read(body, &sse.ReadConfig{MaxEventSize: 1 << 20}) {
		if err := orSilent(stream, err); err != nil {
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

var (
	errStreamEnded = errors.New("the cloud ended the event stream")
	errSilent      = errors.New("the cloud has fallen silent")
)

// orSilent names the silence that ended a stream, which err only shows as a
// cancelled call.
func orSilent(stream context.Context, err error) error {
	if err != nil && errors.Is(context.Cause(stream), errSilent) {
		return errSilent
	}
	return err
}

// watched lets the dog loose while a read lasts. What the reader does between
// two reads is not the cloud's silence.
type watched struct {
	from  io.Reader
	dog   *time.Timer
	limit time.Duration
}

func (w *watched) Read(p []byte) (int, error) {
	w.dog.Reset(w.limit)
	defer w.dog.Stop()
	return w.from.Read(p)
}

// Follow is Watch that resumes after a broken stream, until ctx ends, fn
// returns an error, or the cloud refuses (no such token, events expired). Being
// told to come back later is no refusal.
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
		case errors.As(err, &refused) && refused.Status < 500 && refused.Status != http.StatusTooManyRequests:
			return err
		}
		pause := wait.NextBackOff()
		if refused != nil {
			pause = max(pause, refused.RetryAfter)
		}
		if onBreak != nil {
			onBreak(err)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(pause):
		}
	}
}
