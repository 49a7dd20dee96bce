package server

import (
	"fmt"
	"hash/maphash"
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
	// reserveSlots is how many secrets a second are looked up beyond that.
	reserveSlots = 64
	// bucketLimit bounds how many buckets are kept of each kind.
	bucketLimit = 10_000
)

// rateLimits are the token buckets of all callers. They run in real time, whatever the
// cloud's clock.
type rateLimits struct {
	tokens, strangers tokenBuckets
	reserve           lookupReserve
	// refusals are the calls beyond a token's limit that the audit lists. It counts all.
	refusals tokenBuckets
}

// newRateLimits makes limits of so many calls a second, or none if perSecond is 0.
func newRateLimits(perSecond, burst int) rateLimits {
	if perSecond <= 0 {
		return rateLimits{}
	}
	return rateLimits{
		tokens:    tokenBuckets{rate: rate.Limit(perSecond), burst: max(burst, 1)},
		strangers: tokenBuckets{rate: strangerRate, burst: strangerBurst},
		reserve:   newLookupReserve(),
		refusals:  tokenBuckets{rate: 1, burst: 1},
	}
}

// takeForToken takes a call from the bucket of a token, or says how long the token has to
// wait.
func (l *rateLimits) takeForToken(project, name string) time.Duration {
	return l.tokens.takeOne(project+"/"+name, time.Now())
}

// listsRefusal tells whether the audit is to list a call beyond a token's limit.
func (l *rateLimits) listsRefusal(project, name string) bool {
	return l.refusals.takeOne(project+"/"+name, time.Now()) == 0
}

// takeForAddress takes a call without a valid token from the bucket of its address, or
// says how long that has to wait.
func (l *rateLimits) takeForAddress(address string) time.Duration {
	return l.strangers.takeOne(hostOf(address), time.Now())
}

// addressWait says how long such a call would have to wait.
func (l *rateLimits) addressWait(address string) time.Duration {
	return l.strangers.waitTime(hostOf(address), time.Now())
}

// lookupReserve has some secrets looked up although their address has tried too many: a valid token that is not yet
// remembered, as after a restart, gets in while somebody else at its address floods. There is one look-up a second in
// each slot, and so at most reserveSlots a second for all such addresses together. A secret's slot is drawn anew each
// second, by a key that nobody knows:
//   - One wrong secret that is repeated, however often, takes one slot at a time. Another secret meets it once in
//     reserveSlots tries, and not twice in a row but by chance.
//   - Against R different secrets a second, each try has a chance of reserveSlots in R+reserveSlots: of tries at
//     different times, 95 % get in within 3*R/reserveSlots+3, which is 50 at a thousand guesses a second.
//
// Whoever is in stays in: the token is remembered, until tokens or projects change.
type lookupReserve struct {
	seed  maphash.Seed
	slots []*rate.Limiter
}

func newLookupReserve() lookupReserve {
	r := lookupReserve{seed: maphash.MakeSeed(), slots: make([]*rate.Limiter, reserveSlots)}
	for i := range r.slots {
		r.slots[i] = rate.NewLimiter(1, 1)
	}
	return r
}

// takeLookup tells whether the secret may be looked up now. Without slots it may: there is no limit.
func (r *lookupReserve) takeLookup(secret string, now time.Time) bool {
	if len(r.slots) == 0 {
		return true
	}
	slot := maphash.Comparable(r.seed, [2]any{secret, now.Unix()}) % uint64(len(r.slots))
	return r.slots[slot].AllowN(now, 1)
}

// rateLimitOf gives what is left of a token's limit; false if there is no limit.
func (l *rateLimits) rateLimitOf(project, name string) (RateLimit, bool) {
	b, now := &l.tokens, time.Now()
	b.mu.Lock()
	bucket := b.all[project+"/"+name]
	b.mu.Unlock()
	if bucket == nil {
		return RateLimit{}, false
	}
	left := max(bucket.TokensAt(now), 0)
	rested := time.Duration((float64(b.burst) - left) / float64(b.rate) * float64(time.Second))
	return RateLimit{Burst: b.burst, Remaining: int(left), Rested: now.Add(rested)}, true
}

func hostOf(address string) string {
	if host, _, err := net.SplitHostPort(address); err == nil {
		return host
	}
	return address
}

// tokenBuckets has a bucket for each caller that called lately. A bucket that is full
// again need not be kept.
type tokenBuckets struct {
	rate  rate.Limit // 0: no limit
	burst int

	mu  sync.Mutex
	all map[string]*rate.Limiter
}

// takeOne takes one from a bucket. If the bucket is empty, it gives the time until it is
// not.
func (b *tokenBuckets) takeOne(key string, now time.Time) time.Duration {
	if b.rate == 0 {
		return 0
	}
	b.mu.Lock()
	bucket := b.all[key]
	if bucket == nil {
		bucket = b.makeBucket(key, now)
	}
	b.mu.Unlock()
	if bucket.AllowN(now, 1) {
		return 0
	}
	return max(b.timeUntilNext(bucket, now), 1)
}

// waitTime gives the time until a bucket is not empty, and takes nothing.
func (b *tokenBuckets) waitTime(key string, now time.Time) time.Duration {
	b.mu.Lock()
	bucket := b.all[key]
	b.mu.Unlock()
	if bucket == nil {
		return 0
	}
	return b.timeUntilNext(bucket, now)
}

// timeUntilNext is 0 if the bucket is not empty.
func (b *tokenBuckets) timeUntilNext(bucket *rate.Limiter, now time.Time) time.Duration {
	missing := 1 - bucket.TokensAt(now)
	return max(time.Duration(missing/float64(b.rate)*float64(time.Second)), 0)
}

// makeBucket adds a bucket, and drops others if there are too many. mu is held.
func (b *tokenBuckets) makeBucket(key string, now time.Time) *rate.Limiter {
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
	for k := range b.all { // If none was full, some bucket is dropped all the same.
		if len(b.all) < bucketLimit {
			break
		}
		delete(b.all, k)
	}
	bucket := rate.NewLimiter(b.rate, b.burst)
	b.all[key] = bucket
	return bucket
}

// answerThrottled refuses a call that exceeds its limit; false if it does not.
func (s *Server) answerThrottled(w http.ResponseWriter, r *http.Request) bool {
	switch c := recordOf(r); {
	case c.throttledFor == 0:
		return false
	case c.principal == nil:
		s.metrics.throttled.WithLabelValues("address").Inc()
		s.answerTooMany(w, r, c.throttledFor, "calls without a valid token from this address")
	default:
		s.metrics.throttled.WithLabelValues("token").Inc()
		s.answerTooMany(w, r, c.throttledFor, fmt.Sprintf("calls of token %q", c.principal.Token))
	}
	return true
}

// answerTooMany says when to try again, in whole seconds.
func (s *Server) answerTooMany(w http.ResponseWriter, r *http.Request, wait time.Duration, what string) {
	seconds := max(int(math.Ceil(wait.Seconds())), 1)
	w.Header().Set("Retry-After", strconv.Itoa(seconds))
	s.answerProblem(
		w, r, http.StatusTooManyRequests, api.RateLimited,
		fmt.Sprintf("too many %s: retry in %d s", what, seconds), nil,
	)
}
