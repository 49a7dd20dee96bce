package conformance

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

// Only a lost Lease is explained by a busy machine, and only for a while.
func TestStandstillExplainsLostLease(t *testing.T) {
	const lost = "E1128 15:00:00.000000 1 controllermanager.go:274] leaderelection lost"
	now := time.Now()
	s := &standstill{}
	s.note(now, now.Add(standstillPeriod+longStandstill-time.Millisecond))
	assert.False(t, s.explains(lost, now), "nothing stood still")
	s.note(now.Add(-5*time.Second), now)
	assert.True(t, s.explains("starting\n"+lost, now.Add(time.Second)))
	assert.False(t, s.explains("panic: nil pointer", now.Add(time.Second)), "it ended for another reason")
	assert.False(t, s.explains(lost, now.Add(standstillMemory)), "that is long ago")
}
