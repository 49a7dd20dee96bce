package server

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// No caller gets more than its share, and each that waits as told gets in.
func TestBucketsLimit(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		perSecond, burst := rapid.IntRange(1, 1000).Draw(t, "rate"), rapid.IntRange(1, 50).Draw(t, "burst")
		l := newRateLimits(perSecond, burst)
		start := time.Unix(1e9, 0)
		now, taken := start, 0
		for range rapid.IntRange(1, 200).Draw(t, "calls") {
			now = now.Add(time.Duration(rapid.IntRange(0, 5).Draw(t, "pause")) * time.Millisecond)
			wait := l.tokens.takeOne("a", now)
			if wait > 0 && rapid.Bool().Draw(t, "patient") {
				now = now.Add(wait + time.Microsecond)
				wait = l.tokens.takeOne("a", now)
				require.Zero(t, wait)
			}
			if wait == 0 {
				taken++
			}
			require.LessOrEqual(t, float64(taken), float64(burst)+now.Sub(start).Seconds()*float64(perSecond)+0.01)
		}
		require.Zero(t, l.tokens.takeOne("b", now), "another's bucket is its own")
	})
}

func TestBucketsAreBounded(t *testing.T) {
	l := newRateLimits(1, 2)
	now := time.Unix(1e9, 0)
	for i := range bucketLimit + 50 {
		assert.Zero(t, l.tokens.takeOne(fmt.Sprint(i), now))
	}
	assert.Len(t, l.tokens.all, bucketLimit)
	assert.Zero(t, l.tokens.takeOne("late", now.Add(time.Minute)))
	assert.Len(t, l.tokens.all, 1, "full ones are as good as none")
	off := newRateLimits(0, 0)
	assert.Zero(t, off.takeForToken("p", "t"))
	assert.Zero(t, off.takeForAddress("127.0.0.1:1"))
}

func TestReservedLookups(t *testing.T) {
	start := time.Unix(1e9, 0)
	// triesUntilIn floods with one guess a millisecond, and tries a secret every 373 ms meanwhile.
	triesUntilIn := func(guess func(ms int) string) (tries, lookups int, took time.Duration) {
		r := newLookupReserve()
		for ms := range 1_000_000 {
			now := start.Add(time.Duration(ms) * time.Millisecond)
			if r.takeLookup(guess(ms), now) {
				lookups++
			}
			if ms%373 != 372 {
				continue
			}
			if tries++; r.takeLookup("valid", now) {
				return tries, lookups, now.Sub(start)
			}
		}
		return tries, lookups, 0
	}
	tries, _, took := triesUntilIn(func(int) string { return "wrong" })
	assert.NotZero(t, took)
	assert.LessOrEqual(t, tries, 10, "one secret that is repeated takes one slot of 64")
	tries, lookups, took := triesUntilIn(func(ms int) string { return fmt.Sprint("guess", ms) })
	assert.NotZero(t, took)
	assert.LessOrEqual(t, tries, 500, "one try in 16 gets in: this many fail once in 10^13 runs")
	assert.LessOrEqual(t, lookups, reserveSlots*(int(took.Seconds())+2), "guesses stay bounded")
}
