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
