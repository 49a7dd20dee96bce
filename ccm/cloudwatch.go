package ccm

// The cloud watch: a controller beside upstream's four that follows what the
// inventory learns of the cloud. Upstream looks at the cloud when something
// changes in the cluster, or when its retry is due; this one looks at the
// cluster when something changes in the cloud. Whoever tells it of a change,
// the cloud or the API server, only puts a key into a queue; the workers
// observe both sides, compare and act. What they do: cloudwatch_nodes.go,
// cloudwatch_services.go, cloudwatch_waiting.go and cloudwatch_orphans.go.

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/flowcontrol"
	"k8s.io/client-go/util/workqueue"
	cloudprovider "k8s.io/cloud-provider"
	cloudproviderapi "k8s.io/cloud-provider/api"
	"k8s.io/cloud-provider/app"
	cloudcontrollerconfig "k8s.io/cloud-provider/app/config"
	"k8s.io/cloud-provider/names"
	controllermanager "k8s.io/controller-manager/app"
	"k8s.io/controller-manager/controller"
	"k8s.io/klog/v2"

	"github.com/ccmlab/ccmlab/ccm/calls"
	"github.com/ccmlab/ccmlab/ccm/contract"
	"github.com/ccmlab/ccmlab/ccm/inventory"
	"github.com/ccmlab/ccmlab/fakecloud/api"
)

// watchWorkers are enough to remove a hundred Nodes within seconds, each of
// which costs a question to the cloud and a call to the API server.
const watchWorkers = 5

// controllers are upstream's and ours, by the names that --controllers takes.
func controllers() map[string]app.ControllerInitFuncConstructor {
	all := maps.Clone(app.DefaultInitFuncConstructors)
	all[calls.CloudWatch] = app.ControllerInitFuncConstructor{
		InitContext: app.ControllerInitContext{ClientName: calls.CloudWatch},
		Constructor: startCloudWatch,
	}
	return all
}

func controllerAliases() map[string]string {
	aliases := names.CCMControllerAliases()
	aliases["cloud-watch"] = calls.CloudWatch
	return aliases
}

func startCloudWatch(as app.ControllerInitContext, cfg *cloudcontrollerconfig.CompletedConfig, provider cloudprovider.Interface) app.InitFunc {
	return func(ctx context.Context, manager controllermanager.ControllerContext) (controller.Interface, bool, error) {
		c, ok := provider.(*cloud)
		if !ok {
			return nil, false, fmt.Errorf("%s watches %s only, not %s", calls.CloudWatch, contract.ProviderName, provider.ProviderName())
		}
		if !c.cached {
			klog.Warningf("%s is off: it lives on what is remembered of the cloud, and the configuration says cache: false", calls.CloudWatch)
			return nil, false, nil
		}
		w, err := newCloudWatch(c, cfg.ClientBuilder.ClientOrDie(as.ClientName), cfg.SharedInformers)
		if err != nil {
			return nil, false, err
		}
		c.watch.Store(w)
		go func() {
			manager.ControllerManagerMetrics.ControllerStarted("cloud-watch")
			defer manager.ControllerManagerMetrics.ControllerStopped("cloud-watch")
			w.Run(ctx, watchWorkers)
		}()
		return nil, true, nil
	}
}

// clusterUID is what tells this cluster from all others, whatever they are
// called: the UID of its namespace kube-system. It is "" where that cannot be
// read; then nothing is deleted on the ground that it is this cluster's.
func clusterUID(ctx context.Context, kube kubernetes.Interface) string {
	var uid types.UID
	err := wait.PollUntilContextTimeout(ctx, 500*time.Millisecond, 10*time.Second, true, func(ctx context.Context) (bool, error) {
		ns, err := kube.CoreV1().Namespaces().Get(ctx, metav1.NamespaceSystem, metav1.GetOptions{})
		switch {
		case err == nil:
			uid = ns.UID
			return true, nil
		case apierrors.IsForbidden(err), apierrors.IsUnauthorized(err):
			return false, err
		default:
			klog.V(2).InfoS("Asking again for namespace kube-system", "err", err)
			return false, nil
		}
	})
	if err != nil {
		klog.ErrorS(err, "This cluster's UID is not known: balancers without a Service are left alone. It takes the permission to get namespace kube-system")
	}
	return string(uid)
}

// knownCloud is the inventory.
type knownCloud interface {
	Instance(ctx context.Context, id string) (*api.Instance, error)
	LoadBalancersOf(serviceUID string) []api.LoadBalancer
	LoadBalancers() []api.LoadBalancer
}

