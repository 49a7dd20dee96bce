package dataplane

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
)

func TestIdleTimer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start, ended := time.Now(), make(chan time.Time, 1)
		s := newIdleTimer(10*time.Second, func() { ended <- time.Now() })
		for range 3 {
			time.Sleep(7 * time.Second)
			s.recordActivity()
		}
		assert.Equal(t, 31*time.Second, (<-ended).Sub(start), "21 s of noise, 10 s of silence")
		s.stop()

		s = newIdleTimer(10*time.Second, func() { t.Error("it was stopped") })
		time.Sleep(time.Second)
		s.stop()
		time.Sleep(time.Minute)

		none := newIdleTimer(0, func() { t.Error("there is no limit") })
		none.recordActivity()
		time.Sleep(time.Hour)
		none.stop()
	})
}
