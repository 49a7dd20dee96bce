// This file answers: whose turn is it? What is drawn follows from the rule's seed
// and from how many matched before, so that it repeats.

package faults

import (
	crand "crypto/rand"
	"encoding/binary"
	"math"
	"math/rand/v2"
	"time"
)

// maxSeed is the largest that every JSON reader can carry, in 53 bits.
const maxSeed = 1<<53 - 1

// When says to which of those that match a rule is applied. Zero fields do not
// narrow it.
type When struct {
	// Times bounds how many it is applied to.
	Times int `json:"times,omitempty"`
	// Skip leaves the first so many alone, Every takes each so-manyth of the
	// others, Probability each of those by chance.
	Skip        int     `json:"skip,omitempty"`
	Every       int     `json:"every,omitempty"`
	Probability float64 `json:"probability,omitempty"`
	// Seed is for Probability and the effect's jitter; 0 is drawn when the rule is
	// made.
	Seed int64 `json:"seed,omitempty"`
	// From and Until are the window in which the rule matches anything.
	From  *time.Time `json:"from,omitempty"`
	Until *time.Time `json:"until,omitempty"`
	// After and For are the same, counted from the rule's creation and from the
	// window's begin. Create turns them into From and Until.
	After time.Duration `json:"-"`
	For   time.Duration `json:"-"`
}

// makeAbsolute makes definite what is relative or drawn.
func (w *When) makeAbsolute(now time.Time, e Effect) {
	begin := now
	if w.After > 0 {
		from := now.Add(w.After)
		w.From = &from
	}
	if w.From != nil {
		from := w.From.UTC()
		w.From, begin = &from, from
	}
	if w.For > 0 {
		until := begin.Add(w.For)
		w.Until = &until
	}
	if w.Until != nil {
		until := w.Until.UTC()
		w.Until = &until
	}
	w.After, w.For = 0, 0
	if w.Seed == 0 && (w.Probability > 0 || e.Jitter > 0) {
		w.Seed = DrawSeed()
	}
}

// DrawSeed gives a seed at random, never 0.
func DrawSeed() int64 {
	var b [8]byte
	_, _ = crand.Read(b[:]) // Never fails.
	return 1 + int64(binary.LittleEndian.Uint64(b[:])%maxSeed)
}

// isTurn tells whether the rule is applied to the nth that matches, the first
// being 1.
func (w When) isTurn(n int) bool {
	n -= w.Skip
	if n < 1 || w.Every > 0 && n%w.Every != 0 {
		return false
	}
	return w.Probability == 0 || w.drawUnit(n+w.Skip, 0) < w.Probability
}

// drawJitter is what is added to the delay of the nth that matches.
func (w When) drawJitter(n int, most time.Duration) time.Duration {
	if most == 0 {
		return 0
	}
	return time.Duration(w.drawUnit(n, 1) * float64(most)).Truncate(time.Millisecond)
}

// drawUnit is in [0,1), one number for each n and use.
func (w When) drawUnit(n int, use uint64) float64 {
	return rand.New(rand.NewPCG(uint64(w.Seed), uint64(n)<<1|use)).Float64()
}

// throttleBucket is how much a throttle lets through just now.
type throttleBucket struct {
	tokens float64
	at     time.Time // zero: it is full
}

// take gives 0 to a call that goes through, and otherwise the whole seconds
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
