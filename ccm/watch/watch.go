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
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	kcache "k8s.io/client-go/tools/cache"
	cloudprovider "k8s.io/cloud-provider"
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
	"github.com/ccmlab/ccmlab/ccm/contract"
	"github.com/ccmlab/ccmlab/ccm/core"
	"github.com/ccmlab/ccmlab/ccm/guard"
	"github.com/ccmlab/ccmlab/ccm/ring"
	"github.com/ccmlab/ccmlab/fakecloud/api"
)

// AddControllers adds the cloud watch to upstream's controllers, by the names that --controllers takes, and its jobs to
// those that they help.
func AddControllers(all map[string]app.ControllerInitFuncConstructor) {
	for name, newJobs := range jobsBeside {
		all[name] = withJobs(all[name], newJobs)
	}
	all[calls.CloudWatch] = app.ControllerInitFuncConstructor{
		InitContext: app.ControllerInitContext{ClientName: calls.CloudWatch},
		Constructor: startCloudWatch,
	}
}

// newJobFunc makes a job of a watch, which uses that client of the cluster.
type newJobFunc func(*Watch, kubernetes.Interface) *watchJob

// jobsBeside are the jobs of the cloud watch, by the controller that they help.
var jobsBeside = map[string][]newJobFunc{
	names.CloudNodeController:          {newNodePrompter},
	names.CloudNodeLifecycleController: {newNodeRemover},
	names.ServiceLBController:          {newServiceWatch, newOrphanSweeper},
}

// withJobs wraps upstream's constructor of a controller: the jobs that help it start with it.
func withJobs(upstream app.ControllerInitFuncConstructor, newJobs []newJobFunc) app.ControllerInitFuncConstructor {
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
			for _, newJob := range newJobs {
				err = errors.Join(err, w.start(ctx, newJob(w, kube)))
			}
			return ctrl, true, err
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
	_ app.ControllerInitContext, _ *cloudcontrollerconfig.CompletedConfig, provider cloudprovider.Interface,
) app.InitFunc {
	return func(ctx context.Context, manager controllermanager.ControllerContext) (controller.Interface, bool, error) {
		w := watchOf(provider)
		if w == nil {
			klog.Warningf("%s is off: it needs the cache, and the cloud config says cache: false", calls.CloudWatch)
			return nil, false, nil
		}
		manager.ControllerManagerMetrics.ControllerStarted("cloud-watch")
		context.AfterFunc(ctx, func() { manager.ControllerManagerMetrics.ControllerStopped("cloud-watch") })
		return w, true, nil
	}
}

// Watch is the controller: it starts jobs, and knows whether each of them and the routes live. It is safe for
// concurrent use: with leader migration two goroutines start controllers.
type Watch struct {
	cluster  *core.Cluster
	events   ring.Events
	orphans  *guard.Budget // limits how many load balancers without a Service are deleted
	memory   Memory        // set by Follow
	provider core.Provider // set by Follow
	// nodes and services are shared with upstream's controllers; set by SetInformers.
	nodes, services kcache.SharedIndexInformer

	settings sync.Map // of api.LoadBalancer, by ID: see recordSettings
	reasons  sync.Map // of string, by the UID of a Node or Service: see reasonOf
	drifts   sync.Map // of *drift, by Service UID
	// locks has a lock for each Service, by UID: upstream's controller and ours call for the same balancers.
	locks  keymutex.KeyMutex
	health watchHealth
}

var _ controller.HealthCheckable = (*Watch)(nil)

// New makes a watch, which deletes no more load balancers without a Service than orphans allows. Call Follow before the
// controllers start.
func New(cluster *core.Cluster, events ring.Events, orphans *guard.Budget) *Watch {
	const locks = 4096 // So many that two of the Services that are reconciled at a time seldom share one.
	return &Watch{cluster: cluster, events: events, orphans: orphans, locks: keymutex.NewHashed(locks)}
}

// Note has changes of balancers through the cloud noted as our own.
func (w *Watch) Note(cloud core.Cloud) core.Cloud { return ownWrites{cloud, w} }

// Memory is the part of the cache that the jobs follow, and ask for the cluster's balancers.
type Memory interface {
	Subscribe(fn func(cache.Change))
	LoadBalancers() []api.LoadBalancer
	LoadBalancersOf(serviceUID string) []api.LoadBalancer
	// KnowsLoadBalancers tells whether LoadBalancersOf is complete, as far as the cloud has reported.
	KnowsLoadBalancers() bool
}

// Follow has the watch call the provider when the cache reports a change, and see what comes of others' calls.
func (w *Watch) Follow(p core.Provider, memory Memory) core.Provider {
	w.memory, w.provider = memory, ring.Wrap(p, w.observeCall)
	return w.provider
}

// observeCall makes a call, one at a time for each Service, and remembers how it ended.
func (w *Watch) observeCall(ctx context.Context, call ring.Call, next func(context.Context) error) error {
	if call.Object == nil {
		defer w.health.beginRound("the route controller", call.Method)()
		return next(ctx)
	}
	_, isService := call.Object.(*corev1.Service)
	if isService && call.Method != "GetLoadBalancer" {
		uid := string(call.Object.GetUID())
		w.locks.LockKey(uid)
		defer func() { _ = w.locks.UnlockKey(uid) }() // It never fails.
	}
	degraded := ""
	err := next(core.WithNotices(ctx, func(n core.Notice) {
		if n.Reason == contract.ReasonLoadBalancerDegraded {
			degraded = n.Reason
		}
	}))
	switch call.Method {
	case "InstanceMetadata", "EnsureLoadBalancer", "EnsureLoadBalancerDeleted":
		w.recordOutcome(call.Object.GetUID(), err, degraded)
	case "GetLoadBalancer": // Upstream calls it before it deletes.
		if err != nil {
			w.recordOutcome(call.Object.GetUID(), err, "")
		}
	}
	return err
}

// SetInformers is called once, before the informers and the jobs start. What is remembered of a Node or a Service is
// forgotten with it.
func (w *Watch) SetInformers(shared informers.SharedInformerFactory) {
	w.nodes, w.services = shared.Core().V1().Nodes().Informer(), shared.Core().V1().Services().Informer()
	err := errors.Join(
		w.nodes.AddIndexers(kcache.Indexers{byProviderID: indexByProviderID}),
		w.services.AddIndexers(kcache.Indexers{byUID: indexByUID}),
	)
	if err != nil { // Another index has that name.
		klog.ErrorS(err, "The cloud watch cannot look up Nodes by provider ID or Services by UID")
	}
	ring.OnDeletion(shared, func(uid types.UID) {
		w.reasons.Delete(uid)
		w.drifts.Delete(uid)
	})
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

// start has a job follow the cluster and the cloud, and runs it until ctx ends.
func (w *Watch) start(ctx context.Context, job *watchJob) error {
	nodes, nodesErr := w.nodes.AddEventHandler(job.onNode)
	services, servicesErr := w.services.AddEventHandler(job.onService)
	if err := errors.Join(nodesErr, servicesErr); err != nil {
		return fmt.Errorf("%s: following the cluster for %s: %w", calls.CloudWatch, job.name, err)
	}
	w.memory.Subscribe(job.onChange)
	go job.run(calls.For(ctx, calls.CloudWatch), &w.health, nodes.HasSynced, services.HasSynced)
	return nil
}
