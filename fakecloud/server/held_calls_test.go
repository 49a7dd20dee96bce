package server_test

import (
	"context"
	"net/http"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/fakecloud/api"
)

// openAll makes calls of the token ccm that last, and gives what ends them.
func (r *rig) openAll(t *testing.T, calls int, path string) (end func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var under sync.WaitGroup
	for range calls {
		under.Go(func() {
			req, err := http.NewRequestWithContext(ctx, http.MethodGet, r.url+path, nil)
			if !assert.NoError(t, err) {
				return
			}
			req.Header.Set("Authorization", "Bearer "+ccmSecret)
			if resp, err := http.DefaultClient.Do(req); err == nil {
				assert.Equal(t, http.StatusOK, resp.StatusCode)
				<-ctx.Done()
				_ = resp.Body.Close()
			}
		})
	}
	return func() { cancel(); under.Wait() }
}

func (r *rig) awaitMetric(t *testing.T, name string, want float64) {
	t.Helper()
	require.Eventually(t, func() bool { return samples(t, r.url)[name] == want }, patience, patience/1000)
}

func TestEventStreamsOfATokenAreBounded(t *testing.T) {
	r := newRig(t)
	const watchers = "fakecloud_event_watchers{}"
	end := r.openAll(t, 64, "/v1/events?newest=true")
	r.awaitMetric(t, watchers, 64)
	answer, p := r.asCCM(t, "GET", "/v1/events?follow=false", "")
	assert.Equal(t, http.StatusTooManyRequests, answer.StatusCode)
	assert.Equal(t, api.RateLimited, p.Code)
	assert.Equal(t, "1", answer.Header.Get("Retry-After"))
	assert.Contains(t, p.Detail, `event streams of token "ccm", which may have 64`)
	assert.EqualValues(t, 1, samples(t, r.url)["fakecloud_rate_limited_total{limit=streams}"])
	answer, _ = r.call(t, "GET", "/v1/events?follow=false", "")
	assert.Equal(t, http.StatusOK, answer.StatusCode, "another token has its own")
	end()
	r.awaitMetric(t, watchers, 0)
	answer, _ = r.asCCM(t, "GET", "/v1/events?follow=false", "")
	assert.Equal(t, http.StatusOK, answer.StatusCode)
}

func TestCallsOfATokenThatWaitAreBounded(t *testing.T) {
	r := newRig(t)
	f := r.breakCCM(t, api.FaultCreate{
		Match: api.FaultMatch{Operations: []string{"listZones"}}, Effect: api.FaultEffect{Hang: true},
	})
	end := r.openAll(t, 256, "/v1/zones")
	r.awaitHits(t, f.ID, 256)
	const waiting = "fakecloud_requests_in_flight{}"
	r.awaitMetric(t, waiting, 257) // With the one that asks.
	for _, call := range [][2]string{{"GET", "/v1/zones"}, {"POST", "/v1/instances?wait=30"}} {
		body := ""
		if call[0] == "POST" {
			body = "{}"
		}
		answer, p := r.asCCM(t, call[0], call[1], body)
		assert.Equal(t, http.StatusTooManyRequests, answer.StatusCode, p.Detail)
		assert.Equal(t, "1", answer.Header.Get("Retry-After"))
		assert.Contains(t, p.Detail, `calls that wait of token "ccm", which may have 256`)
	}
	assert.Empty(t, r.names(t), "what is refused is not done")
	answer, _ := r.asCCM(t, "POST", "/v1/instances", "{}")
	assert.Equal(t, http.StatusCreated, answer.StatusCode, "it does not wait")
	end()
	r.awaitMetric(t, waiting, 1)
	answer, _ = r.asCCM(t, "POST", "/v1/instances?wait=30", "{}")
	assert.Equal(t, http.StatusCreated, answer.StatusCode)
}
