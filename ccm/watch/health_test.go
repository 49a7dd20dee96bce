package watch

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/cloud-provider/app"
	controllersmetrics "k8s.io/component-base/metrics/prometheus/controllers"
	controllermanager "k8s.io/controller-manager/app"

	"github.com/ccmlab/ccmlab/ccm/ring"
)

// A worker that never comes back from a key makes the job unhealthy, until it does.
func TestHealthOfAWorkerThatIsStuck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, free := newWorld(t), make(chan struct{})
		w.prompter.sync = func(context.Context, string) error { <-free; return nil }
		w.run()
		w.prompter.queue.Add("node-1")
		advanceTime(maxRoundDuration)
		assert.NoError(t, w.HealthChecker().Check(nil))
		advanceTime(2 * time.Second)
		assert.EqualError(t, w.HealthChecker().Check(nil),
			"the watch of waiting Nodes is stuck: syncing node-1 has taken 5m2s")
		close(free)
		synctest.Wait()
		assert.NoError(t, w.HealthChecker().Check(nil))
	})
}

// The jobs are healthy while they have nothing to do, and not while they wait for the cluster for long.
func TestHealthOfIdleJobs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.run()
		advanceTime(time.Hour)
		assert.NoError(t, w.HealthChecker().Check(nil))

		waiting := newWorld(t) // Its informers do not start.
		require.NoError(t, waiting.start(t.Context(), waiting.sweeper))
		advanceTime(maxRoundDuration + time.Minute)
		assert.ErrorContains(t, waiting.HealthChecker().Check(nil),
			"the orphan sweeper is stuck: waiting for the informers to sync has taken 6m0s")
	})
}

// A call for routes that lasts for ever makes /healthz fail.
func TestHealthOfRoutes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, hang := newWorld(t), make(chan struct{})
		start := startCloudWatch(app.ControllerInitContext{}, nil, provider{watch: w.Watch})
		_, started, err := start(t.Context(), controllermanager.ControllerContext{
			ControllerManagerMetrics: controllersmetrics.NewControllerManagerMetrics("test"),
		})
		require.NoError(t, err)
		require.True(t, started)
		check := w.HealthChecker().Check
		advanceTime(time.Hour)
		require.NoError(t, check(nil), "nothing happens")

		var hanging sync.WaitGroup
		hanging.Go(func() {
			assert.NoError(t, w.observeCall(t.Context(), ring.Call{Method: "ListRoutes"}, func(context.Context) error {
				<-hang
				return nil
			}))
		})
		advanceTime(maxRoundDuration)
		require.NoError(t, check(nil))
		advanceTime(time.Second)
		assert.EqualError(t, check(nil), "the route controller is stuck: ListRoutes has taken 5m1s")
		close(hang)
		hanging.Wait()
		require.NoError(t, check(nil))
	})
}
