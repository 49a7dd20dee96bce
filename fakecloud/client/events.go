package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/tmaxmax/go-sse"

	"github.com/ccmlab/ccmlab/fakecloud/api"
)

// FromOldest is the sequence number that starts with the oldest event kept.
const FromOldest int64 = 0

// FromNewest starts with the next event.
const FromNewest int64 = -1

// EventFilter filters a stream. Zero fields match everything. An event must match all
// fields; of Resources and of IDs, any one.
type EventFilter struct {
	Resources []api.ResourceKind
	IDs       []string
	// Tags are "key=value", or "key" for any value; all must match.
	Tags []string
	// Project is the ID of another project, or "*" for all; for admins only.
	Project string
}

// Watch calls fn for each event after the given sequence number, in order. With follow it
// goes on until ctx ends, the stream breaks or fn returns an error. Without follow it ends
// after the events already stored. A stream that breaks or falls silent is an error; the
// caller can resume from the last number that it got. HasCode(err, api.EventsExpired) means
// that the cloud no longer keeps the events after that number: list again, then watch. If
// several filters are given, only the last is used.
func (c *Client) Watch(
	ctx context.Context,
	after int64,
	follow bool,
	fn func(api.Event) error,
	only ...EventFilter,
) error {
	_, err := c.watchEvents(ctx, after, follow, fn, func() {}, only)
	return err
}

// NewestEvent returns the number of the cloud's newest event in any project. A caller who
// gets it first, then lists resources, then follows from that number, misses nothing.
func (c *Client) NewestEvent(ctx context.Context) (int64, error) {
	at, err := c.watchEvents(ctx, FromNewest, false, func(api.Event) error { return nil }, func() {}, nil)
	if err == nil && at == FromNewest {
		err = errors.New("the cloud did not say which event is the newest")
	}
	return at, err
}

// watchEvents is Watch that also returns the number to go on from, which may be greater than
// the number of the last event that matched. It calls opened when the stream is open, so that every
// later event will come.
func (c *Client) watchEvents(
	ctx context.Context,
	after int64,
	follow bool,
	fn func(api.Event) error,
	opened func(),
	only []EventFilter,
) (int64, error) {
	stream, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	silenceTimer := time.AfterFunc(c.silence, func() { cancel(errSilent) })
	defer silenceTimer.Stop()
	query := url.Values{"after": {strconv.FormatInt(after, 10)}, "follow": {strconv.FormatBool(follow)}}
	if after == FromNewest {
		query.Del("after")
		query.Set("newest", "true")
	}
	for _, f := range only {
		query["resource"], query["id"] = textsOf(f.Resources), f.IDs
		query["tag"], query["project"] = f.Tags, textOf(f.Project)
	}
	resp, err := c.send(stream, http.MethodGet, "/v1/events", query, nil)
	if err != nil {
		return after, silenceOr(stream, err)
	}
	defer func() { _ = resp.Body.Close() }()
	at := after
	if at != FromNewest {
		opened()
	}
	body := &silenceWatchedBody{from: resp.Body, silenceTimer: silenceTimer, limit: c.silence}
	for msg, err := range sse.Read(body, &sse.ReadConfig{MaxEventSize: 1 << 20}) {
		if err := silenceOr(stream, err); err != nil {
			return at, fmt.Errorf("reading the event stream: %w", err)
		}
		if msg.Data == "" { // A heartbeat, with the number that the cloud has reached.
			n, err := strconv.ParseInt(msg.LastEventID, 10, 64)
			if err != nil {
				continue
			}
			if at == FromNewest {
				opened()
			}
			at = n
			continue
		}
		var ev api.Event
		if err := decodeWhole([]byte(msg.Data), &ev); err != nil {
			return at, fmt.Errorf("event %s of the stream is not what the API promises: %w", msg.LastEventID, err)
		}
		if err := fn(ev); err != nil {
			return at, err
		}
		at = ev.Seq
	}
	if follow && ctx.Err() == nil {
		return at, errStreamEnded
	}
	return at, ctx.Err()
}

var (
	errStreamEnded = errors.New("the cloud ended the event stream")
	errSilent      = errors.New("the cloud has fallen silent")
)

// silenceOr returns errSilent if silence has ended the stream, for which err shows only a
// cancelled call; otherwise err.
func silenceOr(stream context.Context, err error) error {
	if err != nil && errors.Is(context.Cause(stream), errSilent) {
		return errSilent
	}
	return err
}

// silenceWatchedBody runs silenceTimer while a read waits, and only then: the time between
// two reads is not the cloud's silence.
type silenceWatchedBody struct {
	from         io.Reader
	silenceTimer *time.Timer
	limit        time.Duration
}

func (w *silenceWatchedBody) Read(p []byte) (int, error) {
	w.silenceTimer.Reset(w.limit)
	defer w.silenceTimer.Stop()
	return w.from.Read(p)
}

// maxReconnectPause is the longest pause between two attempts to resume a stream, give or take a
// fifth. It is short because followers learn from the stream that an outage is over.
const maxReconnectPause = 5 * time.Second

// Follow is Watch that resumes after a broken stream, until ctx ends, fn returns an error, or
// the cloud refuses (invalid token, events expired). A 429 is no refusal.
//
// onBreak, unless nil, is called with the error of each break, and with nil whenever the
// stream is open. The events of the break come first, then those that happen from now on.
func (c *Client) Follow(
	ctx context.Context,
	after int64,
	fn func(api.Event) error,
	onBreak func(error),
	only ...EventFilter,
) error {
	wait := &backoff.ExponentialBackOff{
		InitialInterval: 200 * time.Millisecond, Multiplier: 2, RandomizationFactor: 0.2,
		MaxInterval: maxReconnectPause,
	}
	wait.Reset()
	if onBreak == nil {
		onBreak = func(error) {}
	}
	var callbackErr error
	for {
		var err error
		var opened time.Time
		after, err = c.watchEvents(ctx, after, true, func(ev api.Event) error {
			wait.Reset()
			callbackErr = fn(ev)
			return callbackErr
		}, func() { opened = time.Now(); onBreak(nil) }, only)
		var refused *Error
		switch {
		case callbackErr != nil:
			return callbackErr
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.As(err, &refused) && refused.Status < 500 && refused.Status != http.StatusTooManyRequests:
			return err
		}
		if !opened.IsZero() && time.Since(opened) > maxReconnectPause { // Not one of a row of breaks.
			wait.Reset()
		}
		pause := wait.NextBackOff()
		if refused != nil {
			pause = max(pause, refused.RetryAfter)
		}
		onBreak(err)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(pause):
		}
	}
}
