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
	assert.False(t, s.explains(lost, now), "nobody looks")
	s.note(now)
	now = now.Add(standstillPeriod + longStandstill - time.Millisecond)
	assert.False(t, s.explains(lost, now), "nothing stands still")
	s.note(now)
	assert.False(t, s.explains(lost, now), "nothing stood still")
	now = now.Add(standstillPeriod + longStandstill)
	assert.True(t, s.explains(lost, now), "it stands still, and the look goes on")
	s.note(now)
	s.note(now.Add(time.Second))
	assert.True(t, s.explains("starting\n"+lost, now.Add(time.Second)))
	assert.False(t, s.explains("panic: nil pointer", now.Add(time.Second)), "it ended for another reason")
	s.note(now.Add(2 * time.Second))
	for at := 3 * time.Second; at <= standstillMemory; at += 2 * time.Second {
		s.note(now.Add(at))
	}
	assert.False(t, s.explains(lost, now.Add(standstillMemory)), "that is long ago")
}
