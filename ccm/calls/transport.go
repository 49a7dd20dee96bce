package calls

// Through what all calls to the cloud go: they are counted, kept below our own
// limit, and none is sent while the cloud asks to stay away.

import (
	"bytes"
	"context"
	"encoding/json"
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
	// patience is how long a call waits for the cloud's Retry-After to pass. One
	// that would wait longer is answered at once: its caller's own retry comes
	// later than that, and does not keep a worker.
	patience = time.Second
	// longest is the longest Retry-After that is believed: something on the way
	// that errs must not silence a CCM for a day.
	longest = 10 * time.Minute
)

// Options say how many calls may be sent.
type Options struct {
	// QPS are calls a second, in the long run; 0: any number.
	QPS float64
	// Burst are calls at once.
	Burst int
}

// Wrap makes what client.Config.Wrap wants. Each transport that it makes has a
// limit of its own.
func Wrap(o Options) func(http.RoundTripper) http.RoundTripper {
	return func(next http.RoundTripper) http.RoundTripper {
		t := &transport{next: next, opts: o}
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
	// away is until when the cloud asked to stay away.
	away time.Time
}

type throttler string

const (
	byCloud  throttler = "cloud"
	byClient throttler = "client"
)

// RoundTrip sends a call, or answers in the cloud's place that it comes too early.
func (t *transport) RoundTrip(req *http.Request) (*http.Response, error) {
	if by, wait, err := t.admit(req.Context()); err != nil || wait > 0 {
		if req.Body != nil {
			_ = req.Body.Close() // As RoundTrippers must.
		}
		if err != nil {
			return nil, err
		}
		throttled(by, "held-back")
		return t.tooEarly(req, by, wait), nil
	}
	operation := Operation(req.Method, req.URL.Path)
	began := time.Now()
	resp, err := t.next.RoundTrip(req)
	sent(Controller(req.Context()), operation, codeOf(resp, err))
	if err != nil {
		return nil, err
	}
	answered(operation, time.Since(began))
	if wait := retryAfter(resp); wait > 0 {
		throttled(byCloud, "answered")
		t.stayAway(wait)
	}
	return resp, nil
}

// admit returns when a call may be sent; or, for one that may not, who says so
// and for how long.
func (t *transport) admit(ctx context.Context) (throttler, time.Duration, error) {
	// First the limit: while it is waited for, the cloud may ask to stay away.
	if t.limit != nil {
		if wait := t.awayFor(); wait > patience {
			return byCloud, wait, nil // It takes nothing from the limit.
		}
		now := time.Now()
		turn := t.limit.ReserveN(now, 1)
		wait := turn.DelayFrom(now)
		if wait > allowed(ctx, now) {
			turn.CancelAt(now)
			return byClient, wait, nil
		}
		if wait > 0 {
			throttled(byClient, "delayed")
			if err := sleep(ctx, wait); err != nil {
				turn.Cancel()
				return "", 0, err
			}
		}
	}
	for delayed := false; ; {
		wait := t.awayFor()
		switch {
		case wait <= 0:
			return "", 0, nil
		case wait > min(patience, allowed(ctx, time.Now())):
			return byCloud, wait, nil
		case !delayed:
			delayed = true
			throttled(byCloud, "delayed")
		}
		if err := sleep(ctx, wait); err != nil {
			return "", 0, err
		}
	}
}

// allowed is how long a call may wait before it is sent: half of the time that
// it has, so that the other half is left for its answer.
func allowed(ctx context.Context, now time.Time) time.Duration {
	end, ok := ctx.Deadline()
	if !ok {
		return math.MaxInt64 // The event stream.
	}
	return end.Sub(now) / 2
}

func (t *transport) awayFor() time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	return time.Until(t.away)
}

func (t *transport) stayAway(wait time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if until := time.Now().Add(wait); until.After(t.away) {
		t.away = until
	}
}

func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// retryAfter is how long an answer asks to stay away; 0 if it does not. A 429
// that does not say how long means a second; a 503 that does not is no request
// to stay away.
func retryAfter(resp *http.Response) time.Duration {
	if resp.StatusCode != http.StatusTooManyRequests && resp.StatusCode != http.StatusServiceUnavailable {
		return 0
	}
	said := resp.Header.Get("Retry-After")
	wait, err := time.ParseDuration(said + "s")
	if at, dateErr := http.ParseTime(said); dateErr == nil {
		wait, err = time.Until(at), nil
	}
	switch {
	case err == nil && wait > 0:
		return min(wait, longest)
	case resp.StatusCode == http.StatusTooManyRequests:
		return time.Second
	}
	return 0
}

// tooEarly is an answer in the cloud's place, in its own words, so that callers
// need to know one kind of throttling only.
func (t *transport) tooEarly(req *http.Request, by throttler, wait time.Duration) *http.Response {
	seconds := int(math.Ceil(wait.Seconds()))
	detail := fmt.Sprintf("not sent: the cloud asked to stay away for another %d s", seconds)
	if by == byClient {
		detail = fmt.Sprintf("not sent: over this CCM's own limit of %g calls a second (qps and burst in its cloud config) for another %d s", t.opts.QPS, seconds)
	}
	body, _ := json.Marshal(api.Problem{ // Of strings and numbers: it cannot fail.
		Type: "about:blank", Title: http.StatusText(http.StatusTooManyRequests), Status: http.StatusTooManyRequests,
		Code: api.RateLimited, Detail: detail, RequestID: "none",
	})
	return &http.Response{
		Status: fmt.Sprintf("%d %s", http.StatusTooManyRequests, http.StatusText(http.StatusTooManyRequests)), StatusCode: http.StatusTooManyRequests,
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Request: req,
		Header:        http.Header{"Content-Type": {"application/problem+json"}, "Retry-After": {strconv.Itoa(seconds)}},
		ContentLength: int64(len(body)), Body: io.NopCloser(bytes.NewReader(body)),
	}
}
