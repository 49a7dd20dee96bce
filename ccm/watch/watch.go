// Package watch is a controller beside upstream's four, the cloud watch. Upstream looks at the cloud when something
// changes in the cluster or when a retry is due; the cloud watch looks at the cluster when something changes in the
// cloud. Its jobs are in nodes.go, services.go and orphans.go. The first two subscribe to the cache's feed of changes.
// A change, in the cloud or in the cluster, only puts a key into a queue; the workers observe both sides, compare, and
// call the same provider as upstream's controllers.
//
// Each job helps one of upstream's controllers and is started with it. It does not run where --controllers switches
// that controller off, nor, with leader migration, before this process holds the lease of that controller: another
// process does that work then.
//
// Begin with Watch.
package watch

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
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
	"k8s.io/utils/keymutex"

	"github.com/ccmlab/ccmlab/ccm/cache"
	"github.com/ccmlab/ccmlab/ccm/calls"
	"github.com/ccmlab/ccmlab/ccm/core"
)

// AddControllers adds the cloud watch to upstream's controllers, by the names that --controllers takes, and its jobs to
// those that they help.
func AddControllers(all map[string]app.ControllerInitFuncConstructor) {
	for name, duty := range watchDuties {
		all[name] = withWatchJobs(all[name], duty)
	}
	all[calls.CloudWatch] = app.ControllerInitFuncConstructor{
		InitContext: app.ControllerInitContext{ClientName: calls.CloudWatch},
		Constructor: startCloudWatch,
	}
}

// watchDuty is what the cloud watch does beside one of upstream's controllers.
type watchDuty struct {
	what string
	// newJobs makes the jobs. Each has subscribed to what it follows when it is returned.
	newJobs func(*Watch, kubernetes.Interface, informers.SharedInformerFactory) ([]watchJob, error)
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
	w *Watch, kube kubernetes.Interface, shared informers.SharedInformerFactory,
) ([]watchJob, error) {
	services, servicesErr := newServiceWatch(w, kube, shared)
	orphans, orphansErr := newOrphanSweeper(w, kube, shared)
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
			w := watchOf(provider)
			if err != nil || !started || w == nil || !isEnabled(calls.CloudWatch, cfg) {
				return ctrl, started, err
			}
			kube := cfg.ClientBuilder.ClientOrDie(calls.CloudWatch)
			return ctrl, true, w.start(ctx, func() ([]watchJob, error) {
				return duty.newJobs(w, kube, cfg.SharedInformers)
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
		w := watchOf(provider)
		if w == nil {
			klog.Warningf("%s is off: it needs the cache, and the cloud config says cache: false", calls.CloudWatch)
			return nil, false, nil
		}
		logDutiesThatAreOff(cfg)
		w.health.add(w.memoryHealth, w.routeHealth)
		go func() {
			manager.ControllerManagerMetrics.ControllerStarted("cloud-watch")
			defer manager.ControllerManagerMetrics.ControllerStopped("cloud-watch")
			<-ctx.Done()
		}()
		return w, true, nil
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

// lockCount is so large that two of the Services that are reconciled at a time seldom share a lock.
const lockCount = 4096

// Options are what the watch follows and uses.
type Options struct {
	Cluster *core.Cluster
	Events  core.Events
	// Orphans limits how many load balancers without a Service are deleted; nil for no limit.
	Orphans Budget
}

// Watch is the controller: it starts jobs, and knows whether each of them, the cache and the routes live. It is safe
// for concurrent use: with leader migration two goroutines start controllers.
type Watch struct {
	opts     Options
	memory   *cache.Cloud  // set by Follow
	provider core.Provider // set by Follow
	settings *balancerSettings
	outcomes *outcomes
	// locks has a lock for each Service, by UID: upstream's controller and ours call for the same balancers. Few
	// Services share one.
	locks keymutex.KeyMutex

	starting                  sync.Mutex
	health                    watchHealth
	memoryHealth, routeHealth *jobHealth
}

var _ controller.HealthCheckable = (*Watch)(nil)

// New makes a watch. Call Follow before the controllers start, and Run when the process leads.
func New(o Options) *Watch {
	if o.Orphans == nil {
		o.Orphans = unlimited{}
	}
	return &Watch{
		opts:         o,
		settings:     &balancerSettings{byID: map[string]fingerprint{}},
		locks:        keymutex.NewHashed(lockCount),
		outcomes:     &outcomes{byUID: map[types.UID]outcome{}},
		memoryHealth: newJobHealth("the cache"),
		routeHealth:  newJobHealth("the route controller"),
	}
}

// Source has the cache's rounds over the cloud's events be part of the watch's health.
func (w *Watch) Source(cloud cache.Source) cache.Source { return eventRounds{cloud, w.memoryHealth} }

// Note has changes of balancers through the cloud noted as our own.
func (w *Watch) Note(cloud core.Cloud) core.Cloud { return ownWrites{cloud, w.settings} }

// Follow has the watch call the provider when the cache reports a change, and see what comes of others' calls.
func (w *Watch) Follow(p core.Provider, memory *cache.Cloud) core.Provider {
	w.memory, w.provider = memory, core.Wrap(p, w.observeCall)
	return w.provider
}

// observeCall makes a call, one at a time for each Service, and remembers how it ended.
func (w *Watch) observeCall(ctx context.Context, call core.Call, next func(context.Context) error) error {
	if call.Object == nil {
		defer w.routeHealth.beginRound(call.Method)()
		return next(ctx)
	}
	_, isService := call.Object.(*corev1.Service)
	if isService && call.Method != "GetLoadBalancer" {
		uid := string(call.Object.GetUID())
		w.locks.LockKey(uid)
		defer func() { _ = w.locks.UnlockKey(uid) }() // It never fails.
	}
	var notices []core.Notice
	err := next(core.WithNotices(ctx, func(n core.Notice) { notices = append(notices, n) }))
	switch call.Method {
	case "InstanceMetadata", "EnsureLoadBalancer", "EnsureLoadBalancerDeleted":
		w.outcomes.record(call.Object.GetUID(), err, notices)
	case "GetLoadBalancer": // Upstream calls it before it deletes.
		if err != nil {
			w.outcomes.record(call.Object.GetUID(), err, notices)
		}
	}
	return err
}

// SetInformers has what is remembered of a Node or a Service forgotten with it.
func (w *Watch) SetInformers(shared informers.SharedInformerFactory) {
	core.OnDeletion(shared, w.outcomes.forget)
}

// Run has the cache follow the cloud until ctx ends.
func (w *Watch) Run(ctx context.Context) {
	defer w.memoryHealth.end()
	w.memory.Run(calls.For(ctx, calls.Inventory))
}

// watchOf is the watch of a cloud provider; nil if it has none.
func watchOf(provider cloudprovider.Interface) *Watch {
	if p, ok := provider.(interface{ CloudWatch() *Watch }); ok {
		return p.CloudWatch()
	}
	return nil
}

// Name is the one that --controllers takes.
func (w *Watch) Name() string { return calls.CloudWatch }

// HealthChecker is part of /healthz, under the controller's name.
func (w *Watch) HealthChecker() healthz.UnnamedHealthChecker { return &w.health }

// start makes jobs and runs them beside each other until ctx ends. Jobs are made one after the
// other, as they share the indexes of the informers.
func (w *Watch) start(ctx context.Context, newJobs func() ([]watchJob, error)) error {
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
