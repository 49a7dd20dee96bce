package suite

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/lab/conformance"
)

// A learner who waits for the suite sees that it has not stopped.
func TestSilence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var told []string
		s := startProgressReminder(func(what string) { told = append(told, what) })
		defer s.stop()
		s.observeTest(conformance.TestReport{ID: "lasts"})
		s.observeTest(conformance.TestReport{ID: "quick"})
		s.observeTest(conformance.TestReport{ID: "third"})
		time.Sleep(reminderInterval / 2)
		s.observeTest(conformance.TestReport{ID: "quick", Result: conformance.Passed})
		time.Sleep(reminderInterval + time.Second)
		s.observeTest(conformance.TestReport{ID: "third", Result: conformance.Passed})
		time.Sleep(reminderInterval + time.Second)
		s.observeTest(conformance.TestReport{ID: "lasts", Result: conformance.Passed})
		time.Sleep(2 * reminderInterval)
		synctest.Wait()
		assert.Equal(t, []string{"lasts and 1 more: still running (20s)", "lasts: still running (20s)"}, told)
	})
}

// A learner is told early what the first tests miss, and no more of them.
func TestEarlyFindings(t *testing.T) {
	var told []string
	e := earlyFindings{tell: func(what string) { told = append(told, what) }}
	for _, id := range []string{"a", "a", "b", "c", "d"} {
		e.add(conformance.Wait{
			Test: conformance.Test{ID: id, Requires: "A Node has an address."}, For: "the address of Node n",
			Last: errors.New("it has none"), Took: 10*time.Second + time.Millisecond,
		})
	}
	require.Len(t, told, maxEarlyFindings)
	assert.Equal(t, "a: not yet after 10s: the address of Node n; instead: it has none\n"+
		"     It requires: A Node has an address.\n     The test goes on; Ctrl-C ends it.", told[0])
	assert.Contains(t, told[1], "b: not yet")
}

// reasons keeps failures as a test of the suite does.
type reasons []string

func (r *reasons) Errorf(format string, args ...any) {
	*r = append(*r, strings.TrimSpace(fmt.Sprintf(format, args...)))
}

// A learner reads first what is required, then what was seen, and nothing about the
// suite's own sources.
func TestSummaryOfFailures(t *testing.T) {
	var seen reasons
	assert.Contains(&seen, []int{1}, 2, "the targets")
	seen = append(seen, "the test panicked: oh\ngoroutine 7 [running]:\nmain.f()\n\tf.go:1", "cleaning up: no")
	require.Contains(t, seen[0], "trial_test.go")
	v := verdictOf(&conformance.Report{Crashes: []string{"exited"}, Tests: []conformance.TestReport{
		{ID: "a", Result: conformance.Passed},
		{ID: "b", Result: conformance.Failed, Requires: "A Node is ready.", Reasons: seen},
		{ID: "c", Result: conformance.Blocked, Reasons: []string{"b has failed"}},
	}})
	assert.False(t, v.Passed)
	assert.Equal(t, []string{"b"}, v.Failed)
	assert.Equal(t, `1 of 3 tests of the conformance suite pass
b requires: A Node is ready.
  []int{1} does not contain 2
  the targets
  the test panicked: oh
  cleaning up: no
c: b has failed
the CCM exited`, v.Said)
}
