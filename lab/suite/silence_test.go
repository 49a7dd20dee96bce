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
		s := newSilence(func(what string) { told = append(told, what) })
		defer s.end()
		s.observe(conformance.TestReport{ID: "lasts"})
		s.observe(conformance.TestReport{ID: "quick"})
		s.observe(conformance.TestReport{ID: "third"})
		time.Sleep(longSilence / 2)
		s.observe(conformance.TestReport{ID: "quick", Result: conformance.Passed})
		time.Sleep(longSilence + time.Second)
		s.observe(conformance.TestReport{ID: "third", Result: conformance.Passed})
		time.Sleep(longSilence + time.Second)
		s.observe(conformance.TestReport{ID: "lasts", Result: conformance.Passed})
		time.Sleep(2 * longSilence)
		synctest.Wait()
		assert.Equal(t, []string{"lasts and 1 more: still running (20s)", "lasts: still running (20s)"}, told)
	})
}
