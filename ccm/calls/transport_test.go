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

func clientOf(t *testing.T, cloud http.RoundTripper, o Options) *client.Client {
	t.Helper()
	token := filepath.Join(t.TempDir(), "token")
	require.NoError(t, os.WriteFile(token, []byte("secret"), 0o600))
	c, err := client.New(client.Config{URL: "http://cloud.invalid", TokenFile: token, Transport: cloud, Wrap: Wrap(o)})
	require.NoError(t, err)
	return c
}

// grew tells by how much a value has grown since grew was called.
func grew[N float64 | uint64](t *testing.T, value func() (N, error)) func() N {
	t.Helper()
	before, err := value()
	require.NoError(t, err)
	return func() N {
		after, err := value()
		require.NoError(t, err)
		return after - before
	}
}

func throttlesOf(t *testing.T, by, how string) func() float64 {
	return grew(t, func() (float64, error) {
		return testutil.GetCounterMetricValue(throttles.WithLabelValues(by, how))
	})
}

func requestsOf(t *testing.T, controller, operation, code string) func() float64 {
	return grew(t, func() (float64, error) {
		return testutil.GetCounterMetricValue(requests.WithLabelValues(controller, operation, code))
	})
}

func durationsOf(t *testing.T, operation string) func() uint64 {
	return grew(t, func() (uint64, error) {
		return testutil.GetHistogramMetricCount(durations.WithLabelValues(operation))
	})
}

type answer struct {
	status     int
	retryAfter string
}

// send asks for something that begins with /v1/, for ten seconds at most.
func send(t *testing.T, rt http.RoundTripper, path string) answer {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://cloud.invalid/v1/"+path, nil)
	require.NoError(t, err)
	resp, err := rt.RoundTrip(req)
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	return answer{resp.StatusCode, resp.Header.Get("Retry-After")}
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
				rt := Wrap(Options{})(cloud)
				heldBack, answered := throttlesOf(t, "cloud", "held-back"), throttlesOf(t, "cloud", "answered")
				assert.Equal(t, tc.status, send(t, rt, "instances/i-1").status)
				cloud.answer = nil
				if tc.wait > 0 {
					began := time.Now()
					assert.Equal(t, http.StatusTooManyRequests, send(t, rt, "instances/i-1").status)
					assert.Len(t, cloud.at, 1, "the second was not sent")
					assert.Zero(t, time.Since(began), "and nobody waited")
					assert.Equal(t, 1., heldBack())
					assert.Equal(t, 1., answered())
					isOfAll := tc.status == http.StatusTooManyRequests
					assert.Equal(t, isOfAll, send(t, rt, "routes").status == http.StatusTooManyRequests)
				}
				time.Sleep(tc.wait)
				assert.Equal(t, http.StatusOK, send(t, rt, "instances/i-1").status)
			})
		})
	}
}

// What callers get for a call that was not sent is the cloud's own problem.
func TestHeldBackIsTheCloudsOwnProblem(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cloud := &fakeCloud{}
		cloud.refuse(http.StatusTooManyRequests, "30")
		c := clientOf(t, cloud, Options{QPS: 100, Burst: 10})
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
		c := clientOf(t, cloud, Options{})
		delayed := throttlesOf(t, "cloud", "delayed")
		_, err := c.GetInstance(t.Context(), "i-1") // The client's own retry comes sooner.
		require.NoError(t, err)
		require.Len(t, cloud.at, 2)
		assert.Equal(t, time.Second, cloud.at[1].Sub(cloud.at[0]))
		assert.Equal(t, 1., delayed())
	})
}

func TestOwnLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt := Wrap(Options{QPS: 10, Burst: 5})(&fakeCloud{})
		delayed, byCloud := throttlesOf(t, "client", "delayed"), throttlesOf(t, "cloud", "delayed")
		began := time.Now()
		for range 25 {
			send(t, rt, "routes")
		}
		assert.Equal(t, 2*time.Second, time.Since(began), "5 at once, then 10 a second")
		assert.Equal(t, 20., delayed())
		assert.Zero(t, byCloud())
	})
}

