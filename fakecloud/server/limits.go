package server

import (
	"fmt"
	"math"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/ccmlab/ccmlab/fakecloud/api"
)

const (
	// What an address may try without a valid token.
	strangerRate  = 10
	strangerBurst = 100
	// bucketLimit bounds how many buckets are kept of each kind.
	bucketLimit = 10_000
)

// limits are the token buckets of all callers. Time is real, whatever the
// cloud's clock says.
type limits struct{ tokens, strangers buckets }

// newLimits limits nobody when perSecond is 0.
func newLimits(perSecond, burst int) limits {
	if perSecond <= 0 {
		return limits{}
	}
	return limits{
		tokens:    buckets{rate: rate.Limit(perSecond), burst: max(burst, 1)},
		strangers: buckets{rate: strangerRate, burst: strangerBurst},
	}
}

// token takes a call of a token, or tells how long it has to wait.
func (l *limits) token(project, name string) time.Duration {
	return l.tokens.take(project+"/"+name, time.Now())
}

// stranger takes a call of who has no valid token.
func (l *limits) stranger(address string) time.Duration {
	return l.strangers.take(host(address), time.Now())
}

// strangerWaits tells how long such a call would have to wait.
func (l *limits) strangerWaits(address string) time.Duration {
	return l.strangers.wait(host(address), time.Now())
}

func host(address string) string {
	if host, _, err := net.SplitHostPort(address); err == nil {
		return host
	}
	return address
}

// buckets has one bucket for each that called lately. One that is full again is
// as good as none.
type buckets struct {
	rate  rate.Limit // 0: no limit
	burst int

	mu  sync.Mutex
	all map[string]*rate.Limiter
}

// take takes one from a bucket. When it is empty, it tells how long it will be
// so.
func (b *buckets) take(key string, now time.Time) time.Duration {
	if b.rate == 0 {
		return 0
	}
	b.mu.Lock()
	bucket := b.all[key]
	if bucket == nil {
		bucket = b.make(key, now)
	}
	b.mu.Unlock()
	if bucket.AllowN(now, 1) {
		return 0
	}
	return max(b.until(bucket, now), 1)
}

// wait tells how long a bucket will be empty, and takes nothing.
func (b *buckets) wait(key string, now time.Time) time.Duration {
	b.mu.Lock()
	bucket := b.all[key]
	b.mu.Unlock()
	if bucket == nil {
		return 0
	}
	return b.until(bucket, now)
}

// until is 0 when a bucket has one to take.
func (b *buckets) until(bucket *rate.Limiter, now time.Time) time.Duration {
	missing := 1 - bucket.TokensAt(now)
	return max(time.Duration(missing/float64(b.rate)*float64(time.Second)), 0)
}

// make is called with mu held.
func (b *buckets) make(key string, now time.Time) *rate.Limiter {
	if b.all == nil {
		b.all = map[string]*rate.Limiter{}
	}
	if len(b.all) >= bucketLimit {
		for k, l := range b.all {
			if l.TokensAt(now) >= float64(b.burst) {
				delete(b.all, k)
			}
		}
	}
	for k := range b.all { // None was full: one loses what it remembers.
		if len(b.all) < bucketLimit {
			break
		}
		delete(b.all, k)
	}
	bucket := rate.NewLimiter(b.rate, b.burst)
	b.all[key] = bucket
	return bucket
}

// throttled answers a call that came too soon.
func (s *Server) throttled(w http.ResponseWriter, r *http.Request) bool {
	switch c := callOf(r); {
	case c.wait == 0:
		return false
	case c.who == nil:
		s.metrics.throttled.WithLabelValues("address").Inc()
		s.tooMany(w, r, c.wait, "calls without a valid token from this address")
	default:
		s.metrics.throttled.WithLabelValues("token").Inc()
		s.tooMany(w, r, c.wait, fmt.Sprintf("calls of token %q", c.who.Token))
	}
	return true
}

// tooMany tells when to come again, in whole seconds.
func (s *Server) tooMany(w http.ResponseWriter, r *http.Request, wait time.Duration, what string) {
	seconds := max(int(math.Ceil(wait.Seconds())), 1)
	w.Header().Set("Retry-After", strconv.Itoa(seconds))
	s.problem(w, r, http.StatusTooManyRequests, api.RateLimited, fmt.Sprintf("too many %s: come again in %d s", what, seconds), nil)
}
