package ccm

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/cloud-provider/app"
	cloudcontrollerconfig "k8s.io/cloud-provider/app/config"
	"k8s.io/cloud-provider/names"
	controllersmetrics "k8s.io/component-base/metrics/prometheus/controllers"
	controllermanager "k8s.io/controller-manager/app"

	"github.com/ccmlab/ccmlab/ccm/doubt"
	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
)

// jobFunc is a job of the cloud watch that a test writes.
type jobFunc func(ctx context.Context, health *jobHealth)

func (f jobFunc) Name() string                               { return "a job" }
func (f jobFunc) Run(ctx context.Context, health *jobHealth) { f(ctx, health) }

// startJobs starts a cloud watch of those jobs alone, until ctx ends.
func startJobs(t *testing.T, ctx context.Context, jobs ...watchJob) *cloudWatch {
	watch := &cloudWatch{}
	require.NoError(t, watch.start(ctx, func() ([]watchJob, error) { return jobs, nil }))
	return watch
}

// runJob runs a cloud watch of that job alone until the test ends.
func runJob(t *testing.T, job jobFunc) *cloudWatch {
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
		w := newWatchWorld(t)
		w.run()
		advanceTime(time.Hour)
		assert.NoError(t, w.watch.HealthChecker().Check(nil))

		waiting := newWatchWorld(t)
		waiting.nodeWatch.synced = func() bool { return false }
		watch := runJob(t, waiting.nodeWatch.Run)
		advanceTime(maxRoundDuration + time.Minute)
		assert.ErrorContains(t, watch.HealthChecker().Check(nil), "waiting for the informers to sync")
	})
}

// startWatchOf starts the cloud watch of c where the route controller alone is enabled, until the
// test ends.
func startWatchOf(t *testing.T, c *cloud) *cloudWatch {
	cfg := &cloudcontrollerconfig.Config{ClientBuilder: clients{kube: fake.NewClientset()}}
	cfg.SharedInformers = informers.NewSharedInformerFactory(fake.NewClientset(), 0)
	cfg.ComponentConfig.Generic.Controllers = []string{names.NodeRouteController}
	start := startCloudWatch(app.ControllerInitContext{}, cfg.Complete(), c)
	watch, started, err := start(t.Context(), controllermanager.ControllerContext{
		ControllerManagerMetrics: controllersmetrics.NewControllerManagerMetrics("test"),
	})
	require.NoError(t, err)
	require.True(t, started, "it has no job, and knows whether the cache and the routes live")
	return watch.(*cloudWatch)
}

// oneEvent is a cloud that has one event.
type oneEvent struct{ doubt.Source }

func (oneEvent) Follow(
	_ context.Context, _ int64, fn func(api.Event) error, _ func(error), _ ...client.EventFilter,
) error {
	return fn(api.Event{})
}

// An event that does not come to its end, and a list of routes that lasts for ever, make /healthz
// fail, and so does the cache's end.
func TestHealthOfCacheAndRoutes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hang := make(chan struct{})
		f := &fakeAPI{t: t, listRoutes: func(client.RouteFilter) ([]api.Route, error) {
			<-hang
			return []api.Route{route()}, nil
		}}
		c, stop := newTestCloud(f), make(chan struct{})
		c.memory, c.routes = newTestMemory(f, c.identity), newRoutes(t, f)
		check := startWatchOf(t, c).HealthChecker().Check
		c.Initialize(clients{kube: fake.NewClientset()}, stop)
		advanceTime(time.Hour)
		require.NoError(t, check(nil), "nothing happens")

		var hanging sync.WaitGroup
		hanging.Go(func() {
			apply := func(api.Event) error { <-hang; return nil }
			assert.NoError(t, eventRounds{oneEvent{f}, c.memoryHealth}.Follow(t.Context(), 0, apply, nil))
		})
		hanging.Go(func() { _, _ = c.routes.ListRoutes(t.Context(), clusterName) })
		advanceTime(maxRoundDuration)
		require.NoError(t, check(nil))
		advanceTime(time.Second)
		assert.EqualError(t, check(nil), "cache is stuck: applying an event of the cloud has taken 5m1s\n"+
			"routes is stuck: listing routes has taken 5m1s")
		close(hang)
		hanging.Wait()
		require.NoError(t, check(nil))

		close(stop)
		synctest.Wait()
		assert.EqualError(t, check(nil), "cache has ended")
	})
}
