package ccm

// The cloud watch is a controller beside upstream's four. Upstream looks at the cloud
// when something changes in the cluster or when a retry is due; the cloud watch looks at
// the cluster when something changes in the cloud. It has three jobs: nodewatch.go,
// servicewatch.go and orphansweeper.go. The first two subscribe to the inventory's feed
// of changes. A change, in the cloud or in the cluster, only puts a key into a queue; the
// workers observe both sides, compare and act. Each job helps one of upstream's controllers,
// or several, and does nothing for one that --controllers switches off: whoever does its work
// then would be disturbed.

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	cloudprovider "k8s.io/cloud-provider"
	cloudproviderapi "k8s.io/cloud-provider/api"
	"k8s.io/cloud-provider/app"
	cloudcontrollerconfig "k8s.io/cloud-provider/app/config"
	"k8s.io/cloud-provider/names"
	controllermanager "k8s.io/controller-manager/app"
	"k8s.io/controller-manager/controller"
	"k8s.io/controller-manager/pkg/healthz"
	"k8s.io/klog/v2"

	"github.com/ccmlab/ccmlab/ccm/calls"
	"github.com/ccmlab/ccmlab/ccm/contract"
	"github.com/ccmlab/ccmlab/ccm/inventory"
)

// controllerConstructors are those of upstream's controllers, of which that of routes resyncs
// often, and of the cloud watch, by the names that --controllers takes.
func controllerConstructors() map[string]app.ControllerInitFuncConstructor {
	all := maps.Clone(app.DefaultInitFuncConstructors)
	all[names.NodeRouteController] = withRouteResync(all[names.NodeRouteController])
	all[calls.CloudWatch] = app.ControllerInitFuncConstructor{
		InitContext: app.ControllerInitContext{ClientName: calls.CloudWatch},
		Constructor: startCloudWatch,
	}
	return all
}

// controllerAliases are the short names that --controllers takes too.
func controllerAliases() map[string]string {
	aliases := names.CCMControllerAliases()
	aliases["cloud-watch"] = calls.CloudWatch
	return aliases
}

// startCloudWatch starts the jobs of the cloud watch that help a controller that is enabled, if any,
// unless nothing is remembered of the cloud.
func startCloudWatch(
	as app.ControllerInitContext,
	cfg *cloudcontrollerconfig.CompletedConfig,
	provider cloudprovider.Interface,
) app.InitFunc {
	return func(ctx context.Context, manager controllermanager.ControllerContext) (controller.Interface, bool, error) {
		c, ok := provider.(*cloud)
		if !ok {
			return nil, false, fmt.Errorf("%s watches %s only, not %s",
				calls.CloudWatch, contract.ProviderName, provider.ProviderName())
		}
		if !c.cached {
			klog.Warningf("%s is off: it lives on what is remembered of the cloud, "+
				"and the configuration says cache: false", calls.CloudWatch)
			return nil, false, nil
		}
		enabled := enabledControllers(cfg.ComponentConfig.Generic.Controllers)
		logDutiesThatAreOff(enabled)
		jobs, err := newWatchJobs(c, enabled, cfg.ClientBuilder.ClientOrDie(as.ClientName), cfg.SharedInformers)
		if err != nil {
			return nil, false, err
		}
		watch := &cloudWatch{jobs: jobs}
		watch.health.jobs = []*jobHealth{c.inventoryHealth, c.routes.health}
		go func() {
			manager.ControllerManagerMetrics.ControllerStarted("cloud-watch")
			defer manager.ControllerManagerMetrics.ControllerStopped("cloud-watch")
			watch.Run(ctx)
		}()
		return watch, true, nil
	}
}

// enabledControllers are upstream's controllers that --controllers enables. Upstream's start
// asks in the same way; it has replaced aliases by then.
func enabledControllers(flag []string) sets.Set[string] {
	enabled := sets.New[string]()
	for name := range app.DefaultInitFuncConstructors {
		if controllermanager.IsControllerEnabled(name, app.ControllersDisabledByDefault, flag) {
			enabled.Insert(name)
		}
	}
	return enabled
}

// watchDuties are what the cloud watch does beside each of upstream's controllers.
var watchDuties = map[string]string{
	names.CloudNodeController:          "prompting Nodes whose instance came late",
	names.CloudNodeLifecycleController: "removing Nodes whose instance has ended, and Events about stopped ones",
	names.ServiceLBController:          "repairing load balancers, retrying their addresses, and deleting orphans",
}

// logDutiesThatAreOff logs, once, what the cloud watch leaves to others.
func logDutiesThatAreOff(enabled sets.Set[string]) {
	for _, name := range slices.Sorted(maps.Keys(watchDuties)) {
		if !enabled.Has(name) {
			klog.InfoS("A duty of the cloud watch is off, as --controllers switches off the controller that it helps",
				"controller", name, "duty", watchDuties[name])
		}
	}
}

// newWatchJobs lists the jobs of the cloud watch that help a controller that is enabled. Each
// has subscribed to what it follows when it is returned.
func newWatchJobs(
	c *cloud, enabled sets.Set[string], kube kubernetes.Interface, shared informers.SharedInformerFactory,
) (jobs []watchJob, err error) {
	if enabled.HasAny(names.CloudNodeController, names.CloudNodeLifecycleController) {
		nodes, nodesErr := newNodeWatch(c, enabled, kube, shared)
		jobs, err = append(jobs, nodes), errors.Join(err, nodesErr)
	}
	if enabled.Has(names.ServiceLBController) {
		services, servicesErr := newServiceWatch(c, kube, shared)
		orphans, orphansErr := newOrphanSweeper(c, kube, shared)
		jobs, err = append(jobs, services, orphans), errors.Join(err, servicesErr, orphansErr)
	}
	return jobs, err
}

