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
	cloudcontrollerconfig "k8s.io/cloud-provider/app/config"
	controllersmetrics "k8s.io/component-base/metrics/prometheus/controllers"
	controllermanager "k8s.io/controller-manager/app"

	"github.com/ccmlab/ccmlab/ccm/cache"
	"github.com/ccmlab/ccmlab/ccm/core"
	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
)

// jobFunc is a job of the cloud watch that a test writes.
type jobFunc func(ctx context.Context, health *jobHealth)

func (f jobFunc) Name() string                               { return "a job" }
func (f jobFunc) Run(ctx context.Context, health *jobHealth) { f(ctx, health) }

// startJobs starts a cloud watch of those jobs alone, until ctx ends.
func startJobs(t *testing.T, ctx context.Context, jobs ...watchJob) *Watch {
	watch := &Watch{}
	require.NoError(t, watch.start(ctx, func() ([]watchJob, error) { return jobs, nil }))
	return watch
}

// runJob runs a cloud watch of that job alone until the test ends.
func runJob(t *testing.T, job jobFunc) *Watch {
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(func() {
		cancel()
		synctest.Wait()
	})
	return startJobs(t, ctx, job)
}

func TestHealthOfAJobThatEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		end := make(chan struct{})
		watch := runJob(t, func(context.Context, *jobHealth) { <-end })
		advanceTime(time.Hour)
		assert.NoError(t, watch.HealthChecker().Check(nil), "it runs, and has nothing to do")
		close(end)
		synctest.Wait()
		assert.EqualError(t, watch.HealthChecker().Check(nil), "a job has ended")
	})
}

// A worker that never comes back from a key makes the job unhealthy, until it does.
func TestHealthOfAWorkerThatIsStuck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		queue, free := newKeyQueue("health", minNodeRetry, maxNodeRetry), make(chan struct{})
		watch := runJob(t, func(ctx context.Context, health *jobHealth) {
			defer queue.ShutDown()
			for syncNextKey(ctx, health, queue, func(ctx context.Context, key string) error {
				select {
				case <-free:
				case <-ctx.Done():
				}
				return nil
			}) {
			}
		})
		t.Cleanup(queue.ShutDown)
		queue.Add("node-1")
		advanceTime(maxRoundDuration)
		assert.NoError(t, watch.HealthChecker().Check(nil))
		advanceTime(2 * time.Second)
		assert.EqualError(t, watch.HealthChecker().Check(nil), "a job is stuck: syncing node-1 has taken 5m2s")
		close(free)
		synctest.Wait()
		assert.NoError(t, watch.HealthChecker().Check(nil))
	})
}

// The genuine jobs are healthy while they have nothing to do, and one that waits for the
// cluster for long is not.
func TestHealthOfTheGenuineJobs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.run()
		advanceTime(time.Hour)
		assert.NoError(t, w.watch.HealthChecker().Check(nil))

		waiting := newWorld(t)
		waiting.nodeWatch.synced = func() bool { return false }
		watch := runJob(t, waiting.nodeWatch.Run)
		advanceTime(maxRoundDuration + time.Minute)
		assert.ErrorContains(t, watch.HealthChecker().Check(nil), "waiting for the informers to sync")
	})
}

// oneEvent is a cloud that has one event.
type oneEvent struct{ cache.Source }

func (oneEvent) Follow(
	_ context.Context, _ int64, fn func(api.Event) error, _ func(error), _ ...client.EventFilter,
) error {
	return fn(api.Event{})
}

// An event that does not come to its end, and a call for routes that lasts for ever, make /healthz fail.
func TestHealthOfCacheAndRoutes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, hang := newWorld(t).watch, make(chan struct{})
		cfg := (&cloudcontrollerconfig.Config{}).Complete()
		start := startCloudWatch(app.ControllerInitContext{}, cfg, provider{watch: w})
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
			apply := func(api.Event) error { <-hang; return nil }
			assert.NoError(t, w.Source(oneEvent{}).Follow(t.Context(), 0, apply, nil))
		})
		hanging.Go(func() {
			assert.NoError(t, w.observeCall(t.Context(), core.Call{Method: "ListRoutes"}, func(context.Context) error {
				<-hang
				return nil
			}))
		})
		advanceTime(maxRoundDuration)
		require.NoError(t, check(nil))
		advanceTime(time.Second)
		assert.EqualError(t, check(nil), "the cache is stuck: applying an event of the cloud has taken 5m1s\n"+
			"the route controller is stuck: ListRoutes has taken 5m1s")
		close(hang)
		hanging.Wait()
		require.NoError(t, check(nil))
	})
}
