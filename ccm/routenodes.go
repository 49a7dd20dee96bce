package ccm

// Upstream's route controller sees the Nodes through an informer of ours, which shows it those that
// are this cloud's and resyncs often.

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	cloudprovider "k8s.io/cloud-provider"
	"k8s.io/cloud-provider/app"
	cloudcontrollerconfig "k8s.io/cloud-provider/app/config"
	"k8s.io/controller-manager/pkg/features"

	"github.com/ccmlab/ccmlab/ccm/core"
)

// routeResyncPeriod is upstream's --route-reconciliation-period by default.
const routeResyncPeriod = 10 * time.Second

// isRouteWatchOn tells whether the route controller reconciles only when a Node comes, goes or gets
// other ranges or addresses, and when its informer resyncs (KEP-5237). That is every half a day: a
// route that changes in the cloud would go unseen until then, and one that failed would be missing.
func isRouteWatchOn() bool {
	return utilfeature.DefaultFeatureGate.Enabled(features.CloudControllerManagerWatchBasedRoutesReconciliation)
}

// withRoutedNodes is upstream's constructor of the route controller, with routedNodes as its
// informer.
func withRoutedNodes(upstream app.ControllerInitFuncConstructor) app.ControllerInitFuncConstructor {
	construct := upstream.Constructor
	upstream.Constructor = func(
		as app.ControllerInitContext, cfg *cloudcontrollerconfig.CompletedConfig, provider cloudprovider.Interface,
	) app.InitFunc {
		c, ok := provider.(*cloud)
		if !ok {
			return construct(as, cfg, provider)
		}
		nodes := cfg.SharedInformers.Core().V1().Nodes().Informer()
		// This factory is never started: it only leads the controller to the shared informer.
		routed := *cfg.Config
		routed.SharedInformers = informers.NewSharedInformerFactory(nil, 0)
		routed.SharedInformers.InformerFor(&corev1.Node{},
			func(kubernetes.Interface, time.Duration) cache.SharedIndexInformer {
				return routedNodes{nodes, c.provider.Routes}
			})
		return construct(as, routed.Complete(), provider)
	}
	return upstream
}

// routedNodes is the shared informer of Nodes, for the route controller alone. It leaves out the
// Nodes that routes ignore: upstream sets the condition NetworkUnavailable, and with it a
// taint, on every Node that it sees without a route.
type routedNodes struct {
	cache.SharedIndexInformer
	routes core.Routes
}

// GetIndexer is what the controller lists Nodes from. It looks up none by an index.
func (n routedNodes) GetIndexer() cache.Indexer {
	return routedNodeIndexer{n.SharedIndexInformer.GetIndexer(), n.routes}
}

type routedNodeIndexer struct {
	cache.Indexer
	routes core.Routes
}

// List returns the Nodes that are not ignored.
func (i routedNodeIndexer) List() []any {
	return slices.DeleteFunc(i.Indexer.List(), func(obj any) bool {
		node, ok := obj.(*corev1.Node)
		return ok && i.routes.IgnoresNode(node)
	})
}

// requestRouteResync has the informer of Nodes check for resyncs as often as the route controller
// needs them. It is called before the informer starts; with leader migration the controller may
// start later.
func requestRouteResync(nodes cache.SharedIndexInformer) error {
	if !isRouteWatchOn() {
		return nil
	}
	_, err := nodes.AddEventHandlerWithResyncPeriod(cache.ResourceEventHandlerFuncs{}, routeResyncPeriod)
	return err
}

// AddEventHandler has the informer resync the handler if the controller needs that.
func (n routedNodes) AddEventHandler(
	handler cache.ResourceEventHandler,
) (cache.ResourceEventHandlerRegistration, error) {
	if !isRouteWatchOn() {
		return n.SharedIndexInformer.AddEventHandler(handler)
	}
	return n.AddEventHandlerWithResyncPeriod(&oncePerResync{ResourceEventHandler: handler}, routeResyncPeriod)
}

// oncePerResync tells a handler of one unchanged Node at each resync. The route controller takes it
// for the request to reconcile all routes, and limits the rate of such requests: one for each Node
// would delay the others.
type oncePerResync struct {
	cache.ResourceEventHandler
	lastResync time.Time
}

func (o *oncePerResync) OnUpdate(old, obj any) {
	if old == obj {
		if time.Since(o.lastResync) < routeResyncPeriod/2 {
			return
		}
		o.lastResync = time.Now()
	}
	o.ResourceEventHandler.OnUpdate(old, obj)
}
