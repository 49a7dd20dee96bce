package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ccmlab/ccmlab/fakecloud/bench/machine"
)

// account is what one watcher has got, of numbers that grow by one.
type account struct {
	// last is the newest number seen; before the first, the one to follow.
	last            int64
	got             int64
	missed, doubled int64
	late            machine.Latencies
}

// saw counts an event. A number that comes late, after a greater one, is
// counted as doubled: a stream is in order.
func (a *account) saw(seq int64, late time.Duration) {
	if seq <= a.last {
		a.doubled++
		return
	}
	a.missed += seq - a.last - 1
	a.last = seq
	a.got++
	a.late = append(a.late, max(late, 0))
}

// end counts what is missing up to the last event there was.
func (a *account) end(newest int64) {
	a.missed += max(newest-a.last, 0)
	a.last = max(newest, a.last)
}

// message is one server-sent event: its number, and when its change was made.
type message struct {
	seq  int64
	time time.Time
}

// readMessage skips comments, and numbers without data, which only tell a reader
// its place. It gives io.EOF when the stream ends.
func readMessage(in *bufio.Reader) (message, error) {
	var m message
	for {
		line, err := in.ReadSlice('\n')
		if err != nil {
			return m, err
		}
		line = bytes.TrimRight(line, "\r\n")
		field, value, _ := bytes.Cut(line, []byte(": "))
		switch string(field) {
		case "":
			if !m.time.IsZero() {
				return m, nil
			}
			m = message{}
		case "id":
			if m.seq, err = strconv.ParseInt(string(value), 10, 64); err != nil {
				return m, fmt.Errorf("event number %q: %w", value, err)
			}
		case "data":
			if m.time, err = eventTime(value); err != nil {
				return m, err
			}
		}
	}
}

// eventTime finds the event's own time. Decoding 100,000 events a second as
// JSON would cost more than the server's part of the work. No resource within
// an event has a field of that name.
func eventTime(data []byte) (time.Time, error) {
	_, rest, ok := bytes.Cut(data, []byte(`"time":"`))
	value, _, closed := bytes.Cut(rest, []byte(`"`))
	if !ok || !closed {
		return time.Time{}, fmt.Errorf("event without a time: %.200s", data)
	}
	return time.Parse(time.RFC3339Nano, string(value))
}

// maxEvent is the longest line of an event that is read.
const maxEvent = 64 << 10

// watcher is one that follows the log.
type watcher struct {
	account
	at  atomic.Int64 // account.last, for those who wait for it
	err error        // why it ended
}

// watch reads the stream until ctx ends. connected is called when it is open.
func (w *watcher) watch(ctx context.Context, address string, req []byte, connected func()) error {
	c, err := dial(ctx, address)
	if err != nil {
		return err
	}
	defer c.close()
	defer context.AfterFunc(ctx, c.close)()
	r, err := c.send(req) //nolint:bodyclose // It has no end; the connection is closed.
	if err != nil {
		return err
	}
	if r.StatusCode != http.StatusOK {
		return fmt.Errorf("the event stream answers with status %d", r.StatusCode)
	}
	if err := c.net.SetDeadline(time.Time{}); err != nil { // ctx ends it.
		return err
	}
	connected()
	stream := bufio.NewReaderSize(r.Body, maxEvent)
	for {
		m, err := readMessage(stream)
		if err != nil {
			return err
		}
		w.saw(m.seq, time.Since(m.time))
		w.at.Store(w.last)
	}
}

// newest is the number of the newest event after the given one, and how many
// there are. after 0 reads from the oldest.
func (b *bench) newest(ctx context.Context, after int64) (last, count int64, err error) {
	body, err := once(ctx, b.cloud.Address, call{request: b.get("/v1/events?follow=false&after=" + strconv.FormatInt(after, 10)), want: http.StatusOK})
	if err != nil {
		return 0, 0, fmt.Errorf("reading the event log: %w", err)
	}
	last = after
	in := bufio.NewReaderSize(bytes.NewReader(body), maxEvent)
	for {
		m, err := readMessage(in)
		if errors.Is(err, io.EOF) {
			return last, count, nil
		}
		if err != nil {
			return 0, 0, err
		}
		last, count = m.seq, count+1
	}
}

// watched is what all watchers got together.
type watched struct {
	Watchers        int
	Changes         int64 // acknowledged
	ChangesPerSec   float64
	Events          int64 // in the log, of those changes
	Delivered       int64
	Missed, Doubled int64
	Late            machine.Latencies
	Failure         string
}

// watchChanges follows the log with many watchers while changes are made at a
// fixed rate.
func (b *bench) watchChanges(ctx context.Context) (watched, error) {
	from, _, err := b.newest(ctx, 0)
	if err != nil {
		return watched{}, err
	}
	watching, stop := context.WithCancel(ctx)
	var ended sync.WaitGroup
	defer ended.Wait()
	defer stop()
	watchers := b.startWatchers(watching, &ended, from)
	out, err := b.change(ctx)
	if err != nil {
		return out, err
	}
	newest, events, err := b.newest(ctx, from)
	if err != nil {
		return out, err
	}
	awaitAll(ctx, watchers, newest)
	stop()
	ended.Wait()
	out.Events = events
	out.sum(watchers, newest)
	return out, ctx.Err()
}

// startWatchers returns when all are connected, or have failed.
func (b *bench) startWatchers(ctx context.Context, ended *sync.WaitGroup, from int64) []*watcher {
	req := b.get("/v1/events?after=" + strconv.FormatInt(from, 10))
	watchers := make([]*watcher, b.size.Watchers)
	var connected sync.WaitGroup
	connected.Add(len(watchers))
	for i := range watchers {
		w := &watcher{account: account{last: from}}
		watchers[i] = w
		ended.Go(func() {
			once := sync.OnceFunc(connected.Done)
			defer once()
			w.err = w.watch(ctx, b.cloud.Address, req, once)
		})
	}
	connected.Wait()
	return watchers
}

// grace is how long watchers are waited for after the last change. Whoever
// comes later has missed the events.
const grace = 15 * time.Second

func awaitAll(ctx context.Context, watchers []*watcher, newest int64) {
	ctx, cancel := context.WithTimeout(ctx, grace)
	defer cancel()
	for _, w := range watchers {
		for w.at.Load() < newest && ctx.Err() == nil {
			time.Sleep(10 * time.Millisecond)
		}
	}
}

// sum adds up what watchers that have ended got.
func (o *watched) sum(watchers []*watcher, newest int64) {
	o.Watchers = len(watchers)
	for _, w := range watchers {
		if w.last < newest && w.err != nil {
			o.Failure = w.err.Error()
		}
		w.end(newest)
		o.Missed += w.missed
		o.Doubled += w.doubled
		o.Delivered += w.got
		o.Late = append(o.Late, w.late...)
	}
	slices.Sort(o.Late)
}
