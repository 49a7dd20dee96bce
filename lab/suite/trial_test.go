package suite

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

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