// A call leaves half of its time for the cloud's answer; one that would have to
// wait longer is answered at once, and takes nobody's turn.
func TestOwnLimitKeepsWithinTheCallsTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cloud := &fakeCloud{}
		rt := Wrap(Options{QPS: 0.1, Burst: 1})(cloud)
		heldBack, began := throttlesOf(t, "client", "held-back"), time.Now()
		assert.Equal(t, http.StatusOK, send(t, rt, "routes").status)
		for range 100 { // 10 s to wait, 10 s of time.
			assert.Equal(t, answer{http.StatusTooManyRequests, "10"}, send(t, rt, "routes"))
		}
		assert.Zero(t, time.Since(began))
		assert.Equal(t, 100., heldBack())
		time.Sleep(10 * time.Second)
		assert.Equal(t, http.StatusOK, send(t, rt, "routes").status)
		assert.Len(t, cloud.at, 2)
	})
}

func TestACallThatIsGivenUpStopsWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cloud := &fakeCloud{}
		c := clientOf(t, cloud, Options{QPS: 0.1, Burst: 1})
		_, err := c.GetInstance(t.Context(), "i-1")
		require.NoError(t, err)
		givenUp := throttlesOf(t, "client", "given-up")
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		require.ErrorIs(t, c.Watch(ctx, 0, false, nil), context.Canceled) // The stream has no end by itself.
		assert.Len(t, cloud.at, 1)
		assert.Equal(t, 1., givenUp())
	})
}

func TestWhatIsCounted(t *testing.T) {
	cloud := &fakeCloud{}
	c := clientOf(t, cloud, Options{})
	got, getTook := requestsOf(t, "unknown", "get-instance", "200"), durationsOf(t, "get-instance")
	_, err := c.GetInstance(t.Context(), "i-1")
	require.NoError(t, err)
	assert.Equal(t, 1., got())
	assert.EqualValues(t, 1, getTook())

	streamed, streamTook := requestsOf(t, Inventory, "stream-events", "200"), durationsOf(t, "stream-events")
	cloud.refuse(http.StatusOK, "")
	require.NoError(t, c.Watch(For(t.Context(), Inventory), 0, false, nil))
	assert.Equal(t, 1., streamed())
	assert.Zero(t, streamTook())

	// Calls that fail before the head of their answer, and after it.
	for code, failure := range map[string]struct{ head, body error }{
		"refused":  {head: syscall.ECONNREFUSED},
		"timeout":  {head: context.DeadlineExceeded},
		"reset":    {body: syscall.ECONNRESET},
		"canceled": {body: context.Canceled},
	} {
		cloud.answer = func(req *http.Request) (*http.Response, error) {
			resp := says(req, http.StatusOK, "", "")
			resp.Body = io.NopCloser(iotest.ErrReader(failure.body))
			return resp, failure.head
		}
		failed, failedTook := requestsOf(t, ServiceLB, "delete-load-balancer", code), durationsOf(t, "delete-load-balancer")
		succeeded := requestsOf(t, ServiceLB, "delete-load-balancer", "200")
		_, err = c.DeleteLoadBalancer(For(t.Context(), ServiceLB), "lb-1")
		require.Error(t, err)
		assert.Positive(t, failed(), code)
		assert.Positive(t, failedTook(), code)
		assert.Zero(t, succeeded(), code)
	}

	hits := grew(t, func() (float64, error) {
		return testutil.GetCounterMetricValue(cacheQuestions.WithLabelValues("instance", "hit"))
	})
	CacheQuestion("instance", "hit")
	assert.Equal(t, 1., hits())
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
		assert.Equal(t, tc.want, Operation(tc.method, tc.path), "%s %s", tc.method, tc.path)
	}
}

func TestCodes(t *testing.T) {
	for want, err := range map[string]error{
		"timeout":  context.DeadlineExceeded,
		"canceled": context.Canceled,
		"refused":  &net.OpError{Op: "dial", Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)},
		"reset":    io.ErrUnexpectedEOF,
		"dns":      &net.OpError{Op: "dial", Err: &net.DNSError{IsNotFound: true}},
		"error":    errors.New("strange"),
	} {
		assert.Equal(t, want, codeOf(nil, err))
	}
}
