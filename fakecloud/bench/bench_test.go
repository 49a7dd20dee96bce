package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/ccmlab/ccmlab/fakecloud/bench/machine"
)

// An answer that cannot be read completely is an error.
func TestUnreadableAnswers(t *testing.T) {
	for text, want := range map[string]string{
		"":                                    "unexpected EOF",
		"HTTP/1.1 2x0 OK\r\n\r\n":             "malformed HTTP status code",
		"HTTP/1.1 200 OK\r\nnonsense\r\n\r\n": "malformed MIME header",
		"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n":                                        "bad Content-Length",
		"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhel":                                      "unexpected EOF",
		"HTTP/1.1 200 OK\r\nContent-Length: 99999999\r\n\r\n" + strings.Repeat("x", maxBody+1): "more than",
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n":                          "invalid byte in chunk length",
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhello\r\n":                  "malformed chunked encoding",
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n":                  "unexpected EOF",
	} {
		ours, theirs := net.Pipe()
		go func() {
			_, _ = theirs.Read(make([]byte, 1))
			_, _ = io.WriteString(theirs, text)
			_ = theirs.Close()
		}()
		_, _, err := (&conn{net: ours, in: bufio.NewReader(ours)}).exchange([]byte("?"))
		assert.ErrorContains(t, err, want, text[:min(len(text), 100)])
	}
}

// Answers of net/http's server are read correctly, in whatever pieces they come, and nothing
// of the next answer is read.
func TestReadAnswersOfRealServer(t *testing.T) {
	var next atomic.Pointer[[]string]
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		for _, piece := range *next.Load() {
			_, _ = io.WriteString(w, piece)
			w.(http.Flusher).Flush()
		}
	}))
	defer s.Close()
	c, err := dialConn(t.Context(), s.Listener.Addr().String())
	require.NoError(t, err)
	defer c.close()
	rapid.Check(t, func(t *rapid.T) {
		pieces := rapid.SliceOfN(rapid.StringN(0, 3000, -1), 0, 4).Draw(t, "pieces")
		next.Store(&pieces)
		status, body, err := c.exchange(httpRequest("GET", "/", "here", "", nil))
		require.NoError(t, err)
		assert.Equal(t, http.StatusOK, status)
		assert.Equal(t, strings.Join(pieces, ""), string(body))
	})
}

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
	assert.Equal(t, machine.Latencies{0}, a.latencies)
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

// The load reports as many calls as the server has counted.
func TestLoadCountsMatchServer(t *testing.T) {
	var asked, refused atomic.Int64
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if asked.Add(1)%10 == 0 {
			refused.Add(1)
			w.WriteHeader(http.StatusTooManyRequests)
			return
		}
		_, _ = io.WriteString(w, "fine")
	}))
	defer s.Close()
	address := s.Listener.Addr().String()
	var numbers sync.Map
	r, err := load{Address: address, Clients: 7, Period: time.Minute, Max: 500, Next: func(_ int, n int64) call {
		_, twice := numbers.LoadOrStore(n, true)
		assert.False(t, twice, "call %d was made twice", n)
		return call{request: httpRequest("GET", "/", address, "", nil), want: http.StatusOK, check: func(body []byte) error {
			if string(body) != "fine" {
				return fmt.Errorf("got %q", body)
			}
			return nil
		}}
	}}.run(t.Context())
	require.NoError(t, err)
	assert.EqualValues(t, 500, asked.Load())
	assert.EqualValues(t, 50, refused.Load())
	assert.EqualValues(t, 450, r.Calls)
	assert.EqualValues(t, 50, r.Failed)
	assert.Contains(t, r.Failure, "GET / HTTP/1.1: status 429, not 200")
	assert.IsNonDecreasing(t, r.Took)
	assert.Positive(t, r.Elapsed)
	assert.Less(t, r.Elapsed, time.Minute)
}

// If nobody listens, each client gives up long before the period ends.
func TestLoadWithoutAServerEnds(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, l.Close())
	r, err := load{Address: l.Addr().String(), Clients: 3, Period: time.Hour, Next: func(int, int64) call { panic("no connection, no call") }}.run(t.Context())
	require.NoError(t, err)
	assert.Zero(t, r.Calls)
	assert.EqualValues(t, 300, r.Failed)
	assert.Zero(t, r.perSecond())
}

func TestLoadEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	s := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { cancel() }))
	defer s.Close()
	address := s.Listener.Addr().String()
	_, err := load{Address: address, Clients: 2, Period: time.Hour, Next: func(int, int64) call {
		return call{request: httpRequest("GET", "/", address, "", nil), want: http.StatusOK}
	}}.run(ctx)
	assert.ErrorIs(t, err, context.Canceled)
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
	b := bench{size: size{Watchers: 5}, cloud: &machine.Cloud{Address: s.Listener.Addr().String()}}
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
	b := bench{size: size{Watchers: 2}, cloud: &machine.Cloud{Address: s.Listener.Addr().String()}}
	var ended sync.WaitGroup
	watchers := b.startWatchers(t.Context(), &ended, 10)
	ended.Wait()
	var w watchResult
	w.addWatchers(watchers, 13)
	assert.EqualValues(t, 6, w.Missed)
	assert.Contains(t, w.Failure, "status 404")
}

func TestAddRatio(t *testing.T) {
	r := report{Rows: []row{{Name: "get", Values: map[string]float64{"perSecond": 300}}}}
	line := row{Values: map[string]float64{"perSecond": 100}, Measured: "100/s"}
	addRatio(&line, &r, "get")
	assert.Equal(t, "100/s; fakecloud does 3.00 times that", line.Measured)
	addRatio(&line, &r, "create") // It was not measured.
	assert.Equal(t, "100/s; fakecloud does 3.00 times that", line.Measured)
}

// If the peer is not available, a row says why.
func TestPeerUnavailable(t *testing.T) {
	b := bench{dir: t.TempDir(), peer: t.TempDir(), size: quickSize}
	rows := b.measurePeer(t.Context(), &report{})
	require.Len(t, rows, 1)
	assert.Equal(t, "could not be measured", rows[0].Measured)
	assert.Contains(t, rows[0].Note, "it cannot be built")
}

func TestPrintedReport(t *testing.T) {
	yes, no := true, false
	r := report{
		Machine: machine.Machine{Cores: 2, CPU: "some", Kernel: "linux 6", Go: "go1", FileSystem: "tmpfs"}, Size: fullSize,
		Server: &server{Validation: true},
		Rows: []row{
			{Figure: "get one", Measured: "9,000/s", Target: "≥ 8,000/s", Holds: &yes},
			{Figure: "create", Measured: "1/s", Target: "≥ 1,500/s", Holds: &no, Note: "3 calls failed"},
			{Figure: "peer", Measured: "2/s"},
		},
	}
	var out strings.Builder
	require.NoError(t, r.print(&out, "table"))
	for _, want := range []string{"2 cores (some), linux 6, go1", "tmpfs keeps nothing", "audit absent", "10,000 instances", "validation on"} {
		assert.Contains(t, out.String(), want)
	}
	lines := strings.Split(out.String(), "\n")
	assert.Contains(t, lines, "get one   9,000/s    ≥ 8,000/s   ✓")
	assert.Contains(t, lines, "create    1/s        ≥ 1,500/s   ✗")
	assert.Contains(t, lines, "peer      2/s        -           -")
	assert.Contains(t, lines, "create: 3 calls failed")
	out.Reset()
	require.NoError(t, r.print(&out, "json"))
	assert.Contains(t, out.String(), `"holds": false`)
}

func TestRefusedFlags(t *testing.T) {
	var b bench
	assert.ErrorContains(t, b.run(t.Context(), "", []string{"speed"}, "table"), "no figure \"speed\"")
	assert.ErrorContains(t, b.run(t.Context(), "", []string{"get"}, "yaml"), "choose table or json")
	b.binary = "no-such-program"
	temp := t.TempDir()
	assert.ErrorContains(t, b.run(t.Context(), temp, []string{"get"}, "table"), "no-such-program")
	assert.Contains(t, b.dir, temp)
	assert.NoDirExists(t, b.dir)
}
