package calls

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/cloud-provider/names"
	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/testutil"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
)

// fakeCloud notes when calls came.
type fakeCloud struct {
	answer func(*http.Request) (*http.Response, error) // an instance, unless it is set

	mu sync.Mutex
	at []time.Time
}

func (f *fakeCloud) RoundTrip(req *http.Request) (*http.Response, error) {
	f.mu.Lock()
	f.at = append(f.at, time.Now())
	f.mu.Unlock()
	if f.answer == nil {
		return says(req, http.StatusOK, "", wholeInstance()), nil
	}
	return f.answer(req)
}

func says(req *http.Request, status int, retryAfter, body string) *http.Response {
	resp := &http.Response{
		StatusCode: status, Header: http.Header{}, Body: io.NopCloser(strings.NewReader(body)), Request: req,
	}
	if retryAfter != "" {
		resp.Header.Set("Retry-After", retryAfter)
	}
	return resp
}

func wholeInstance() string {
	body, _ := json.Marshal(api.Instance{Addresses: []api.Address{}, Tags: api.Tags{}, Identities: map[string]string{}})
	return string(body)
}

// refuse has the cloud answer each call so.
func (f *fakeCloud) refuse(status int, retryAfter string) {
	f.answer = func(req *http.Request) (*http.Response, error) { return says(req, status, retryAfter, ""), nil }
}

func clientOf(t *testing.T, cloud http.RoundTripper, qps float64, burst int) *client.Client {
	t.Helper()
	token := filepath.Join(t.TempDir(), "token")
	require.NoError(t, os.WriteFile(token, []byte("secret"), 0o600))
	c, err := client.New(client.Config{
		URL: "http://cloud.invalid", TokenFile: token, Transport: cloud, Wrap: Wrap(qps, burst),
	})
	require.NoError(t, err)
	return c
}

func valueOf(t *testing.T, counter metrics.CounterMetric) float64 {
	t.Helper()
	value, err := testutil.GetCounterMetricValue(counter)
	require.NoError(t, err)
	return value
}

// assertThrottled asserts how often calls were throttled since throttles was reset.
func assertThrottled(t *testing.T, want int, by, how string) {
	t.Helper()
	assert.InDelta(t, want, valueOf(t, throttles.WithLabelValues(by, how)), 0, "%s %s", how, by)
}

type answer struct {
	status     int
	retryAfter time.Duration
}

// send asks for something that begins with /v1/, for ten seconds at most.
func send(t *testing.T, rt http.RoundTripper, path string) answer {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://cloud.invalid/v1/"+path, nil)
	require.NoError(t, err)
	resp, err := rt.RoundTrip(req)
	var heldBack *client.Error
	if errors.As(err, &heldBack) {
		return answer{heldBack.Status, heldBack.RetryAfter}
	}
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	return answer{resp.StatusCode, 0}
}

// A 429 is of all calls, and a 503 of its operation.
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
				cloud := &fakeCloud{}
				cloud.refuse(tc.status, tc.header)
				rt := Wrap(0, 0)(cloud)
				throttles.Reset()
				assert.Equal(t, tc.status, send(t, rt, "instances/i-1").status)
				cloud.answer = nil
				if tc.wait > 0 {
					began := time.Now()
					assert.Equal(t, http.StatusTooManyRequests, send(t, rt, "instances/i-1").status)
					assert.Len(t, cloud.at, 1, "the second was not sent")
					assert.Zero(t, time.Since(began), "and nobody waited")
					assertThrottled(t, 1, byCloud, "held-back")
					assertThrottled(t, 1, byCloud, "answered")
					isOfAll := tc.status == http.StatusTooManyRequests
					assert.Equal(t, isOfAll, send(t, rt, "routes").status == http.StatusTooManyRequests)
				}
				time.Sleep(tc.wait)
				assert.Equal(t, http.StatusOK, send(t, rt, "instances/i-1").status)
			})
		})
	}
}

// What a refusal says in its head counts, however its body ends. The body is left to the client, who bounds it.
func TestARefusalIsKnownByItsHead(t *testing.T) {
	body := iotest.ErrReader(errors.New("the transport read it"))
	rt := Wrap(0, 0)(&fakeCloud{answer: func(req *http.Request) (*http.Response, error) {
		resp := says(req, http.StatusTooManyRequests, "30", "")
		resp.Body = io.NopCloser(body)
		return resp, nil
	}})
	assert.Equal(t, http.StatusTooManyRequests, send(t, rt, "instances/i-1").status)
	throttles.Reset()
	send(t, rt, "instances/i-1")
	assertThrottled(t, 1, byCloud, "held-back")
}

// What callers get for a call that was not sent is the cloud's own problem.
func TestHeldBackIsTheCloudsOwnProblem(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cloud := &fakeCloud{}
		cloud.refuse(http.StatusTooManyRequests, "30")
		c := clientOf(t, cloud, 100, 10)
		_, err := c.GetInstance(t.Context(), "i-1")
		require.Error(t, err)
		time.Sleep(9500 * time.Millisecond)
		_, err = c.CreateLoadBalancer(t.Context(), api.LoadBalancerCreate{})
		var refused *client.Error
		require.ErrorAs(t, err, &refused)
		assert.Equal(t, 21*time.Second, refused.RetryAfter)
		assert.True(t, client.HasCode(err, api.RateLimited))
		assert.ErrorContains(t, err, "the cloud's Retry-After lasts for another 21 s")
		assert.Len(t, cloud.at, 1)
	})
}

func TestAShortRetryAfterIsWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cloud := &fakeCloud{}
		cloud.answer = func(req *http.Request) (*http.Response, error) {
			cloud.answer = nil
			return says(req, http.StatusTooManyRequests, "", ""), nil // That is a second.
		}
		c := clientOf(t, cloud, 0, 0)
		throttles.Reset()
		_, err := c.GetInstance(t.Context(), "i-1") // The client's own retry comes sooner.
		require.NoError(t, err)
		require.Len(t, cloud.at, 2)
		assert.Equal(t, time.Second, cloud.at[1].Sub(cloud.at[0]))
		assertThrottled(t, 1, byCloud, "delayed")
	})
}

func TestOwnLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt := Wrap(10, 5)(&fakeCloud{})
		throttles.Reset()
		began := time.Now()
		for range 25 {
			send(t, rt, "routes")
		}
		assert.Equal(t, 2*time.Second, time.Since(began), "5 at once, then 10 a second")
		assertThrottled(t, 20, byClient, "delayed")
		assertThrottled(t, 0, byCloud, "delayed")
	})
}

// A call leaves half of its time for the cloud's answer; one that would have to
// wait longer is answered at once, and takes nobody's turn.
func TestOwnLimitKeepsWithinTheCallsTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cloud := &fakeCloud{}
		rt := Wrap(0.1, 1)(cloud)
		throttles.Reset()
		began := time.Now()
		assert.Equal(t, http.StatusOK, send(t, rt, "routes").status)
		for range 100 { // 10 s to wait, 10 s of time.
			assert.Equal(t, answer{http.StatusTooManyRequests, 10 * time.Second}, send(t, rt, "routes"))
		}
		assert.Zero(t, time.Since(began))
		assertThrottled(t, 100, byClient, "held-back")
		time.Sleep(10 * time.Second)
		assert.Equal(t, http.StatusOK, send(t, rt, "routes").status)
		assert.Len(t, cloud.at, 2)
	})
}

func TestACallThatIsGivenUpStopsWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cloud := &fakeCloud{}
		c := clientOf(t, cloud, 0.1, 1)
		_, err := c.GetInstance(t.Context(), "i-1")
		require.NoError(t, err)
		throttles.Reset()
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		require.ErrorIs(t, c.Watch(ctx, 0, false, nil), context.Canceled) // The stream has no end by itself.
		assert.Len(t, cloud.at, 1)
		assertThrottled(t, 1, byClient, "given-up")
	})
}

func TestWhatIsCounted(t *testing.T) {
	requests.Reset()
	durations.Reset()
	cloud := &fakeCloud{}
	c := clientOf(t, cloud, 0, 0)
	assertCounted := func(want int, controller, operation, code string) {
		t.Helper()
		assert.InDelta(t, want, valueOf(t, requests.WithLabelValues(controller, operation, code)), 0, code)
	}
	assertTimed := func(want int, operation string) {
		t.Helper()
		count, err := testutil.GetHistogramMetricCount(durations.WithLabelValues(operation))
		require.NoError(t, err)
		assert.EqualValues(t, want, count, operation)
	}
	_, err := c.GetInstance(t.Context(), "i-1")
	require.NoError(t, err)
	assertCounted(1, "unknown", "get-instance", "200")
	assertTimed(1, "get-instance")

	cloud.refuse(http.StatusOK, "")
	require.NoError(t, c.Watch(For(t.Context(), Inventory), 0, false, nil))
	assertCounted(1, Inventory, "stream-events", "200")
	assertTimed(0, "stream-events")

	// Calls that fail before the head of their answer, and after it.
	for _, failure := range []struct {
		code       string
		want       int // how often it was counted by then
		head, body error
	}{
		{code: "refused", want: 1, head: &net.OpError{Op: "dial", Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}},
		{code: "timeout", want: 1, head: context.DeadlineExceeded},
		{code: "dns", want: 1, head: &net.OpError{Op: "dial", Err: &net.DNSError{IsNotFound: true}}},
		{code: "error", want: 1, head: errors.New("strange")},
		{code: "reset", want: 1, body: syscall.ECONNRESET},
		{code: "reset", want: 2, body: io.ErrUnexpectedEOF},
		{code: "canceled", want: 1, body: context.Canceled},
	} {
		cloud.answer = func(req *http.Request) (*http.Response, error) {
			resp := says(req, http.StatusOK, "", "")
			resp.Body = io.NopCloser(iotest.ErrReader(failure.body))
			return resp, failure.head
		}
		_, err = c.DeleteLoadBalancer(client.OneAttempt(For(t.Context(), names.ServiceLBController)), "lb-1")
		require.Error(t, err)
		assertCounted(failure.want, names.ServiceLBController, "delete-load-balancer", failure.code)
	}
	assertCounted(0, names.ServiceLBController, "delete-load-balancer", "200")
	assertTimed(7, "delete-load-balancer")

	cacheQuestions.Reset()
	CacheQuestion("instance", "hit")
	assert.Equal(t, 1., valueOf(t, cacheQuestions.WithLabelValues("instance", "hit")))
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
