package ccm

import (
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
)

// routeResyncPeriod is upstream's --route-reconciliation-period by default.
const routeResyncPeriod = 10 * time.Second

// withRouteResync is upstream's constructor of the route controller, whose informer resyncs every
// ten seconds.
//
// Without the feature gate CloudControllerManagerWatchBasedRoutesReconciliation (KEP-5237) the
// controller reconciles all routes that often. With it, it does so only when a Node comes, goes or
// gets other ranges or addresses, and when its informer resyncs, which takes half a day: a route
// that changes in the cloud would go unseen until then, and one that failed would be missing.
func withRouteResync(upstream app.ControllerInitFuncConstructor) app.ControllerInitFuncConstructor {
	construct := upstream.Constructor
	upstream.Constructor = func(
		as app.ControllerInitContext, cfg *cloudcontrollerconfig.CompletedConfig, provider cloudprovider.Interface,
	) app.InitFunc {
		if !utilfeature.DefaultFeatureGate.Enabled(features.CloudControllerManagerWatchBasedRoutesReconciliation) {
			return construct(as, cfg, provider)
		}
		nodes := cfg.SharedInformers.Core().V1().Nodes().Informer()
		// This factory is never started: it only leads the controller to the shared informer.
		resynced := *cfg.Config
		resynced.SharedInformers = informers.NewSharedInformerFactory(nil, 0)
		resynced.SharedInformers.InformerFor(&corev1.Node{},
			func(kubernetes.Interface, time.Duration) cache.SharedIndexInformer { return resyncedNodes{nodes} })
		return construct(as, resynced.Complete(), provider)
	}
	return upstream
}

// resyncedNodes is the shared informer of Nodes, for the route controller alone.
type resyncedNodes struct{ cache.SharedIndexInformer }

// AddEventHandler has the informer resync the handler. It takes the period only before it starts,
// which upstream does after it has made all controllers.
func (n resyncedNodes) AddEventHandler(
	handler cache.ResourceEventHandler,
) (cache.ResourceEventHandlerRegistration, error) {
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
