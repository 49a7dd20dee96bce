package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/tmaxmax/go-sse"

	"github.com/ccmlab/ccmlab/fakecloud/api"
)

// FromOldest is the sequence number that starts with the oldest event kept.
const FromOldest int64 = 0

// FromNewest starts with what comes now.
const FromNewest int64 = -1

// EventFilter narrows a stream; zero fields do not. Filters of different kinds
// must all match; of Resources and of IDs, any one.
type EventFilter struct {
	Resources []api.ResourceKind
	IDs       []string
	// Tags are "key=value", or "key" for any value; all must match.
	Tags []string
	// Project is the ID of another project, or "*" for all; for admins only.
	Project string
}

// Watch calls fn for each event after the given sequence number, in order.
// With follow it goes on until ctx ends, the stream breaks or fn returns an
// error; without, it ends after the events already stored. A broken stream is
// an error, and so is one that falls silent; the caller resumes from the last
// number it saw. HasCode(err, api.EventsExpired) means that the number is older
// than what the cloud keeps: list anew, then watch. Of several filters the last
// counts.
func (c *Client) Watch(ctx context.Context, after int64, follow bool, fn func(api.Event) error, only ...EventFilter) error {
	_, err := c.watch(ctx, after, follow, fn, func() {}, only)
	return err
}

// NewestEvent is the number of the cloud's newest event, whosever it is. Who
// lists resources and then follows from there misses nothing.
func (c *Client) NewestEvent(ctx context.Context) (int64, error) {
	at, err := c.watch(ctx, FromNewest, false, func(api.Event) error { return nil }, func() {}, nil)
	if err == nil && at == FromNewest {
		err = errors.New("the cloud did not say which event is the newest")
	}
	return at, err
}

// watch also gives the number to go on from: it may be greater than the last
// event's that passed the filter. It calls opened when everything that happens
// from now on will come.
func (c *Client) watch(ctx context.Context, after int64, follow bool, fn func(api.Event) error, opened func(), only []EventFilter) (int64, error) {
	stream, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	dog := time.AfterFunc(c.silence, func() { cancel(errSilent) })
	defer dog.Stop()
	params := api.StreamEventsParams{After: &after, Follow: &follow}
	if after == FromNewest {
		params.After, params.Newest = nil, new(true)
	}
	for _, f := range only {
		params.Resource, params.ID, params.Tag, params.Project = optionalList(f.Resources), optionalList(f.IDs), optionalList(f.Tags), optional(f.Project)
	}
	resp, err := c.raw.StreamEvents(stream, &params)
	if err != nil {
		return after, orSilent(stream, err)
	}
	defer func() { _ = resp.Body.Close() }()
	if err := asError(resp); err != nil {
		return after, orSilent(stream, err)
	}
	at := after
	if at != FromNewest {
		opened()
	}
	body := &watched{from: resp.Body, dog: dog, limit: c.silence}
	for msg, err := range sse.Read(body, &sse.ReadConfig{MaxEventSize: 1 << 20}) {
		if err := orSilent(stream, err); err != nil {
			return at, fmt.Errorf("reading the event stream: %w", err)
		}
		if msg.Data == "" { // It only says how far the cloud has looked.
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
		if err := json.Unmarshal([]byte(msg.Data), &ev); err != nil {
			return at, fmt.Errorf("event %s of the stream: %w", msg.LastEventID, err)
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
// onBreak, when not nil, is told of each break, and with nil whenever the stream
// is open: what happens from then on comes through it, after what happened
// during the break.
func (c *Client) Follow(ctx context.Context, after int64, fn func(api.Event) error, onBreak func(error), only ...EventFilter) error {
	wait := &backoff.ExponentialBackOff{InitialInterval: 200 * time.Millisecond, Multiplier: 2, RandomizationFactor: 0.2, MaxInterval: 2 * time.Second}
	wait.Reset()
	if onBreak == nil {
		onBreak = func(error) {}
	}
	var own error
	for {
		var err error
		after, err = c.watch(ctx, after, true, func(ev api.Event) error {
			wait.Reset()
			own = fn(ev)
			return own
		}, func() { onBreak(nil) }, only)
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
		onBreak(err)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(pause):
		}
	}
}
