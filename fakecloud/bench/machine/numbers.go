package machine

import (
	"fmt"
	"math"
	"time"
)

// Latencies are sorted before they are asked for a percentile.
type Latencies []time.Duration

// Percentile is the least value that at least p percent of all do not exceed
// (nearest rank); 0 of none.
func (l Latencies) Percentile(p float64) time.Duration {
	if len(l) == 0 {
		return 0
	}
	rank := int(math.Ceil(p / 100 * float64(len(l))))
	return l[min(max(rank, 1), len(l))-1]
}

// MS shows a time in milliseconds, with a decimal where that matters.
func MS(d time.Duration) string {
	v := float64(d) / float64(time.Millisecond)
	if v < 10 {
		return fmt.Sprintf("%.1f ms", v)
	}
	return fmt.Sprintf("%.0f ms", v)
}

// Grouped shows a number with its thousands apart.
func Grouped(v float64) string {
	if v < 10 {
		return fmt.Sprintf("%.1f", v)
	}
	s := fmt.Sprintf("%.0f", v)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}
