package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/fakecloud/bench/harness"
)

func TestEventAccount(t *testing.T) {
	for name, c := range map[string]struct {
		seen                 []int64
		got, missed, doubled int64
	}{
		"all":                {[]int64{11, 12, 13}, 3, 0, 0},
		"none":               {nil, 0, 3, 0},
		"a gap":              {[]int64{11, 13}, 2, 1, 0},
		"the first missing":  {[]int64{12, 13}, 2, 1, 0},
		"the last missing":   {[]int64{11, 12}, 2, 1, 0},
		"one twice":          {[]int64{11, 12, 12, 13}, 3, 0, 1},
		"one from before":    {[]int64{10, 11, 12, 13}, 3, 0, 1},
		"one out of order":   {[]int64{11, 13, 12}, 2, 1, 1},
		"more than expected": {[]int64{11, 12, 13, 14}, 4, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			a := eventAccount{last: 10}
			for _, seq := range c.seen {
				a.recordEvent(seq, time.Millisecond)
			}
			a.countMissing(13)
			assert.Equal(t, c.got, a.received, "got")
			assert.Equal(t, c.missed, a.missed, "missed")
			assert.Equal(t, c.doubled, a.doubled, "doubled")
			assert.Len(t, a.latencies, int(c.got))
		})
	}
}

// If the clock was set back, the latency is 0.
func TestEventLatencyIsNotNegative(t *testing.T) {
	var a eventAccount
	a.recordEvent(1, -time.Second)
	assert.Equal(t, harness.Latencies{0}, a.latencies)
}

func TestReadMessage(t *testing.T) {
	in := bufio.NewReader(strings.NewReader(": connected\n\n" +
		"id: 7\nevent: created\ndata: {\"id\":\"r-1\",\"route\":{\"createdAt\":\"2020-01-01T00:00:00Z\"},\"seq\":7,\"time\":\"2026-11-21T05:00:00.25Z\",\"type\":\"created\"}\n\n" +
		": still here\n\n" +
		"id: 7\n\n" +
		"id: 8\nevent: deleted\ndata: {\"time\":\"2026-11-21T05:00:01Z\"}\n\n"))
	m, err := readMessage(in)
	require.NoError(t, err)
	assert.EqualValues(t, 7, m.seq)
	assert.Equal(t, time.Date(2026, 11, 21, 5, 0, 0, 250_000_000, time.UTC), m.time)
	m, err = readMessage(in)
	require.NoError(t, err)
	assert.EqualValues(t, 8, m.seq)
	_, err = readMessage(in)
	assert.ErrorIs(t, err, io.EOF)

	for text, want := range map[string]string{
		"id: x\n\n":                          "event number",
		"id: 1\ndata: {}\n\n":                "without a time",
		"id: 1\ndata: {\"time\":\"noon\"}\n": "cannot parse",
	} {
		_, err := readMessage(bufio.NewReader(strings.NewReader(text)))
		assert.ErrorContains(t, err, want)
	}
}

func TestWatchers(t *testing.T) {
	const events = 20
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, ": connected\n\n")
		for i := range events {
			_, _ = fmt.Fprintf(w, "id: %d\ndata: {\"time\":%q}\n\n", 101+i, time.Now().Format(time.RFC3339Nano))
			w.(http.Flusher).Flush()
		}
		<-r.Context().Done()
	}))
	defer s.Close()
	b := bench{size: size{Watchers: 5}, cloud: &harness.Cloud{Address: s.Listener.Addr().String()}}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var ended sync.WaitGroup
	watchers := b.startWatchers(ctx, &ended, 100)
	awaitAll(ctx, watchers, 100+events)
	stop()
	ended.Wait()
	var w watchResult
	w.addWatchers(watchers, 100+events+1) // One was never sent.
	assert.EqualValues(t, 5*events, w.Delivered)
	assert.EqualValues(t, 5, w.Missed)
	assert.Zero(t, w.Doubled)
	assert.Len(t, w.Late, 5*events)
	assert.NotEmpty(t, w.Failure)
}

// A refused watcher does not delay the others, and has missed every event.
func TestRefusedWatcher(t *testing.T) {
	s := httptest.NewServer(http.NotFoundHandler())
	defer s.Close()
	b := bench{size: size{Watchers: 2}, cloud: &harness.Cloud{Address: s.Listener.Addr().String()}}
	var ended sync.WaitGroup
	watchers := b.startWatchers(t.Context(), &ended, 10)
	ended.Wait()
	var w watchResult
	w.addWatchers(watchers, 13)
	assert.EqualValues(t, 6, w.Missed)
	assert.Contains(t, w.Failure, "status 404")
}
