package ccm

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
)

// jobFunc is a job of the cloud watch that a test writes.
type jobFunc func(ctx context.Context, health *jobHealth)

func (f jobFunc) Name() string                               { return "a job" }
func (f jobFunc) Run(ctx context.Context, health *jobHealth) { f(ctx, health) }

// runJob runs a cloud watch of that job alone until the test ends.
func runJob(t *testing.T, job jobFunc) *cloudWatch {
	watch := &cloudWatch{jobs: []watchJob{job}}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		watch.Run(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-ended
	})
	return watch
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
		assert.ErrorContains(t, watch.HealthChecker().Check(nil), "waiting for what is in the cluster")
	})
}