// balancerReconciler is what upstream's service controller calls too; it has
// one lock per Service.
type balancerReconciler interface {
	EnsureLoadBalancer(ctx context.Context, cluster string, svc *corev1.Service, nodes []*corev1.Node) (*corev1.LoadBalancerStatus, error)
	EnsureLoadBalancerDeleted(ctx context.Context, cluster string, svc *corev1.Service) error
}

// cloudWatch is safe for concurrent use; each key is worked on by one worker
// at a time.
type cloudWatch struct {
	cluster    string // --cluster-name
	clusterUID string
	kube       kubernetes.Interface
	known      knownCloud
	balancers  balancerReconciler
	explain    *explainer
	// gone is the definite verdict on a Node's instance. An error is none.
	gone func(ctx context.Context, node *corev1.Node) (bool, error)
	// found is the instance that initialisation would find, nil if it would fail
	// again.
	found func(ctx context.Context, node *corev1.Node) (*api.Instance, error)
	// wish is what a Service wants; an error is that it cannot be.
	wish func(svc *corev1.Service, nodes []*corev1.Node) (balancerSpec, error)
	// ensured is the wish that upstream's controller last saw fulfilled, and the ID of
	// the balancer; nil if none is known.
	ensured func(serviceUID string) (wish *balancerSpec, id string)

	nodes, services         cache.Indexer
	synced                  []cache.InformerSynced
	nodeQueue, serviceQueue workqueue.TypedRateLimitingInterface[string] // by name; by UID
	looks                   int                                          // at waiting Nodes

	deletions                *rate.Limiter        // of orphans
	undeletable              *flowcontrol.Backoff // orphans, by ID
	orphanAge, orphansPeriod time.Duration
	addressTries             *flowcontrol.Backoff // for Services that wait, by UID

	mu       sync.Mutex
	prompted map[types.UID]prompted
	seen     map[string]*seenBalancer // by Service UID
	told     map[string]bool          // by Service UID: the cloud told of its balancer since that was last seen; false if of all
	orphaned map[string]time.Time     // by balancer ID: since when
	doubtful map[string]bool          // by balancer ID: those logged
}

// Indexes of the informers that are shared with upstream.
const (
	byProviderID = "fakecloud-provider-id"
	byUID        = "fakecloud-uid"
)

func newCloudWatch(c *cloud, kube kubernetes.Interface, shared informers.SharedInformerFactory) (*cloudWatch, error) {
	w := watchOf(kube)
	w.cluster, w.clusterUID = c.cluster, c.loadBalancers.clusterUID
	w.known, w.balancers, w.explain = c.inventory, c.loadBalancers, c.explain
	w.wish = func(svc *corev1.Service, nodes []*corev1.Node) (balancerSpec, error) {
		return c.loadBalancers.desiredSpec(w.cluster, svc, nodes)
	}
	w.ensured = c.loadBalancers.lastEnsured
	w.found = c.instances.remembered
	w.gone = c.instances.gone
	return w, w.follow(shared)
}

// watchOf has the defaults; what the watch looks at comes with it later.
func watchOf(kube kubernetes.Interface) *cloudWatch {
	queue := func(name string) workqueue.TypedRateLimitingInterface[string] {
		return workqueue.NewTypedRateLimitingQueueWithConfig(
			workqueue.NewTypedItemExponentialFailureRateLimiter[string](500*time.Millisecond, 30*time.Second),
			workqueue.TypedRateLimitingQueueConfig[string]{Name: name})
	}
	return &cloudWatch{
		kube:          kube,
		nodeQueue:     queue("cloud_watch_nodes"),
		serviceQueue:  queue("cloud_watch_services"),
		deletions:     rate.NewLimiter(rate.Every(12*time.Second), 5),
		undeletable:   flowcontrol.NewBackOff(30*time.Second, 30*time.Minute),
		addressTries:  flowcontrol.NewBackOff(addressPause, addressPause),
		orphanAge:     30 * time.Second,
		orphansPeriod: 30 * time.Second,
		prompted:      map[types.UID]prompted{},
		seen:          map[string]*seenBalancer{},
		told:          map[string]bool{},
		orphaned:      map[string]time.Time{},
		doubtful:      map[string]bool{},
	}
}

