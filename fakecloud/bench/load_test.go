package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

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
		return call{request: httpRequest(
			"GET", "/", address, "", nil,
		), want: http.StatusOK, check: func(body []byte) error {
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
	r, err := load{
		Address: l.Addr().String(), Clients: 3, Period: time.Hour,
		Next: func(int, int64) call { panic("no connection, no call") },
	}.run(t.Context())
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
