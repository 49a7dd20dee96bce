package lab

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
)

// A learner who waits for the suite sees that it has not stopped.
func TestSlow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var told []string
		runs := slow(func(what string) { told = append(told, what) })
		runs("quick")
		time.Sleep(slowTest / 2)
		runs("")
		time.Sleep(slowTest)
		runs("lasts")
		time.Sleep(2*slowTest + time.Second)
		runs("")
		synctest.Wait()
		assert.Equal(t, []string{"lasts is still running (20s)", "lasts is still running (40s)"}, told)
	})
}
