package main

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	vegeta "github.com/tsenart/vegeta/v12/lib"
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
	var numbers sync.Map
	r, err := load{
		Clients: 7, Period: time.Minute, Max: 500, Want: http.StatusOK,
		Next: func(n int) vegeta.Target {
			_, twice := numbers.LoadOrStore(n, true)
			assert.False(t, twice, "call %d was made twice", n)
			return vegeta.Target{Method: http.MethodGet, URL: s.URL}
		},
		Check: func(r *vegeta.Result) error {
			if string(r.Body) != "fine" {
				return errors.New("another body")
			}
			return nil
		},
	}.run(t.Context())
	require.NoError(t, err)
	assert.EqualValues(t, 500, asked.Load())
	assert.EqualValues(t, 50, refused.Load())
	assert.Equal(t, 450, r.Calls)
	assert.Equal(t, 50, r.Failed)
	assert.Contains(t, r.Failure, "status 429, not 200")
	assert.IsNonDecreasing(t, r.Took)
	assert.Positive(t, r.Elapsed)
	assert.Less(t, r.Elapsed, time.Minute)
}

func TestLoadEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	s := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { cancel() }))
	defer s.Close()
	_, err := load{Clients: 2, Period: time.Hour, Want: http.StatusOK, Next: func(int) vegeta.Target {
		return vegeta.Target{Method: http.MethodGet, URL: s.URL}
	}}.run(ctx)
	assert.ErrorIs(t, err, context.Canceled)
}

func TestCheckResult(t *testing.T) {
	l := load{Want: http.StatusOK, Check: func(*vegeta.Result) error { return errors.New("wrong body") }}
	assert.EqualError(t, l.checkResult(&vegeta.Result{Error: "unexpected EOF"}), "unexpected EOF")
	assert.ErrorContains(t, l.checkResult(&vegeta.Result{Code: 404}), "status 404, not 200")
	assert.EqualError(t, l.checkResult(&vegeta.Result{Code: 200}), "wrong body")
	assert.EqualError(t, l.checkResult(&vegeta.Result{Code: 200, Error: "unexpected EOF"}), "unexpected EOF", "cut off")
}
