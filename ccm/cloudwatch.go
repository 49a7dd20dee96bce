package ccm

// The cloud watch is a controller beside upstream's four. Upstream looks at the cloud
// when something changes in the cluster or when a retry is due; the cloud watch looks at
// the cluster when something changes in the cloud. Its jobs are in nodewatch.go,
// servicewatch.go and orphansweeper.go. The first two subscribe to the cache's feed
// of changes. A change, in the cloud or in the cluster, only puts a key into a queue; the
// workers observe both sides, compare and act.
//
// Each job helps one of upstream's controllers and is started with it. It does not run where
// --controllers switches that controller off, nor, with leader migration, before this process
// holds the lease of that controller: another process does that work then.

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	kcache "k8s.io/client-go/tools/cache"
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

	"github.com/ccmlab/ccmlab/ccm/cache"
	"github.com/ccmlab/ccmlab/ccm/calls"
	"github.com/ccmlab/ccmlab/ccm/contract"
)

// controllerConstructors are those of upstream's controllers, with the jobs of the cloud watch that
// help each, and of the cloud watch, by the names that --controllers takes.
func controllerConstructors() map[string]app.ControllerInitFuncConstructor {
	all := maps.Clone(app.DefaultInitFuncConstructors)
	all[names.NodeRouteController] = withRoutedNodes(all[names.NodeRouteController])
	for name, duty := range watchDuties {
		all[name] = withWatchJobs(all[name], duty)
	}
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

// watchDuty is what the cloud watch does beside one of upstream's controllers.
type watchDuty struct {
	what string
	// newJobs makes the jobs. Each has subscribed to what it follows when it is returned.
	newJobs func(*cloud, kubernetes.Interface, informers.SharedInformerFactory) ([]watchJob, error)
}

// watchDuties are those of the cloud watch, by the controller that they help.
var watchDuties = map[string]watchDuty{
	names.CloudNodeController: {
		"prompting Nodes whose instance came late, and Events about Nodes that nobody initializes",
		newNodePrompter,
	},
	names.CloudNodeLifecycleController: {
		"removing Nodes whose instance has ended, and Events about stopped ones", newNodeRemover,
	},
	names.ServiceLBController: {
		"repairing load balancers, retrying their addresses, and deleting orphans", newBalancerJobs,
	},
}

func newBalancerJobs(
	c *cloud, kube kubernetes.Interface, shared informers.SharedInformerFactory,
) ([]watchJob, error) {
	services, servicesErr := newServiceWatch(c, kube, shared)
	orphans, orphansErr := newOrphanSweeper(c, kube, shared)
	return []watchJob{services, orphans}, errors.Join(servicesErr, orphansErr)
}

// withWatchJobs wraps upstream's constructor of a controller: the jobs that help it start with it.
func withWatchJobs(upstream app.ControllerInitFuncConstructor, duty watchDuty) app.ControllerInitFuncConstructor {
	construct := upstream.Constructor
	upstream.Constructor = func(
		as app.ControllerInitContext, cfg *cloudcontrollerconfig.CompletedConfig, provider cloudprovider.Interface,
	) app.InitFunc {
		start := construct(as, cfg, provider)
		return func(ctx context.Context, manager controllermanager.ControllerContext) (controller.Interface, bool, error) {
			ctrl, started, err := start(ctx, manager)
			c, ok := provider.(*cloud)
			if err != nil || !started || !ok || c.memory == nil || !isEnabled(calls.CloudWatch, cfg) {
				return ctrl, started, err
			}
			kube := cfg.ClientBuilder.ClientOrDie(calls.CloudWatch)
			return ctrl, true, c.watch.start(ctx, func() ([]watchJob, error) {
				return duty.newJobs(c, kube, cfg.SharedInformers)
			})
		}
	}
	return upstream
}

// isEnabled tells whether --controllers enables a controller, as upstream's start does. Aliases are
// replaced by then.
func isEnabled(name string, cfg *cloudcontrollerconfig.CompletedConfig) bool {
	return controllermanager.IsControllerEnabled(
		name, app.ControllersDisabledByDefault, cfg.ComponentConfig.Generic.Controllers)
}

// startCloudWatch starts the controller that reports the health of the cloud watch's jobs, unless the
// cache is off. The jobs are started with the controllers that they help.
func startCloudWatch(
	_ app.ControllerInitContext,
	cfg *cloudcontrollerconfig.CompletedConfig,
	provider cloudprovider.Interface,
) app.InitFunc {
	return func(ctx context.Context, manager controllermanager.ControllerContext) (controller.Interface, bool, error) {
		c, ok := provider.(*cloud)
		if !ok {
			return nil, false, fmt.Errorf("%s watches %s only, not %s",
				calls.CloudWatch, contract.ProviderName, provider.ProviderName())
		}
		if c.memory == nil {
			klog.Warningf("%s is off: it needs the cache, and the cloud config says cache: false", calls.CloudWatch)
			return nil, false, nil
		}
		logDutiesThatAreOff(cfg)
		c.watch.health.add(c.memoryHealth, c.routes.health)
		go func() {
			manager.ControllerManagerMetrics.ControllerStarted("cloud-watch")
			defer manager.ControllerManagerMetrics.ControllerStopped("cloud-watch")
			<-ctx.Done()
		}()
		return &c.watch, true, nil
	}
}

// logDutiesThatAreOff logs the disabled parts of the cloud watch, once.
func logDutiesThatAreOff(cfg *cloudcontrollerconfig.CompletedConfig) {
	for _, name := range slices.Sorted(maps.Keys(watchDuties)) {
		if !isEnabled(name, cfg) {
			klog.InfoS("Part of the cloud watch is off: --controllers disables the controller that it helps",
				"controller", name, "duty", watchDuties[name].what)
		}
	}
}

// watchJob is one job of the cloud watch. Each works without the others.
type watchJob interface {
	// Name is what logs and /healthz call it.
	Name() string
	// Run works until ctx ends. What it starts has ended when it returns. It reports its
	// rounds to health.
	Run(ctx context.Context, health *jobHealth)
}

// cloudWatch is the controller: it starts jobs, and knows whether each of them, the cache and
// the routes live. Safe for concurrent use: with leader migration two goroutines start controllers.
type cloudWatch struct {
	starting sync.Mutex
	health   watchHealth
}

var _ controller.HealthCheckable = (*cloudWatch)(nil)

// Name is the one that --controllers takes.
func (w *cloudWatch) Name() string { return calls.CloudWatch }

// HealthChecker is part of /healthz, under the controller's name.
func (w *cloudWatch) HealthChecker() healthz.UnnamedHealthChecker { return &w.health }

// start makes jobs and runs them beside each other until ctx ends. Jobs are made one after the
// other, as they share the indexes of the informers.
func (w *cloudWatch) start(ctx context.Context, newJobs func() ([]watchJob, error)) error {
	w.starting.Lock()
	defer w.starting.Unlock()
	jobs, err := newJobs()
	if err != nil {
		return err
	}
	for _, job := range jobs {
		health := newJobHealth(job.Name())
		w.health.add(health)
		go func() {
			defer health.end()
			job.Run(calls.For(ctx, calls.CloudWatch), health)
		}()
	}
	return nil
}

// changeFeed is the part of the cache that reports what changes in the cloud.
type changeFeed interface {
	Subscribe(fn func(cache.Change))
}

// awaitSync waits until the informers have synced. It returns false if ctx ends earlier.
func awaitSync(ctx context.Context, health *jobHealth, synced ...kcache.InformerSynced) bool {
	defer health.beginRound("waiting for the informers to sync")()
	return kcache.WaitForCacheSync(ctx.Done(), synced...)
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

// newKeyQueue makes a queue that retries failed keys after least, then after twice as long each time up
// to most. A jitter of a fifth spreads keys that fail together.
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

// workersPerQueue are enough to remove a hundred Nodes within seconds, each of which costs one call
// to the cloud and one to the API server.
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
		klog.ErrorS(err, "The cloud watch will retry", "key", key)
		queue.AddRateLimited(key)
	}
	return true
}

// addIndex adds an index to a shared informer, unless another job did so before.
func addIndex(informer kcache.SharedIndexInformer, name string, index kcache.IndexFunc) error {
	if _, exists := informer.GetIndexer().GetIndexers()[name]; exists {
		return nil
	}
	if err := informer.AddIndexers(kcache.Indexers{name: index}); err != nil {
		return fmt.Errorf("indexing what %s looks up: %w", calls.CloudWatch, err)
	}
	return nil
}

// deletedUID is the UID of an object that an informer reports as deleted; false for another type.
func deletedUID(obj any) (types.UID, bool) {
	if last, ok := obj.(kcache.DeletedFinalStateUnknown); ok {
		obj = last.Obj
	}
	object, err := meta.Accessor(obj)
	if err != nil {
		klog.ErrorS(err, "Informer reported the deletion of an unexpected type")
		return "", false
	}
	return object.GetUID(), true
}