// watchJob is one job of the cloud watch. Each works without the others.
type watchJob interface {
	// Name is what logs and /healthz call it.
	Name() string
	// Run works until ctx ends. What it starts has ended when it returns. It reports its
	// rounds to health.
	Run(ctx context.Context, health *jobHealth)
}

// cloudWatch is the controller: its jobs, and whether each of them, the inventory and the routes
// live.
type cloudWatch struct {
	jobs   []watchJob
	health watchHealth
}

var _ controller.HealthCheckable = (*cloudWatch)(nil)

// Name is the one that --controllers takes.
func (w *cloudWatch) Name() string { return calls.CloudWatch }

// HealthChecker is part of /healthz, under the controller's name.
func (w *cloudWatch) HealthChecker() healthz.UnnamedHealthChecker { return &w.health }

// Run runs the jobs beside each other until ctx ends. Without any it only has its health checked.
func (w *cloudWatch) Run(ctx context.Context) {
	ctx = calls.For(ctx, calls.CloudWatch)
	var running wait.Group
	defer running.Wait()
	running.Start(func() { <-ctx.Done() })
	for _, job := range w.jobs {
		health := w.health.addJob(job.Name())
		running.Start(func() {
			defer health.end()
			job.Run(ctx, health)
		})
	}
}

// changeFeed is the part of the inventory that reports what changes in the cloud.
type changeFeed interface {
	Subscribe(fn func(inventory.Change))
}

// awaitSync returns when the informers have what is in the cluster, false if ctx ends before.
func awaitSync(ctx context.Context, health *jobHealth, synced ...cache.InformerSynced) bool {
	defer health.beginRound("waiting for what is in the cluster")()
	return cache.WaitForCacheSync(ctx.Done(), synced...)
}

// runPeriodically starts check now, and again a period after it returned, until ctx ends.
func runPeriodically(
	ctx context.Context, running *wait.Group, health *jobHealth, period time.Duration, check func(context.Context),
) {
	running.Start(func() {
		wait.UntilWithContext(ctx, func(ctx context.Context) {
			defer health.beginRound("a periodic round")()
			check(ctx)
		}, period)
	})
}

// keyQueue holds the keys of objects that are to be synced.
type keyQueue = workqueue.TypedRateLimitingInterface[string]

// newKeyQueue makes a queue whose keys that fail are tried again after least, then after twice as
// long each time up to most, give or take a fifth: what fails together does not come together.
func newKeyQueue(name string, least, most time.Duration) keyQueue {
	return workqueue.NewTypedRateLimitingQueueWithConfig(
		jitteredLimiter{workqueue.NewTypedItemExponentialFailureRateLimiter[string](least, most)},
		workqueue.TypedRateLimitingQueueConfig[string]{Name: name})
}

type jitteredLimiter struct {
	workqueue.TypedRateLimiter[string]
}

func (l jitteredLimiter) When(key string) time.Duration {
	return wait.Jitter(l.TypedRateLimiter.When(key)*9/10, 0.2)
}

// workersPerQueue are enough to remove a hundred Nodes within seconds, each of which
// costs a question to the cloud and a call to the API server.
const workersPerQueue = 5

// startWorkers has workers sync the queue's keys until it is shut down. A key is with one
// worker at a time.
func startWorkers(
	ctx context.Context,
	running *wait.Group,
	health *jobHealth,
	queue keyQueue,
	sync func(context.Context, string) error,
) {
	for range workersPerQueue {
		running.Start(func() {
			wait.UntilWithContext(ctx, func(ctx context.Context) {
				for syncNextKey(ctx, health, queue, sync) {
				}
			}, time.Second)
		})
	}
}

// syncNextKey waits for a key and syncs it. It is false when the queue is shut down.
func syncNextKey(
	ctx context.Context, health *jobHealth, queue keyQueue, sync func(context.Context, string) error,
) bool {
	key, shutdown := queue.Get()
	if shutdown {
		return false
	}
	defer queue.Done(key)
	defer health.beginRound("syncing " + key)()
	err := sync(ctx, key)
	var retry *cloudproviderapi.RetryError
	switch {
	case err == nil:
		queue.Forget(key)
	case errors.As(err, &retry):
		queue.Forget(key)
		queue.AddAfter(key, retry.RetryAfter())
	case ctx.Err() == nil:
		klog.ErrorS(err, "The cloud watch will try again", "key", key)
		queue.AddRateLimited(key)
	}
	return true
}

// addIndex has a shared informer index its objects, unless another job did so before.
func addIndex(informer cache.SharedIndexInformer, name string, index cache.IndexFunc) error {
	if _, exists := informer.GetIndexer().GetIndexers()[name]; exists {
		return nil
	}
	if err := informer.AddIndexers(cache.Indexers{name: index}); err != nil {
		return fmt.Errorf("indexing what %s looks up: %w", calls.CloudWatch, err)
	}
	return nil
}

// deletedUID is the UID of an object that an informer reports as deleted; false if it is
// no object.
func deletedUID(obj any) (types.UID, bool) {
	if last, ok := obj.(cache.DeletedFinalStateUnknown); ok {
		obj = last.Obj
	}
	object, err := meta.Accessor(obj)
	if err != nil {
		klog.ErrorS(err, "An informer told of the end of something that is no object")
		return "", false
	}
	return object.GetUID(), true
}
