package calls

// The transport of all calls to the cloud. It counts them, keeps them below our own
// limit, and heeds the cloud's Retry-After.

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
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
)

const (
	// maxDelay is how long a call waits at most for the cloud's Retry-After to pass.
	// A call that would wait longer is answered at once: its caller's own retry
	// comes later than that, and meanwhile keeps no worker busy.
	maxDelay = time.Second
	// MaxRetryAfter limits a Retry-After: a faulty proxy must not silence a CCM for long.
	MaxRetryAfter = time.Minute
)

// Options say how many calls may be sent.
type Options struct {
	// QPS are calls a second, in the long run; 0 means any number.
	QPS float64
	// Burst are calls at once.
	Burst int
}

// Wrap returns a function for client.Config.Wrap. Each transport that it makes has
// a limit of its own.
func Wrap(o Options) func(http.RoundTripper) http.RoundTripper {
	return func(next http.RoundTripper) http.RoundTripper {
		t := &transport{next: next, opts: o, stayAwayUntil: map[string]time.Time{}}
		if o.QPS > 0 {
			t.limit = rate.NewLimiter(rate.Limit(o.QPS), max(o.Burst, 1))
		}
		return t
	}
}

type transport struct {
	next  http.RoundTripper
	opts  Options
	limit *rate.Limiter // nil: none

	mu sync.Mutex
	// stayAwayUntil is when the cloud's Retry-After ends, by operation. A 503 counts for its operation,
	// a 429 for the token and so for allOperations.
	stayAwayUntil map[string]time.Time
}

const allOperations = ""

type throttler string

const (
	byCloud  throttler = "cloud"
	byClient throttler = "client"
)

// RoundTrip sends a call, or answers it in the cloud's place: 429, held back.
func (t *transport) RoundTrip(req *http.Request) (*http.Response, error) {
	operation := Operation(req.Method, req.URL.Path)
	if by, wait, err := t.waitForTurn(req.Context(), operation); err != nil || wait > 0 {
		if req.Body != nil {
			_ = req.Body.Close() // As RoundTrippers must.
		}
		if err != nil {
			countThrottle(by, "given-up")
			return nil, err
		}
		countThrottle(by, "held-back")
		return t.heldBackResponse(req, by, wait), nil
	}
	end := startCall(cmp.Or(Controller(req.Context()), "unknown"), operation)
	resp, err := t.next.RoundTrip(req)
	if err != nil {
		end(codeOf(nil, err))
		return nil, err
	}
	if operation == streamEvents || resp.Body == nil || resp.Body == http.NoBody {
		end(codeOf(resp, nil))
	} else {
		resp.Body = &countedBody{ReadCloser: resp.Body, end: end, code: codeOf(resp, nil)}
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

// startCall returns what counts a call that was sent. It counts once, when the answer was read to the end:
// an answer whose body is late counts as a timeout.
func startCall(controller, operation string) (end func(code string)) {
	began, once := time.Now(), new(sync.Once)
	return func(code string) {
		once.Do(func() {
			requests.WithLabelValues(controller, operation, code).Inc()
			if operation != streamEvents {
				durations.WithLabelValues(operation).Observe(time.Since(began).Seconds())
			}
		})
	}
}

// countedBody ends its call when it has been read, cannot be read, or is closed.
type countedBody struct {
	io.ReadCloser
	end  func(code string)
	code string // of the answer's head
}

func (b *countedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	switch {
	case errors.Is(err, io.EOF):
		b.end(b.code)
	case err != nil:
		b.end(codeOf(nil, err))
	}
	return n, err
}

func (b *countedBody) Close() error {
	b.end(b.code)
	return b.ReadCloser.Close()
}

// waitForTurn returns zero values when the call may be sent. For a call that is held
// back it returns at once, with who throttles it and for how long. With an error, which is
// its context's, it says who made it wait.
func (t *transport) waitForTurn(ctx context.Context, operation string) (throttler, time.Duration, error) {
	// Our own limit comes first: while a call waits for it, the cloud may ask us to
	// stay away.
	if t.limit != nil {
		if wait := t.remainingStayAway(operation); wait > maxDelay {
			return byCloud, wait, nil // It takes nothing from the limit.
		}
		now := time.Now()
		turn := t.limit.ReserveN(now, 1)
		wait := turn.DelayFrom(now)
		if wait > maxWait(ctx, now) {
			turn.CancelAt(now)
			return byClient, wait, nil
		}
		if wait > 0 {
			countThrottle(byClient, "delayed")
			if err := sleepContext(ctx, wait); err != nil {
				turn.Cancel()
				return byClient, 0, err
			}
		}
	}
	for delayed := false; ; {
		wait := t.remainingStayAway(operation)
		switch {
		case wait <= 0:
			return "", 0, nil
		case wait > min(maxDelay, maxWait(ctx, time.Now())):
			return byCloud, wait, nil
		case !delayed:
			delayed = true
			countThrottle(byCloud, "delayed")
		}
		if err := sleepContext(ctx, wait); err != nil {
			return byCloud, 0, err
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

func sleepContext(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
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
	return min(max(wait, 0), MaxRetryAfter)
}

// heldBackResponse is the answer to a call that was not sent. It has the form of the
// cloud's own answers, so that callers need to know one kind of throttling only.
func (t *transport) heldBackResponse(req *http.Request, by throttler, wait time.Duration) *http.Response {
	seconds := int(math.Ceil(wait.Seconds()))
	detail := fmt.Sprintf("not sent: the cloud's Retry-After lasts for another %d s", seconds)
	if by == byClient {
		detail = fmt.Sprintf(
			"not sent: over this CCM's own limit of %g calls a second (qps and burst in its cloud config) for another %d s",
			t.opts.QPS, seconds,
		)
	}
	title := http.StatusText(http.StatusTooManyRequests)
	body, _ := json.Marshal(api.Problem{ // Of strings and numbers: it cannot fail.
		Type: "about:blank", Title: title, Status: http.StatusTooManyRequests,
		Code: api.RateLimited, Detail: detail, RequestID: "none",
	})
	return &http.Response{
		Status: fmt.Sprintf("%d %s", http.StatusTooManyRequests, title), StatusCode: http.StatusTooManyRequests,
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Request: req,
		Header: http.Header{
			"Content-Type": {"application/problem+json"}, "Retry-After": {strconv.Itoa(seconds)},
		},
		ContentLength: int64(len(body)), Body: io.NopCloser(bytes.NewReader(body)),
	}
}
