package faults

import (
	crand "crypto/rand"
	"encoding/binary"
	"math"
	"math/rand/v2"
	"time"
)

// maxSeed is the largest seed: every JSON reader can carry 53 bits.
const maxSeed = 1<<53 - 1

// When says to which of its matches a rule is applied. Zero fields do not narrow it. What
// is drawn follows from the seed and the number of the match, so that it repeats.
type When struct {
	// Times bounds how many matches it is applied to.
	Times int `json:"times,omitempty"`
	// Skip leaves out the first matches. Of the others, Every takes each so-manyth, and
	// Probability takes some of those at random.
	Skip        int     `json:"skip,omitempty"`
	Every       int     `json:"every,omitempty"`
	Probability float64 `json:"probability,omitempty"`
	// Seed is for Probability and the effect's jitter. If it is 0, one is drawn when the
	// rule is made.
	Seed int64 `json:"seed,omitempty"`
	// From and Until are the window in which the rule matches anything.
	From  *time.Time `json:"from,omitempty"`
	Until *time.Time `json:"until,omitempty"`
	// After and For also give a window: After is counted from the rule's creation, For
	// from the window's begin. Create turns them into From and Until.
	After time.Duration `json:"-"`
	For   time.Duration `json:"-"`
}

// makeAbsolute turns After and For into From and Until, and draws a seed if one is needed.
func (w *When) makeAbsolute(now time.Time, e Effect) {
	begin := now
	if w.After > 0 {
		w.From = new(now.Add(w.After))
	}
	if w.From != nil {
		from := w.From.UTC()
		w.From, begin = &from, from
	}
	if w.For > 0 {
		w.Until = new(begin.Add(w.For))
	}
	if w.Until != nil {
		w.Until = new(w.Until.UTC())
	}
	w.After, w.For = 0, 0
	if w.Seed == 0 && (w.Probability > 0 || e.Jitter > 0) {
		w.Seed = drawSeed()
	}
}

// drawSeed draws a seed, which is never 0.
func drawSeed() int64 {
	var b [8]byte
	_, _ = crand.Read(b[:]) // Never fails.
	return 1 + int64(binary.LittleEndian.Uint64(b[:])%maxSeed)
}

// isTurn tells whether the rule is applied to its nth match, the first being 1.
func (w When) isTurn(n int) bool {
	n -= w.Skip
	if n < 1 || w.Every > 0 && n%w.Every != 0 {
		return false
	}
	return w.Probability == 0 || w.drawUnit(n+w.Skip, 0) < w.Probability
}

// drawJitter draws what is added to the delay of the nth match.
func (w When) drawJitter(n int, most time.Duration) time.Duration {
	if most == 0 {
		return 0
	}
	return time.Duration(w.drawUnit(n, 1) * float64(most)).Truncate(time.Millisecond)
}

// drawUnit draws from [0,1): one number for each n and use.
func (w When) drawUnit(n int, use uint64) float64 {
	return rand.New(rand.NewPCG(uint64(w.Seed), uint64(n)<<1|use)).Float64()
}

// throttleBucket is how many calls a throttle lets through now.
type throttleBucket struct {
	tokens float64
	at     time.Time // zero: it is full
}

// take gives 0 to a call that goes through, and to others the time, in whole seconds,
// after which one will.
func (b *throttleBucket) take(now time.Time, t Throttle) time.Duration {
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
	return time.Duration(min(max(wait, 1), 1e9)) * time.Second
}
