package calls

// The transport of all calls to the cloud. It counts them, keeps them below our own
// limit, and heeds the cloud's Retry-After.

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"strconv"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
)

const (
	// maxDelay is how long a call waits at most for the cloud's Retry-After to pass.
	// A call that would wait longer is answered at once: its caller's own retry
	// comes later than that, and meanwhile keeps no worker busy.
	maxDelay = time.Second
	// maxRetryAfter limits a Retry-After: a faulty proxy must not silence a CCM for long.
	maxRetryAfter = time.Minute
)

// Wrap returns a function for client.Config.Wrap. Each transport that it makes sends qps calls a second in the
// long run, or any number if that is 0, and burst calls at once.
func Wrap(qps float64, burst int) func(http.RoundTripper) http.RoundTripper {
	limit := rate.Limit(qps)
	if qps == 0 {
		limit = rate.Inf
	}
	return func(next http.RoundTripper) http.RoundTripper {
		return &transport{next: next, limit: rate.NewLimiter(limit, burst), stayAwayUntil: map[string]time.Time{}}
	}
}

type transport struct {
	next  http.RoundTripper
	limit *rate.Limiter

	mu sync.Mutex
	// stayAwayUntil is when the cloud's Retry-After ends, by operation. A 503 counts for its operation,
	// a 429 for the token and so for allOperations.
	stayAwayUntil map[string]time.Time
}

const allOperations = ""

// Whom the metrics name as the one who throttled a call.
const (
	byCloud  = "cloud"
	byClient = "client"
)

// RoundTrip sends a call. For one that it holds back it returns a client.Error in the cloud's place.
func (t *transport) RoundTrip(req *http.Request) (*http.Response, error) {
	operation := operationOf(req.Method, req.URL.Path)
	if err := t.waitForTurn(req.Context(), operation); err != nil {
		if req.Body != nil {
			_ = req.Body.Close() // As RoundTrippers must.
		}
		return nil, err
	}
	call := &sentCall{controller: cmp.Or(Controller(req.Context()), "unknown"), operation: operation, began: time.Now()}
	resp, err := t.next.RoundTrip(req)
	if err != nil {
		call.end(codeOf(err))
		return nil, err
	}
	call.ReadCloser, call.status = resp.Body, strconv.Itoa(resp.StatusCode)
	resp.Body = call
	if operation == streamEvents {
		call.end(call.status)
	}
	if wait := retryAfterOf(resp); wait > 0 {
		countThrottle(byCloud, "answered")
		if resp.StatusCode == http.StatusTooManyRequests {
			operation = allOperations
		}
		t.stayAway(operation, wait)
	}
	return resp, nil
}

// sentCall is a call that was sent, and the body of its answer. It is counted once, when the body has been read to
// its end, cannot be read, or is closed: an answer whose body is late counts as a timeout. How much of it is read is
// the client's to say: an answer may have no end.
type sentCall struct {
	io.ReadCloser
	controller, operation, status string
	began                         time.Time
	once                          sync.Once
}

func (c *sentCall) end(code string) {
	c.once.Do(func() {
		requests.WithLabelValues(c.controller, c.operation, code).Inc()
		if c.operation != streamEvents {
			durations.WithLabelValues(c.operation).Observe(time.Since(c.began).Seconds())
		}
	})
}

func (c *sentCall) Read(p []byte) (int, error) {
	n, err := c.ReadCloser.Read(p)
	switch {
	case errors.Is(err, io.EOF):
		c.end(c.status)
	case err != nil:
		c.end(codeOf(err))
	}
	return n, err
}

func (c *sentCall) Close() error {
	c.end(c.status)
	return c.ReadCloser.Close()
}

// waitForTurn returns nil when the call may be sent. For one that is held back it returns an error at once.
func (t *transport) waitForTurn(ctx context.Context, operation string) error {
	// Our own limit comes first: while a call waits for it, the cloud may ask us to stay away.
	if wait := t.remainingStayAway(operation); wait > maxDelay {
		return t.heldBack(byCloud, wait) // It takes nothing from the limit.
	}
	now := time.Now()
	turn := t.limit.ReserveN(now, 1)
	wait := turn.DelayFrom(now)
	if wait > maxWait(ctx, now) {
		turn.CancelAt(now)
		return t.heldBack(byClient, wait)
	}
	if err := delay(ctx, byClient, wait); err != nil {
		turn.Cancel()
		return err
	}
	for {
		wait := t.remainingStayAway(operation)
		if wait > min(maxDelay, maxWait(ctx, time.Now())) {
			return t.heldBack(byCloud, wait)
		}
		if err := delay(ctx, byCloud, wait); wait <= 0 || err != nil {
			return err
		}
	}
}

// maxWait is how long a call may wait before it is sent: half of the time until its
// deadline, so that the other half is left for its answer.
func maxWait(ctx context.Context, now time.Time) time.Duration {
	end, ok := ctx.Deadline()
	if !ok {
		return math.MaxInt64 // The event stream.
	}
	return end.Sub(now) / 2
}

func (t *transport) remainingStayAway(operation string) time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	return max(time.Until(t.stayAwayUntil[operation]), time.Until(t.stayAwayUntil[allOperations]))
}

func (t *transport) stayAway(operation string, wait time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if until := time.Now().Add(wait); until.After(t.stayAwayUntil[operation]) {
		t.stayAwayUntil[operation] = until
	}
}

// delay waits before a call is sent.
func delay(ctx context.Context, by string, wait time.Duration) error {
	if wait <= 0 {
		return nil
	}
	countThrottle(by, "delayed")
	select {
	case <-time.After(wait):
		return nil
	case <-ctx.Done():
		countThrottle(by, "given-up")
		return ctx.Err()
	}
}

// retryAfterOf is the Retry-After of an answer, 0 if it has none. A 429 without one means a second.
func retryAfterOf(resp *http.Response) time.Duration {
	if resp.StatusCode != http.StatusTooManyRequests && resp.StatusCode != http.StatusServiceUnavailable {
		return 0
	}
	header := resp.Header.Get("Retry-After")
	wait, err := time.ParseDuration(header + "s")
	if at, dateErr := http.ParseTime(header); dateErr == nil {
		wait, err = time.Until(at), nil
	}
	if (err != nil || wait <= 0) && resp.StatusCode == http.StatusTooManyRequests {
		return time.Second
	}
	return min(max(wait, 0), maxRetryAfter)
}

// heldBack is the error of a call that was not sent. It has the form of the cloud's own refusals, so that callers
// need to know one kind of throttling only.
func (t *transport) heldBack(by string, wait time.Duration) error {
	countThrottle(by, "held-back")
	wait = time.Duration(math.Ceil(wait.Seconds())) * time.Second
	detail := fmt.Sprintf("not sent: the cloud's Retry-After lasts for another %g s", wait.Seconds())
	if by == byClient {
		detail = fmt.Sprintf("not sent: over this CCM's own limit of %g calls a second (qps and burst in its cloud config) "+
			"for another %g s", float64(t.limit.Limit()), wait.Seconds())
	}
	return &client.Error{Status: http.StatusTooManyRequests, RetryAfter: wait, Problem: api.Problem{
		Status: http.StatusTooManyRequests, Code: api.RateLimited, Detail: detail, RequestID: "none",
	}}
}
