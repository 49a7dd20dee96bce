// These tests answer: what is sent, when, and what is told of it?

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
	"k8s.io/component-base/metrics/legacyregistry"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
)

// fakeCloud notes when calls came.
type fakeCloud struct {
	answer func(*http.Request) (*http.Response, error)

	mu sync.Mutex
	at []time.Time
}

func (f *fakeCloud) RoundTrip(req *http.Request) (*http.Response, error) {
	f.mu.Lock()
	f.at = append(f.at, time.Now())
	f.mu.Unlock()
	if f.answer == nil {
		return says(req, http.StatusOK, "", `{"items":[]}`), nil
	}
	return f.answer(req)
}

func (f *fakeCloud) calls() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.at)
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

func clientOf(t *testing.T, cloud http.RoundTripper, o Options) *client.Client {
	t.Helper()
	token := filepath.Join(t.TempDir(), "token")
	require.NoError(t, os.WriteFile(token, []byte("secret"), 0o600))
	c, err := client.New(client.Config{URL: "http://cloud.invalid", TokenFile: token, Transport: cloud, Wrap: Wrap(o)})
	require.NoError(t, err)
	return c
}

// value is a counter's on /metrics, over all series that have these labels.
func value(t *testing.T, name string, labels map[string]string) (sum float64) {
	t.Helper()
	families, err := legacyregistry.DefaultGatherer.Gather()
	require.NoError(t, err)
	for _, family := range families {
		if family.GetName() != name {
			continue
		}
	series:
		for _, m := range family.GetMetric() {
			have := map[string]string{}
			for _, l := range m.GetLabel() {
				have[l.GetName()] = l.GetValue()
			}
			for k, v := range labels {
				if have[k] != v {
					continue series
				}
			}
			sum += m.GetCounter().GetValue() + float64(m.GetHistogram().GetSampleCount())
		}
	}
	return sum
}

// grew tells how much a counter has grown since it was made.
func grew(t *testing.T, name string, labels map[string]string) func() float64 {
	t.Helper()
	before := value(t, name, labels)
	return func() float64 { return value(t, name, labels) - before }
}

func throttlesOf(t *testing.T, by, how string) func() float64 {
	return grew(t, "fakecloud_ccm_cloud_throttles_total", map[string]string{"by": by, "how": how})
}

func TestNothingIsSentWhileTheCloudAsksToStayAway(t *testing.T) {
	for name, tc := range map[string]struct {
		status int
		header string
		wait   time.Duration
	}{
		"429 with seconds":         {http.StatusTooManyRequests, "30", 30 * time.Second},
		"503 with seconds":         {http.StatusServiceUnavailable, "5", 5 * time.Second},
		"a Retry-After of a year":  {http.StatusTooManyRequests, "31536000", time.Minute},
		"429 with a date":          {http.StatusTooManyRequests, "date", 20 * time.Second},
		"one with a fractional 1s": {http.StatusTooManyRequests, "1.5", 1500 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				header := tc.header
				if header == "date" {
					header = time.Now().Add(tc.wait).UTC().Format(http.TimeFormat)
				}
				throttling := true
				cloud := &fakeCloud{answer: func(req *http.Request) (*http.Response, error) {
					if throttling {
						return says(req, tc.status, header, ""), nil
					}
					return says(req, http.StatusOK, "", wholeInstance()), nil
				}}
				rt := Wrap(Options{})(cloud)
				heldBack, answered := throttlesOf(t, "cloud", "held-back"), throttlesOf(t, "cloud", "answered")
				first := send(t, rt)
				assert.Equal(t, tc.status, first.status)
				throttling = false

				began := time.Now()
				second := send(t, rt)
				assert.Equal(t, http.StatusTooManyRequests, second.status)
				assert.Equal(t, 1, cloud.calls(), "the second was not sent")
				assert.Zero(t, time.Since(began), "and nobody waited")
				assert.Equal(t, 1., heldBack())
				assert.Equal(t, 1., answered())

				time.Sleep(tc.wait)
				assert.Equal(t, http.StatusOK, send(t, rt).status)
				assert.Equal(t, 2, cloud.calls())
			})
		})
	}
}

