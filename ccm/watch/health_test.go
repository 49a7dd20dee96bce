package watch

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ccmlab/ccmlab/ccm/ring"

	"github.com/stretchr/testify/assert"
)

// A worker that does not come back from a key, informers that do not sync and a call for routes that lasts are told
// until they end. Idle jobs are healthy.
func TestHealth(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, end := newWorld(t), make(chan struct{})
		var synced atomic.Bool
		w.prompter.sync = func(context.Context, string) error { <-end; return nil }
		w.prompter.queue.Add("node-1")
		go w.prompter.run(t.Context(), &w.health)
		go w.sweeper.run(t.Context(), &w.health, synced.Load)
		go func() {
			_ = w.observeCall(t.Context(), ring.Call{Method: "ListRoutes"}, func(context.Context) error { <-end; return nil })
		}()
		check := w.HealthChecker().Check
		advanceTime(maxRoundDuration)
		assert.NoError(t, check(nil))
		advanceTime(2 * time.Second)
		assert.EqualError(t, check(nil), `the orphan sweeper is stuck: waiting for the informers to sync has taken 5m2s
the route controller is stuck: ListRoutes has taken 5m2s
the watch of waiting Nodes is stuck: syncing node-1 has taken 5m2s`)
		close(end)
		synced.Store(true)
		advanceTime(time.Hour)
		assert.NoError(t, check(nil))
	})
}