// follow has the queues filled by what happens in the cluster.
func (w *cloudWatch) follow(shared informers.SharedInformerFactory) error {
	nodes, services := shared.Core().V1().Nodes().Informer(), shared.Core().V1().Services().Informer()
	w.nodes, w.services = nodes.GetIndexer(), services.GetIndexer()
	if err := errors.Join(nodes.AddIndexers(nodeIndexers), services.AddIndexers(serviceIndexers)); err != nil {
		return fmt.Errorf("indexing what %s looks up: %w", calls.CloudWatch, err)
	}
	onNodes, err := nodes.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(obj any) { w.enqueueNode(obj) },
		UpdateFunc: func(old, obj any) { w.nodeChanged(old, obj) },
		DeleteFunc: func(obj any) { w.objectGone(obj) },
	})
	if err != nil {
		return fmt.Errorf("%s: following Nodes: %w", calls.CloudWatch, err)
	}
	onServices, err := services.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(obj any) { w.enqueueService(obj) },
		UpdateFunc: func(_, obj any) { w.enqueueService(obj) },
		DeleteFunc: func(obj any) { w.objectGone(obj) },
	})
	if err != nil {
		return fmt.Errorf("%s: following Services: %w", calls.CloudWatch, err)
	}
	w.synced = []cache.InformerSynced{onNodes.HasSynced, onServices.HasSynced}
	return nil
}

var nodeIndexers = cache.Indexers{byProviderID: func(obj any) ([]string, error) {
	if node, ok := obj.(*corev1.Node); ok && node.Spec.ProviderID != "" {
		return []string{node.Spec.ProviderID}, nil
	}
	return nil, nil
}}

var serviceIndexers = cache.Indexers{byUID: func(obj any) ([]string, error) {
	if svc, ok := obj.(*corev1.Service); ok {
		return []string{string(svc.UID)}, nil
	}
	return nil, nil
}}

// Run works until ctx ends. What it starts has ended when it returns. All that
// is periodic here is for what no event told: the stream was broken, the event
// came before its object, or another's retry is far away.
func (w *cloudWatch) Run(ctx context.Context, workers int) {
	ctx = calls.For(ctx, calls.CloudWatch)
	var running wait.Group
	defer running.Wait()
	defer w.nodeQueue.ShutDown()
	defer w.serviceQueue.ShutDown()
	if !cache.WaitForCacheSync(ctx.Done(), w.synced...) {
		return
	}
	periodically := func(period time.Duration, check func(context.Context)) {
		running.Start(func() { wait.UntilWithContext(ctx, check, period) })
	}
	for range workers {
		periodically(time.Second, func(ctx context.Context) { work(ctx, w.nodeQueue, w.syncNode) })
		periodically(time.Second, func(ctx context.Context) { work(ctx, w.serviceQueue, w.syncService) })
	}
	periodically(waitingPeriod, w.checkWaiting)
	periodically(addressPeriod, w.checkAddresses)
	periodically(time.Minute, func(context.Context) { w.enqueueNodes() })
	periodically(3*time.Minute, func(context.Context) { w.enqueueServices() })
	periodically(w.orphansPeriod, w.checkOrphans)
	<-ctx.Done()
}

// work ends when the queue is shut down.
func work(ctx context.Context, queue workqueue.TypedRateLimitingInterface[string], sync func(context.Context, string) error) {
	for {
		key, quit := queue.Get()
		if quit {
			return
		}
		workOn(ctx, key, queue, sync)
	}
}

func workOn(ctx context.Context, key string, queue workqueue.TypedRateLimitingInterface[string], sync func(context.Context, string) error) {
	defer queue.Done(key)
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
}

// observe is told by the inventory, and must not block.
func (w *cloudWatch) observe(c inventory.Change) {
	switch {
	case c.Instance != nil:
		w.enqueueNodesOf(c.Instance)
	case c.LoadBalancer != nil && c.LoadBalancer.Tags[contract.TagServiceUID] == "":
		// Somebody took its tags: it does not tell any more whose it was.
		w.toldOfAll()
		w.enqueueServices()
	case c.LoadBalancer != nil:
		uid := c.LoadBalancer.Tags[contract.TagServiceUID]
		w.toldOf(uid)
		w.serviceQueue.Add(uid)
		if c.Kind != inventory.Deleted && c.LoadBalancer.State != api.LoadBalancerDeleting && w.serviceOf(uid) == nil {
			// Somebody gave it the UID of no Service: the same.
			w.toldOfAll()
			w.enqueueServices()
		}
	case c.Kind == inventory.Relisted:
		// Everything was listed anew, so the cloud is well again.
		w.promptAnew()
		w.toldOfAll()
		w.enqueueNodes()
		w.enqueueServices()
	}
}

// objectGone drops what is remembered of a Node or Service.
func (w *cloudWatch) objectGone(obj any) {
	if last, ok := obj.(cache.DeletedFinalStateUnknown); ok {
		obj = last.Obj
	}
	object, err := meta.Accessor(obj)
	if err != nil {
		klog.ErrorS(err, "An informer told of the end of something that is no object")
		return
	}
	uid := object.GetUID()
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.prompted, uid)
	delete(w.seen, string(uid))
	delete(w.told, string(uid))
}
