package cloud

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/internal/must"
)

// Six hours of it are no ten thousand writes.
func TestThePausesBetweenTriesDouble(t *testing.T) {
	plane := newFakePlane()
	plane.blocked[80] = true
	c, p := newVirtual(t, t.Context(), openStore(t, ":memory:"), plane, Profiles[0])
	lb := createBalancer(t, c, p, api.LoadBalancerCreate{Name: "lb", Listeners: oneListener})
	advanceBy := func(d time.Duration) int { return must.Do(c.Advance(t.Context(), by(d)))(t).Transitions }
	advanceBy(0)
	require.Equal(t, api.LoadBalancerError, balancerState(t, c, p, lb.ID))
	for _, pause := range []time.Duration{2, 2, 4, 8, 16, 32, 60, 60} {
		assert.Zero(t, advanceBy(pause*time.Second-time.Millisecond), "before %ds", pause)
		assert.Equal(t, 1, advanceBy(time.Millisecond), "after %ds", pause)
	}
	assert.Equal(t, 360, advanceBy(6*time.Hour))
	plane.blocked[80] = false
	assert.Equal(t, 1, advanceBy(time.Minute))
	assert.Equal(t, api.LoadBalancerActive, balancerState(t, c, p, lb.ID))
}
