package calls

import (
	"context"
	"errors"
	"io"
	"math"
	"net"
	"net/http"
	"os"
	"strings"
	"syscall"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/testutil"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
)

// fakeCloud gives every call the same answer.
type fakeCloud struct {
	status     int
	retryAfter string
	body       io.Reader
	err        error // in place of an answer
	sent       int
}

func (f *fakeCloud) RoundTrip(*http.Request) (*http.Response, error) {
	f.sent++
	resp := &http.Response{StatusCode: f.status, Header: http.Header{}, Body: io.NopCloser(f.body)}
	if f.retryAfter != "" {
		resp.Header.Set("Retry-After", f.retryAfter)
	}
	return resp, f.err
}

// newCloud has a cloud that answers with that status, and a client of it.
func newCloud(status int, retryAfter string, qps float64, burst int) (*fakeCloud, *http.Client) {
	throttles.Reset()
	cloud := &fakeCloud{status: status, retryAfter: retryAfter, body: strings.NewReader("")}
	return cloud, &http.Client{Transport: Wrap(qps, burst)(cloud)}
}

// send asks for something that begins with /v1/, for ten seconds at most, and returns the status, or the error of a
// call that was not sent.
func send(t *testing.T, c *http.Client, path string) (status int, heldBack *client.Error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://cloud.invalid/v1/"+path, nil)
	require.NoError(t, err)
	resp, err := c.Do(req)
	if errors.As(err, &heldBack) {
		return heldBack.Status, heldBack
	}
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	return resp.StatusCode, nil
}

func valueOf(t *testing.T, counter metrics.CounterMetric) int {
	t.Helper()
	value, err := testutil.GetCounterMetricValue(counter)
	require.NoError(t, err)
	return int(value)
}

// assertThrottled asserts how often calls were throttled since there is this cloud.
func assertThrottled(t *testing.T, want int, by, how string) {
	t.Helper()
	assert.Equal(t, want, valueOf(t, throttles.WithLabelValues(by, how)), "%s %s", how, by)
}

// A 429 is of all calls, and a 503 of its operation. What is not sent is refused as the cloud refuses.
func TestNothingIsSentWhileTheCloudAsksToStayAway(t *testing.T) {
	for name, tc := range map[string]struct {
		status int
		header string
		wait   time.Duration
	}{
		"429 with seconds":          {http.StatusTooManyRequests, "30", 30 * time.Second},
		"503 with seconds":          {http.StatusServiceUnavailable, "5", 5 * time.Second},
		"503 that asks for nothing": {http.StatusServiceUnavailable, "", 0},
		"a Retry-After of a year":   {http.StatusTooManyRequests, "31536000", time.Minute},
		"429 with a date":           {http.StatusTooManyRequests, "date", 20 * time.Second},
		"one with a fractional 1s":  {http.StatusTooManyRequests, "1.5", 1500 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				if tc.header == "date" {
					tc.header = time.Now().Add(tc.wait).UTC().Format(http.TimeFormat)
				}
				cloud, c := newCloud(tc.status, tc.header, 0, 0)
				// What a refusal says in its head counts, however its body ends.
				cloud.body = iotest.ErrReader(errors.New("the transport read it"))
				status, _ := send(t, c, "instances/i-1")
				assert.Equal(t, tc.status, status)
				*cloud = fakeCloud{status: http.StatusOK, body: strings.NewReader("")}
				if began := time.Now(); tc.wait > 0 {
					_, heldBack := send(t, c, "instances/i-1")
					require.True(t, client.HasCode(heldBack, api.RateLimited))
					assert.InDelta(t, math.Ceil(tc.wait.Seconds()), heldBack.RetryAfter.Seconds(), 0)
					require.ErrorContains(t, heldBack, "not sent: the cloud's Retry-After lasts for another ")
					assert.Zero(t, cloud.sent)
					assert.Zero(t, time.Since(began), "nobody waited")
					assertThrottled(t, 1, byCloud, "held-back")
					assertThrottled(t, 1, byCloud, "answered")
					status, _ = send(t, c, "routes")
					assert.Equal(t, tc.status == http.StatusTooManyRequests, status == http.StatusTooManyRequests)
				}
				time.Sleep(tc.wait)
				status, _ = send(t, c, "instances/i-1")
				assert.Equal(t, http.StatusOK, status)
			})
		})
	}
}

func TestAShortRetryAfterIsWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cloud, c := newCloud(http.StatusTooManyRequests, "", 0, 0) // That is a second.
		_, _ = send(t, c, "instances/i-1")
		began := time.Now()
		cloud.status = http.StatusOK
		status, _ := send(t, c, "instances/i-1")
		assert.Equal(t, http.StatusOK, status)
		assert.Equal(t, time.Second, time.Since(began))
		assertThrottled(t, 1, byCloud, "delayed")
	})
}

