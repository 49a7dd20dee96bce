package faults

import (
	crand "crypto/rand"
	"encoding/binary"
	"math"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/oklog/ulid/v2"

	"github.com/ccmlab/ccmlab/fakecloud/api"
)

// maxSeed is the largest seed: every JSON reader can carry 53 bits.
const maxSeed = 1<<53 - 1

// newFault makes a rule of what is asked for: its window is absolute, and it has a seed if one is needed.
func newFault(s api.FaultCreate, now time.Time) api.Fault {
	f := api.Fault{
		ID: "f-" + strings.ToLower(ulid.Make().String()), CreatedAt: now, Match: s.Match, Effect: s.Effect,
		Times: s.Times, Skip: s.Skip, Every: s.Every, Probability: s.Probability, Seed: s.Seed,
	}
	f.From, f.Until = windowOf(s, now)
	if f.Seed == 0 && (f.Probability > 0 || f.Effect.JitterMilliseconds > 0) {
		f.Seed = drawSeed()
	}
	return f
}

// windowOf gives the window in which a rule matches anything, by the times that it is asked for now.
func windowOf(s api.FaultCreate, now time.Time) (from, until *time.Time) {
	begin := now
	if s.AfterSeconds > 0 {
		s.From = new(now.Add(wholeMilliseconds(s.AfterSeconds)))
	}
	if s.From != nil {
		begin = s.From.UTC()
		from = &begin
	}
	if s.ForSeconds > 0 {
		s.Until = new(begin.Add(wholeMilliseconds(s.ForSeconds)))
	}
	if s.Until != nil {
		until = new(s.Until.UTC())
	}
	return from, until
}

// wholeMilliseconds converts seconds to a duration in whole milliseconds, at least one.
func wholeMilliseconds(seconds float64) time.Duration {
	return max(api.Seconds(seconds).Duration().Truncate(time.Millisecond), time.Millisecond)
}

// drawSeed draws a seed, which is never 0.
func drawSeed() int64 {
	var b [8]byte
	_, _ = crand.Read(b[:]) // Never fails.
	return 1 + int64(binary.LittleEndian.Uint64(b[:])%maxSeed)
}

// isTurn tells whether the rule is applied to its latest match. What is drawn follows from the seed and the number of
// the match, so that it repeats.
func (r *rule) isTurn() bool {
	n := r.Matched - r.Skip
	if n < 1 || r.Every > 0 && n%r.Every != 0 {
		return false
	}
	return r.Probability == 0 || r.drawUnit(0) < r.Probability
}

// drawJitter draws the milliseconds that are added to the delay of the latest match.
func (r *rule) drawJitter() int { return int(r.drawUnit(1) * float64(r.Effect.JitterMilliseconds)) }

// drawUnit draws from [0,1): one number for each match and use.
func (r *rule) drawUnit(use uint64) float64 {
	return rand.New(rand.NewPCG(uint64(r.Seed), uint64(r.Matched)<<1|use)).Float64()
}

// throttleBucket is how many calls a throttle lets through now.
type throttleBucket struct {
	tokens float64
	at     time.Time // zero: it is full
}

// take gives 0 to a call that goes through, and to others the seconds after which one will.
func (b *throttleBucket) take(now time.Time, t api.FaultThrottle) int {
	burst := float64(max(t.Burst, 1))
	if b.at.IsZero() {
		b.tokens = burst
	} else {
		b.tokens = min(burst, b.tokens+now.Sub(b.at).Seconds()*t.PerSecond)
	}
	b.at = now
	if b.tokens >= 1 {
		b.tokens--
		return 0
	}
	wait := math.Ceil((1 - b.tokens) / t.PerSecond)
	return int(min(max(wait, 1), 1e9))
}
