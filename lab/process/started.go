package process

import (
	"os"
	"strconv"
	"strings"
	"time"
)

// ticksPerSecond is the unit of startTicks (USER_HZ), the same on every Linux.
const ticksPerSecond = 100

// Started is when the process began, to a hundredth of a second. It is zero if the
// uptime of the kernel cannot be read (/proc/uptime, proc(5)).
func (p *Process) Started() time.Time {
	text, err := os.ReadFile("/proc/uptime")
	if err != nil {
		return time.Time{}
	}
	first, _, _ := strings.Cut(string(text), " ")
	up, err := strconv.ParseFloat(first, 64)
	if err != nil {
		return time.Time{}
	}
	age := up - float64(p.startTicks)/ticksPerSecond
	return time.Now().Add(-time.Duration(age * float64(time.Second)))
}