// A call leaves half of its time for the cloud's answer; one that would have to wait longer is answered at once, and
// takes nobody's turn.
func TestOwnLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, c := newCloud(http.StatusOK, "", 10, 5)
		began := time.Now()
		for range 25 {
			_, _ = send(t, c, "routes")
		}
		assert.Equal(t, 2*time.Second, time.Since(began), "5 at once, then 10 a second")
		assertThrottled(t, 20, byClient, "delayed")
		assertThrottled(t, 0, byCloud, "delayed")

		cloud, c := newCloud(http.StatusOK, "", 0.1, 1)
		_, _ = send(t, c, "routes")
		began = time.Now()
		for range 100 { // 10 s to wait, 10 s of time.
			_, heldBack := send(t, c, "routes")
			require.NotNil(t, heldBack)
			assert.Equal(t, 10*time.Second, heldBack.RetryAfter)
		}
		assert.Zero(t, time.Since(began))
		assertThrottled(t, 100, byClient, "held-back")
		time.Sleep(10 * time.Second)
		_, _ = send(t, c, "routes")

		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://cloud.invalid/v1/events", nil)
		require.NoError(t, err)
		_, err = c.Transport.RoundTrip(req) //nolint:bodyclose // The stream has no end by itself, and no answer.
		require.ErrorIs(t, err, context.Canceled)
		assert.Equal(t, 2, cloud.sent)
		assertThrottled(t, 1, byClient, "given-up")
	})
}

func TestWhatIsCounted(t *testing.T) {
	requests.Reset()
	durations.Reset()
	for _, tc := range []struct {
		method, path, operation, code string
		want, timed                   int   // how often it was counted and measured by then
		err, bodyErr                  error // before the head of the answer, and after it
	}{
		{"GET", "instances/i-1", "get-instance", "200", 1, 1, nil, io.EOF},
		{"GET", "events", "stream-events", "200", 1, 0, nil, nil},
		{"DELETE", "routes/r-1", "delete-route", "refused", 1, 1, os.NewSyscallError("connect", syscall.ECONNREFUSED), nil},
		{"DELETE", "routes/r-1", "delete-route", "timeout", 1, 2, context.DeadlineExceeded, nil},
		{"DELETE", "routes/r-1", "delete-route", "dns", 1, 3, &net.DNSError{IsNotFound: true}, nil},
		{"DELETE", "routes/r-1", "delete-route", "error", 1, 4, errors.New("strange"), nil},
		{"DELETE", "routes/r-1", "delete-route", "reset", 1, 5, nil, syscall.ECONNRESET},
		{"DELETE", "routes/r-1", "delete-route", "reset", 2, 6, nil, io.ErrUnexpectedEOF},
		{"DELETE", "routes/r-1", "delete-route", "canceled", 1, 7, nil, context.Canceled},
	} {
		cloud, c := newCloud(http.StatusOK, "", 0, 0)
		cloud.err, cloud.body = tc.err, io.MultiReader(strings.NewReader("begins"), iotest.ErrReader(tc.bodyErr))
		ctx := For(t.Context(), Inventory)
		req, err := http.NewRequestWithContext(ctx, tc.method, "http://cloud.invalid/v1/"+tc.path, nil)
		require.NoError(t, err)
		resp, err := c.Do(req) //nolint:bodyclose // Whether it is closed must not matter.
		require.Equal(t, tc.err == nil, err == nil)
		if tc.bodyErr != nil {
			_, _ = io.ReadAll(resp.Body)
		}
		assert.Equal(t, tc.want, valueOf(t, requests.WithLabelValues(Inventory, tc.operation, tc.code)), tc.code)
		timed, err := testutil.GetHistogramMetricCount(durations.WithLabelValues(tc.operation))
		require.NoError(t, err)
		assert.EqualValues(t, tc.timed, timed, tc.operation)
	}
	_, c := newCloud(http.StatusOK, "", 0, 0)
	_, _ = send(t, c, "instances/i-1") // whose body is closed
	assert.Equal(t, 1, valueOf(t, requests.WithLabelValues("unknown", "get-instance", "200")))
	cacheQuestions.Reset()
	CacheQuestion("instance", "hit")
	assert.Equal(t, 1, valueOf(t, cacheQuestions.WithLabelValues("instance", "hit")))
}

func TestOperation(t *testing.T) {
	for _, tc := range []struct{ method, path, want string }{
		{"GET", "/v1/project", "get-project"},
		{"GET", "/v1/events", "stream-events"},
		{"GET", "/v1/instances", "list-instances"},
		{"GET", "/v1/instances/i-1", "get-instance"},
		{"GET", "/behind/a/prefix/v1/load-balancers", "list-load-balancers"},
		{"POST", "/v1/load-balancers", "create-load-balancer"},
		{"PATCH", "/v1/load-balancers/lb-1", "update-load-balancer"},
		{"DELETE", "/v1/load-balancers/lb-1", "delete-load-balancer"},
		{"POST", "/v1/addresses", "create-address"},
		{"DELETE", "/v1/routes/rt-1", "delete-route"},
		{"GET", "/v1/instances/i-1/anything", "other"},
		{"GET", "/v1/instances/i-1/a/b", "other"},
		{"GET", "/v1/i-12345", "other"},
		{"BREW", "/v1/instances/i-1", "other"},
		{"GET", "/readyz", "other"},
	} {
		assert.Equal(t, tc.want, operationOf(tc.method, tc.path), "%s %s", tc.method, tc.path)
	}
}
