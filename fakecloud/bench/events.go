package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ccmlab/ccmlab/fakecloud/bench/harness"
)

// eventAccount counts the events that one watcher receives. Their numbers grow by one.
type eventAccount struct {
	// last is the newest number received or, before the first event, the number to
	// follow.
	last            int64
	received        int64
	missed, doubled int64
	latencies       harness.Latencies
}

// recordEvent counts an event. A number that comes after a greater one counts as doubled, as
// a stream is in order.
func (a *eventAccount) recordEvent(seq int64, late time.Duration) {
	if seq <= a.last {
		a.doubled++
		return
	}
	a.missed += seq - a.last - 1
	a.last = seq
	a.received++
	a.latencies = append(a.latencies, max(late, 0))
}

// countMissing counts the events missing up to the newest one of the log as missed.
func (a *eventAccount) countMissing(newest int64) {
	a.missed += max(newest-a.last, 0)
	a.last = max(newest, a.last)
}

// message is one server-sent event: its number, and the time of its change.
type message struct {
	seq  int64
	time time.Time
}

// readMessage reads the next event. It skips comments and heartbeats, which have a number and
// no data. At the end of the stream it returns io.EOF.
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

// eventTime finds the time of an event without decoding the JSON: at 100,000 events a second
// that would cost more than the server's part of the work. No resource within an event has
// a field "time".
func eventTime(data []byte) (time.Time, error) {
	_, rest, ok := bytes.Cut(data, []byte(`"time":"`))
	value, _, closed := bytes.Cut(rest, []byte(`"`))
	if !ok || !closed {
		return time.Time{}, fmt.Errorf("event without a time: %.200s", data)
	}
	return time.Parse(time.RFC3339Nano, string(value))
}

// maxEvent is the length of the longest line that can be read.
const maxEvent = 64 << 10

// watcher follows the event log.
type watcher struct {
	eventAccount
	at  atomic.Int64 // eventAccount.last, for other goroutines
	err error        // why readStream ended
}

// readStream reads the event stream until ctx ends. It calls connected when the stream is
// open.
func (w *watcher) readStream(ctx context.Context, cloud *harness.Cloud, connected func()) error {
	url := fmt.Sprintf("http://%s/v1/events?after=%d", cloud.Address, w.last)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", "Bearer "+cloud.Token)
	r, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = r.Body.Close() }()
	if r.StatusCode != http.StatusOK {
		return fmt.Errorf("the event stream answers with status %d", r.StatusCode)
	}
	connected()
	stream := bufio.NewReaderSize(r.Body, maxEvent)
	for {
		m, err := readMessage(stream)
		if err != nil {
			return err
		}
		w.recordEvent(m.seq, time.Since(m.time))
		w.at.Store(w.last)
	}
}

// watchResult adds up what all watchers received.
type watchResult struct {
	Watchers        int
	Changes         int64 // acknowledged
	ChangesPerSec   float64
	Events          int64 // of those changes, in the log
	Delivered       int64
	Missed, Doubled int64
	Late            harness.Latencies
	Failure         string
}

// watchChanges runs many watchers while changes are made at a fixed rate.
func (b *bench) watchChanges(ctx context.Context) (out watchResult, err error) {
	routes, err := b.createRoutes(ctx)
	if err != nil {
		return out, err
	}
	from, err := b.client.NewestEvent(ctx)
	if err != nil {
		return out, err
	}
	watching, stop := context.WithCancel(ctx)
	var ended sync.WaitGroup
	defer ended.Wait()
	defer stop()
	watchers := b.startWatchers(watching, &ended, from)
	made, err := b.changeRoutes(routes).run(ctx)
	if err != nil {
		return out, err
	}
	newest, err := b.client.NewestEvent(ctx)
	if err != nil {
		return out, err
	}
	awaitAll(ctx, watchers, newest)
	stop()
	ended.Wait()
	out = watchResult{
		Changes: int64(made.Calls), ChangesPerSec: made.perSecond(), Events: newest - from, Failure: made.Failure,
	}
	out.addWatchers(watchers, newest)
	return out, ctx.Err()
}

// startWatchers starts the watchers, and returns when all have connected or failed.
func (b *bench) startWatchers(ctx context.Context, ended *sync.WaitGroup, from int64) []*watcher {
	watchers := make([]*watcher, b.size.Watchers)
	var connected sync.WaitGroup
	connected.Add(len(watchers))
	for i := range watchers {
		w := &watcher{eventAccount: eventAccount{last: from}}
		watchers[i] = w
		ended.Go(func() {
			once := sync.OnceFunc(connected.Done)
			defer once()
			w.err = w.readStream(ctx, b.cloud, once)
		})
	}
	connected.Wait()
	return watchers
}

// watcherTimeout is how long watchers have after the last change. Events that have not come
// by then count as missed.
const watcherTimeout = 15 * time.Second

func awaitAll(ctx context.Context, watchers []*watcher, newest int64) {
	ctx, cancel := context.WithTimeout(ctx, watcherTimeout)
	defer cancel()
	for _, w := range watchers {
		for w.at.Load() < newest && ctx.Err() == nil {
			time.Sleep(10 * time.Millisecond)
		}
	}
}

// addWatchers adds what the watchers, which have ended, have received.
func (o *watchResult) addWatchers(watchers []*watcher, newest int64) {
	o.Watchers = len(watchers)
	for _, w := range watchers {
		if w.last < newest && w.err != nil {
			o.Failure = w.err.Error()
		}
		w.countMissing(newest)
		o.Missed += w.missed
		o.Doubled += w.doubled
		o.Delivered += w.received
		o.Late = append(o.Late, w.latencies...)
	}
	slices.Sort(o.Late)
}
