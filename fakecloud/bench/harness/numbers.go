package harness

import (
	"fmt"
	"math"
	"time"
)

// Latencies must be sorted before Percentile is called.
type Latencies []time.Duration

// Percentile is the least value that at least p percent of all values do not exceed (nearest
// rank). It is 0 if there are none.
func (l Latencies) Percentile(p float64) time.Duration {
	if len(l) == 0 {
		return 0
	}
	rank := int(math.Ceil(p / 100 * float64(len(l))))
	return l[min(max(rank, 1), len(l))-1]
}

// MS formats a time in milliseconds, below 10 ms with a decimal.
func MS(d time.Duration) string {
	v := float64(d) / float64(time.Millisecond)
	if v < 10 {
		return fmt.Sprintf("%.1f ms", v)
	}
	return fmt.Sprintf("%.0f ms", v)
}

// Grouped formats a number with commas between its thousands.
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
