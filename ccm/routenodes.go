package ccm

// Upstream's route controller sees the Nodes through an informer of ours, which shows it those that
// are this cloud's and resyncs often.

import (
	"context"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	cloudprovider "k8s.io/cloud-provider"
	"k8s.io/cloud-provider/app"
	cloudcontrollerconfig "k8s.io/cloud-provider/app/config"
	controllermanager "k8s.io/controller-manager/app"
	"k8s.io/controller-manager/controller"

	"github.com/ccmlab/ccmlab/ccm/core"
)

// routeResyncPeriod is upstream's --route-reconciliation-period by default.
const routeResyncPeriod = 10 * time.Second

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
		return func(ctx context.Context, manager controllermanager.ControllerContext) (controller.Interface, bool, error) {
			// This factory is never started: it only leads the controller to the shared informer.
			routed := *cfg.Config
			routed.SharedInformers = informers.NewSharedInformerFactory(nil, 0)
			routed.SharedInformers.InformerFor(&corev1.Node{},
				func(kubernetes.Interface, time.Duration) cache.SharedIndexInformer {
					return routedNodes{nodes, c.provider.Routes, ctx.Done()}
				})
			return construct(as, routed.Complete(), provider)(ctx, manager)
		}
	}
	return upstream
}

// routedNodes is the shared informer of Nodes, for the route controller alone. It leaves out the
// Nodes that routes ignore: upstream sets the condition NetworkUnavailable, and with it a
// taint, on every Node that it sees without a route.
type routedNodes struct {
	cache.SharedIndexInformer
	routes core.Routes
	stop   <-chan struct{}
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

// AddEventHandler is called by a route controller that reconciles only when a Node comes, goes or gets other ranges or
// addresses, and when its informer resyncs (KEP-5237). That is every half a day: a route that changes in the cloud
// would go unseen until then, and one that failed would be missing. So the handler is told every routeResyncPeriod of
// one unchanged Node, which it takes for the request to reconcile all routes. One for each Node would delay the others,
// as it limits the rate of such requests.
func (n routedNodes) AddEventHandler(
	handler cache.ResourceEventHandler,
) (cache.ResourceEventHandlerRegistration, error) {
	go wait.Until(func() {
		if all := n.SharedIndexInformer.GetIndexer().List(); len(all) > 0 {
			handler.OnUpdate(all[0], all[0])
		}
	}, routeResyncPeriod, n.stop)
	return n.SharedIndexInformer.AddEventHandler(handler)
}