type answer struct {
	status     int
	retryAfter string
}

func send(t *testing.T, rt http.RoundTripper) answer {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://cloud.invalid/v1/instances/i-1", nil)
	require.NoError(t, err)
	resp, err := rt.RoundTrip(req)
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	return answer{resp.StatusCode, resp.Header.Get("Retry-After")}
}

// What callers get for a call that was not sent is the cloud's own problem.
func TestHeldBackIsTheCloudsOwnProblem(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cloud := &fakeCloud{answer: func(req *http.Request) (*http.Response, error) {
			return says(req, http.StatusTooManyRequests, "30", ""), nil
		}}
		c := clientOf(t, cloud, Options{QPS: 100, Burst: 10})
		_, err := c.GetInstance(t.Context(), "i-1")
		require.Error(t, err)
		time.Sleep(9500 * time.Millisecond)
		for name, call := range map[string]func() error{
			"a read": func() error { _, err := c.ListInstances(t.Context(), client.InstanceFilter{}); return err },
			"a change": func() error {
				_, err := c.CreateLoadBalancer(t.Context(), api.LoadBalancerCreate{})
				return err
			},
			"the stream": func() error { return c.Watch(t.Context(), 0, true, nil) },
		} {
			err := call()
			var refused *client.Error
			require.ErrorAs(t, err, &refused, name)
			assert.Equal(t, 21*time.Second, refused.RetryAfter, name)
			assert.True(t, client.HasCode(err, api.RateLimited), name)
			assert.ErrorContains(t, err, "the cloud's Retry-After lasts for another 21 s", name)
		}
		assert.Equal(t, 1, cloud.calls())
	})
}

func wholeInstance() string {
	body, _ := json.Marshal(api.Instance{Addresses: []api.Address{}, Tags: api.Tags{}, Identities: map[string]string{}})
	return string(body)
}

func TestAShortRetryAfterIsWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cloud := &fakeCloud{}
		cloud.answer = func(req *http.Request) (*http.Response, error) {
			if cloud.calls() == 1 {
				return says(req, http.StatusTooManyRequests, "", ""), nil // That is a second.
			}
			return says(req, http.StatusOK, "", wholeInstance()), nil
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

// A 503 is of its operation: the others are sent.
func TestStayAwayOf503IsOfItsOperation(t *testing.T) {
	for status, sent := range map[int]bool{http.StatusServiceUnavailable: true, http.StatusTooManyRequests: false} {
		synctest.Test(t, func(t *testing.T) {
			cloud := &fakeCloud{answer: func(req *http.Request) (*http.Response, error) {
				if req.URL.Path == "/v1/instances/i-1" {
					return says(req, status, "30", ""), nil
				}
				return says(req, http.StatusOK, "", `{"items":[]}`), nil
			}}
			c := clientOf(t, cloud, Options{})
			_, err := c.GetInstance(t.Context(), "i-1")
			require.Error(t, err)
			_, err = c.ListInstances(t.Context(), client.InstanceFilter{})
			assert.Equal(t, sent, err == nil, "%d: %v", status, err)
		})
	}
}

// A 503 that asks for nothing closes nothing.
func TestPlain503(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cloud := &fakeCloud{answer: func(req *http.Request) (*http.Response, error) {
			return says(req, http.StatusServiceUnavailable, "", ""), nil
		}}
		rt := Wrap(Options{})(cloud)
		send(t, rt)
		send(t, rt)
		assert.Equal(t, 2, cloud.calls())
	})
}

func TestOwnLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cloud := &fakeCloud{}
		rt := Wrap(Options{QPS: 10, Burst: 5})(cloud)
		delayed, byCloud := throttlesOf(t, "client", "delayed"), throttlesOf(t, "cloud", "delayed")
		began := time.Now()
		for range 25 {
			send(t, rt)
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
		heldBack := throttlesOf(t, "client", "held-back")
		assert.Equal(t, http.StatusOK, send(t, rt).status)
		for range 100 { // 10 s to wait, 10 s of time.
			began := time.Now()
			resp := send(t, rt)
			assert.Equal(t, answer{http.StatusTooManyRequests, "10"}, resp)
			assert.Zero(t, time.Since(began))
		}
		assert.Equal(t, 100., heldBack())
		time.Sleep(10 * time.Second)
		assert.Equal(t, http.StatusOK, send(t, rt).status)
		assert.Equal(t, 2, cloud.calls())
	})
}

func TestACallThatIsGivenUpStopsWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cloud := &fakeCloud{}
		rt := Wrap(Options{QPS: 0.1, Burst: 1})(cloud)
		send(t, rt)
		givenUp := throttlesOf(t, "client", "given-up")
		ctx, cancel := context.WithCancel(t.Context())
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://cloud.invalid/v1/routes", nil)
		require.NoError(t, err)
		time.AfterFunc(time.Second, cancel)
		resp, err := rt.RoundTrip(req)
		if resp != nil {
			_ = resp.Body.Close()
		}
		require.ErrorIs(t, err, context.Canceled)
		assert.Equal(t, 1, cloud.calls())
		assert.Equal(t, 1., givenUp())
	})
}

func TestWhatIsCounted(t *testing.T) {
	cloud := &fakeCloud{}
	c := clientOf(t, cloud, Options{})
	asked := func(controller, operation, code string) func() float64 {
		return grew(
			t, "fakecloud_ccm_cloud_requests_total",
			map[string]string{"controller": controller, "operation": operation, "code": code},
		)
	}
	took := func(operation string) func() float64 {
		return grew(t, "fakecloud_ccm_cloud_request_duration_seconds", map[string]string{"operation": operation})
	}

	listed, listTook := asked("unknown", "list-instances", "200"), took("list-instances")
	_, err := c.ListInstances(t.Context(), client.InstanceFilter{Name: "a"})
	require.NoError(t, err)
	assert.Equal(t, 1., listed())
	assert.Equal(t, 1., listTook())

	streamed, streamTook := asked("inventory", "stream-events", "200"), took("stream-events")
	cloud.answer = func(req *http.Request) (*http.Response, error) { return says(req, http.StatusOK, "", ""), nil }
	require.NoError(t, c.Watch(For(t.Context(), Inventory), 0, false, nil))
	assert.Equal(t, 1., streamed())
	assert.Zero(t, streamTook())

	cloud.answer = func(*http.Request) (*http.Response, error) { return nil, syscall.ECONNREFUSED }
	refused, refusedTook := asked(ServiceLB, "delete-load-balancer", "refused"), took("delete-load-balancer")
	_, err = c.DeleteLoadBalancer(For(t.Context(), ServiceLB), "lb-1")
	require.ErrorIs(t, err, syscall.ECONNREFUSED)
	assert.Equal(t, 1., refused())
	assert.Equal(t, 1., refusedTook())

	// Calls that time out, before the head of their answer or after it, and one that is cancelled.
	for code, answer := range map[string]func(*http.Request) (*http.Response, error){
		"timeout": func(*http.Request) (*http.Response, error) { return nil, context.DeadlineExceeded },
		"reset": func(req *http.Request) (*http.Response, error) {
			resp := says(req, http.StatusOK, "", "")
			resp.Body = io.NopCloser(iotest.ErrReader(syscall.ECONNRESET))
			return resp, nil
		},
		"canceled": func(req *http.Request) (*http.Response, error) {
			resp := says(req, http.StatusOK, "", "")
			resp.Body = io.NopCloser(iotest.ErrReader(context.Canceled))
			return resp, nil
		},
	} {
		cloud.answer = answer
		failed, failedTook := asked(ServiceLB, "delete-load-balancer", code), took("delete-load-balancer")
		succeeded := asked(ServiceLB, "delete-load-balancer", "200")
		_, err = c.DeleteLoadBalancer(For(t.Context(), ServiceLB), "lb-1")
		require.Error(t, err)
		assert.Positive(t, failed(), code)
		assert.Positive(t, failedTook(), code)
		assert.Zero(t, succeeded(), code)
	}

	hits := grew(t, "fakecloud_ccm_cache_questions_total", map[string]string{"resource": "instance", "result": "hit"})
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
