package watch

import (
	"context"
	"errors"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	kcache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	cloudproviderapi "k8s.io/cloud-provider/api"
	"k8s.io/klog/v2"

	"github.com/ccmlab/ccmlab/ccm/cache"
)

// workersPerQueue are enough to remove a hundred Nodes within seconds, each of which costs one call
// to the cloud and one to the API server.
const workersPerQueue = 5

// resyncPeriod is how often every Node and Service is checked, for changes that no event reported: the stream was
// broken, or the event came before its Node or Service.
const resyncPeriod = time.Minute

// keyQueue holds the keys of objects that are to be synced.
type keyQueue = workqueue.TypedRateLimitingInterface[string]

// newKeyQueue makes a queue that retries failed keys after least, then after twice as long each time up to most.
func newKeyQueue(name string, least, most time.Duration) keyQueue {
	return workqueue.NewTypedRateLimitingQueueWithConfig(
		workqueue.NewTypedItemExponentialFailureRateLimiter[string](least, most),
		workqueue.TypedRateLimitingQueueConfig[string]{Name: "cloud_watch_" + name})
}

// watchJob is one job of the cloud watch. Each works without the others.
type watchJob struct {
	name string // in logs and /healthz
	// onNode, onService and onChange put keys into the queue. They must not block.
	onNode, onService kcache.ResourceEventHandlerFuncs
	onChange          func(cache.Change)
	queue             keyQueue
	sync              func(ctx context.Context, key string) error
	// periodic has what puts keys into the queue at the start and after each period.
	periodic map[time.Duration]func()
}

// run works until ctx ends. What it starts has ended when it returns.
func (j *watchJob) run(ctx context.Context, health *watchHealth, synced ...kcache.InformerSynced) {
	var running wait.Group
	defer running.Wait()
	defer j.queue.ShutDown()
	endWait := health.beginRound(j.name, "waiting for the informers to sync")
	isSynced := kcache.WaitForCacheSync(ctx.Done(), synced...)
	if endWait(); !isSynced {
		return
	}
	for range workersPerQueue {
		running.Start(func() {
			for j.syncNextKey(ctx, health) {
			}
		})
	}
	for period, enqueue := range j.periodic {
		running.StartWithChannel(ctx.Done(), func(stop <-chan struct{}) { wait.Until(enqueue, period, stop) })
	}
	<-ctx.Done()
}

// errCheckAgain has a key synced again like one that failed, although nothing did.
var errCheckAgain = errors.New("not done yet")

// syncNextKey waits for a key and syncs it; a key is with one worker at a time. It is false when the queue is shut
// down.
func (j *watchJob) syncNextKey(ctx context.Context, health *watchHealth) bool {
	key, shutdown := j.queue.Get()
	if shutdown {
		return false
	}
	defer j.queue.Done(key)
	defer health.beginRound(j.name, "syncing "+key)()
	err := j.sync(ctx, key)
	var retry *cloudproviderapi.RetryError
	switch {
	case err == nil:
		j.queue.Forget(key)
	case errors.As(err, &retry):
		j.queue.Forget(key)
		j.queue.AddAfter(key, retry.RetryAfter())
	case ctx.Err() == nil:
		if !errors.Is(err, errCheckAgain) {
			klog.ErrorS(err, "The cloud watch will retry", "key", key)
		}
		j.queue.AddRateLimited(key)
	}
	return true
}
