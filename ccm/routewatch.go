package ccm

// Upstream's route controller reconciles all routes every ten seconds. With the feature gate
// CloudControllerManagerWatchBasedRoutesReconciliation (KEP-5237) it does so only when a Node
// comes, goes, or gets other ranges or addresses, and when its informer resyncs, which takes half
// a day. What it could not do then stays undone, and what happens to a route in the cloud goes
// unseen. The route watch has it reconcile then, too.

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/informers"
	coreinformers "k8s.io/client-go/informers/core"
	corev1informers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/tools/cache"
	cloudprovider "k8s.io/cloud-provider"
	"k8s.io/cloud-provider/app"
	cloudcontrollerconfig "k8s.io/cloud-provider/app/config"
	controllermanager "k8s.io/controller-manager/app"
	"k8s.io/controller-manager/controller"
	"k8s.io/controller-manager/pkg/features"
	"k8s.io/klog/v2"

	"github.com/ccmlab/ccmlab/ccm/contract"
	"github.com/ccmlab/ccmlab/ccm/inventory"
	"github.com/ccmlab/ccmlab/fakecloud/api"
)

// routePromptPause is the time between two prompts: upstream's route controller reconciles at
// most that often.
const routePromptPause = 10 * time.Second

// withRouteWatch is upstream's constructor of the route controller. If the controller reconciles
// only when Nodes change, it starts a route watch beside it.
func withRouteWatch(upstream app.ControllerInitFuncConstructor) app.ControllerInitFuncConstructor {
	construct := upstream.Constructor
	upstream.Constructor = func(
		as app.ControllerInitContext,
		cfg *cloudcontrollerconfig.CompletedConfig,
		provider cloudprovider.Interface,
	) app.InitFunc {
		c, ours := provider.(*cloud)
		watchBased := features.CloudControllerManagerWatchBasedRoutesReconciliation
		if !ours || !utilfeature.DefaultFeatureGate.Enabled(watchBased) {
			return construct(as, cfg, provider)
		}
		watch := newRouteWatch(c.routes)
		watched := *cfg.Config
		watched.SharedInformers = promptableFactory{cfg.SharedInformers, &watch.reconciler}
		start := construct(as, watched.Complete(), provider)
		return func(ctx context.Context, m controllermanager.ControllerContext) (controller.Interface, bool, error) {
			running, started, err := start(ctx, m)
			if err != nil || !started {
				return running, started, err
			}
			if err := watch.subscribe(c.inventory, cfg.SharedInformers); err != nil {
				return nil, false, err
			}
			go watch.Run(ctx)
			return running, started, nil
		}
	}
	return upstream
}

// routeWatch prompts upstream's route controller when a route is not as its Node wants it.
type routeWatch struct {
	routes     *routes
	reconciler promptable
	due        chan struct{} // of one prompt
}

// newRouteWatch makes the watch of routes, which report to it what fails.
func newRouteWatch(r *routes) *routeWatch {
	w := &routeWatch{routes: r, due: make(chan struct{}, 1)}
	r.onFailure = w.requestPrompt
	return w
}

// subscribe has a prompt requested by what happens to routes in the cloud, and by a Node that
// becomes known as another instance.
func (w *routeWatch) subscribe(feed changeFeed, shared informers.SharedInformerFactory) error {
	feed.Subscribe(w.handleChange)
	_, err := shared.Core().V1().Nodes().Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		UpdateFunc: func(old, obj any) {
			before, ok1 := old.(*corev1.Node)
			now, ok2 := obj.(*corev1.Node)
			if ok1 && ok2 && before.Spec.ProviderID != now.Spec.ProviderID {
				w.requestPrompt()
			}
		},
	})
	if err != nil {
		return fmt.Errorf("following the Nodes of routes: %w", err)
	}
	return nil
}

// Run prompts until ctx ends.
func (w *routeWatch) Run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-w.due:
		}
		klog.V(2).InfoS("Prompting the route controller")
		w.reconciler.prompt()
		select {
		case <-ctx.Done():
		case <-time.After(routePromptPause):
		}
	}
}

func (w *routeWatch) requestPrompt() {
	select {
	case w.due <- struct{}{}:
	default: // One is due already.
	}
}

// handleChange is called by the inventory, and must not block.
func (w *routeWatch) handleChange(c inventory.Change) {
	ours := c.Route != nil && w.routes.identity.ownsRoute(c.Route)
	if c.Kind == inventory.Relisted || ours && !w.routes.isSettled(c.Route, c.Kind == inventory.Updated) {
		w.requestPrompt()
	}
}

// isSettled tells whether a route of the cluster that exists, or does not, is as its Node wants it.
func (r *routes) isSettled(route *api.Route, exists bool) bool {
	node, err := r.nodes.Get(route.Tags[contract.TagNode])
	wanted := err == nil && slices.Contains(node.Spec.PodCIDRs, route.Destination)
	return exists == wanted && (!exists || !r.isOutdated(route))
}

// promptable are the handlers of a controller that follows Nodes. Upstream's route controller
// takes an update of a Node that changes nothing, as in a resync, for the request to reconcile
// all routes. Safe for concurrent use.
type promptable struct {
	mu       sync.Mutex
	handlers []cache.ResourceEventHandler
}

func (p *promptable) add(handler cache.ResourceEventHandler) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.handlers = append(p.handlers, handler)
}

func (p *promptable) prompt() {
	p.mu.Lock()
	defer p.mu.Unlock()
	unchanged := &corev1.Node{}
	for _, handler := range p.handlers {
		handler.OnUpdate(unchanged, unchanged)
	}
}

// The following types are the shared informers, save that handlers of Nodes also become
// promptable.
type (
	promptableFactory struct {
		informers.SharedInformerFactory
		handlers *promptable
	}
	promptableCore struct {
		coreinformers.Interface
		handlers *promptable
	}
	promptableV1 struct {
		corev1informers.Interface
		handlers *promptable
	}
	promptableNodes struct {
		corev1informers.NodeInformer
		handlers *promptable
	}
	promptableInformer struct {
		cache.SharedIndexInformer
		handlers *promptable
	}
)

func (f promptableFactory) Core() coreinformers.Interface {
	return promptableCore{f.SharedInformerFactory.Core(), f.handlers}
}

func (c promptableCore) V1() corev1informers.Interface {
	return promptableV1{c.Interface.V1(), c.handlers}
}

func (v promptableV1) Nodes() corev1informers.NodeInformer {
	return promptableNodes{v.Interface.Nodes(), v.handlers}
}

func (n promptableNodes) Informer() cache.SharedIndexInformer {
	return promptableInformer{n.NodeInformer.Informer(), n.handlers}
}

func (i promptableInformer) AddEventHandler(
	handler cache.ResourceEventHandler,
) (cache.ResourceEventHandlerRegistration, error) {
	i.handlers.add(handler)
	return i.SharedIndexInformer.AddEventHandler(handler)
}
