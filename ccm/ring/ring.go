// Package ring is what the rings around package core are made with: Wrap puts one around each call of a provider.
package ring

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"
	cloudprovider "k8s.io/cloud-provider"
	"k8s.io/klog/v2"

	"github.com/ccmlab/ccmlab/ccm/core"
	"github.com/ccmlab/ccmlab/fakecloud/api"
)

// Object is a Node, a Service or another object that has Events.
type Object interface {
	runtime.Object
	GetUID() types.UID
}

// Events are where rings tell people what they do.
type Events interface {
	// WarnOnce writes a Warning unless it did so since Resolve was called. Reason and detail tell causes apart.
	WarnOnce(obj Object, topic, reason, detail, message string)
	// Note writes an Event about something that happened.
	Note(obj Object, reason, message string)
	// Resolve says that the causes of a topic are over.
	Resolve(obj Object, topic string)
}

// Call is one call of a provider.
type Call struct {
	Method string // such as EnsureLoadBalancer
	// Object is the Node or the Service that the call is about; nil for routes.
	Object Object
	// Route is the one that is created or deleted.
	Route *cloudprovider.Route
}

// Around calls next, which makes the call, and sees its error. It may give next another context.
type Around func(ctx context.Context, call Call, next func(context.Context) error) error

// Wrap has around called for every call of the provider that takes a context.
func Wrap(p core.Provider, around Around) core.Provider {
	return core.Provider{
		Instances:     wrappedInstances{p.Instances, around},
		LoadBalancers: wrappedBalancers{p.LoadBalancers, around},
		Routes:        wrappedRoutes{p.Routes, around},
	}
}

type wrappedInstances struct {
	core.Instances
	around Around
}

// aroundNode makes a call about a Node.
func aroundNode[T any](
	ctx context.Context, w wrappedInstances, method string, node *corev1.Node,
	call func(core.Instances, context.Context, *corev1.Node) (T, error),
) (value T, err error) {
	err = w.around(ctx, Call{Method: method, Object: node}, func(ctx context.Context) error {
		value, err = call(w.Instances, ctx, node)
		return err
	})
	return value, err
}

func (w wrappedInstances) FindInstance(ctx context.Context, node *corev1.Node) (*api.Instance, error) {
	return aroundNode(ctx, w, "FindInstance", node, core.Instances.FindInstance)
}

func (w wrappedInstances) MayDelete(ctx context.Context, node *corev1.Node) (string, error) {
	return aroundNode(ctx, w, "MayDelete", node, core.Instances.MayDelete)
}

func (w wrappedInstances) InstanceExists(ctx context.Context, node *corev1.Node) (bool, error) {
	return aroundNode(ctx, w, "InstanceExists", node, core.Instances.InstanceExists)
}

func (w wrappedInstances) InstanceShutdown(ctx context.Context, node *corev1.Node) (bool, error) {
	return aroundNode(ctx, w, "InstanceShutdown", node, core.Instances.InstanceShutdown)
}

func (w wrappedInstances) InstanceMetadata(
	ctx context.Context, node *corev1.Node,
) (*cloudprovider.InstanceMetadata, error) {
	return aroundNode(ctx, w, "InstanceMetadata", node, core.Instances.InstanceMetadata)
}

type wrappedBalancers struct {
	core.LoadBalancers
	around Around
}

func (w wrappedBalancers) GetLoadBalancer(
	ctx context.Context, cluster string, svc *corev1.Service,
) (status *corev1.LoadBalancerStatus, exists bool, err error) {
	err = w.around(ctx, Call{Method: "GetLoadBalancer", Object: svc}, func(ctx context.Context) error {
		status, exists, err = w.LoadBalancers.GetLoadBalancer(ctx, cluster, svc)
		return err
	})
	return status, exists, err
}

func (w wrappedBalancers) EnsureLoadBalancer(
	ctx context.Context, cluster string, svc *corev1.Service, nodes []*corev1.Node,
) (status *corev1.LoadBalancerStatus, err error) {
	err = w.around(ctx, Call{Method: "EnsureLoadBalancer", Object: svc}, func(ctx context.Context) error {
		status, err = w.LoadBalancers.EnsureLoadBalancer(ctx, cluster, svc, nodes)
		return err
	})
	return status, err
}

func (w wrappedBalancers) UpdateLoadBalancer(
	ctx context.Context, cluster string, svc *corev1.Service, nodes []*corev1.Node,
) error {
	return w.around(ctx, Call{Method: "UpdateLoadBalancer", Object: svc}, func(ctx context.Context) error {
		return w.LoadBalancers.UpdateLoadBalancer(ctx, cluster, svc, nodes)
	})
}

func (w wrappedBalancers) EnsureLoadBalancerDeleted(ctx context.Context, cluster string, svc *corev1.Service) error {
	return w.around(ctx, Call{Method: "EnsureLoadBalancerDeleted", Object: svc}, func(ctx context.Context) error {
		return w.LoadBalancers.EnsureLoadBalancerDeleted(ctx, cluster, svc)
	})
}

type wrappedRoutes struct {
	core.Routes
	around Around
}

func (w wrappedRoutes) ListRoutes(ctx context.Context, cluster string) (list []*cloudprovider.Route, err error) {
	err = w.around(ctx, Call{Method: "ListRoutes"}, func(ctx context.Context) error {
		list, err = w.Routes.ListRoutes(ctx, cluster)
		return err
	})
	return list, err
}

func (w wrappedRoutes) CreateRoute(ctx context.Context, cluster, hint string, route *cloudprovider.Route) error {
	return w.around(ctx, Call{Method: "CreateRoute", Route: route}, func(ctx context.Context) error {
		return w.Routes.CreateRoute(ctx, cluster, hint, route)
	})
}

func (w wrappedRoutes) DeleteRoute(ctx context.Context, cluster string, route *cloudprovider.Route) error {
	return w.around(ctx, Call{Method: "DeleteRoute", Route: route}, func(ctx context.Context) error {
		return w.Routes.DeleteRoute(ctx, cluster, route)
	})
}

// OnDeletion has forget called with the UID of each Node and Service that is deleted, for rings that remember
// something of it. Call it before the informers start.
func OnDeletion(shared informers.SharedInformerFactory, forget func(types.UID)) {
	handler := cache.ResourceEventHandlerFuncs{DeleteFunc: func(obj any) {
		if uid, ok := DeletedUID(obj); ok {
			forget(uid)
		}
	}}
	coreV1 := shared.Core().V1()
	for _, informer := range []cache.SharedIndexInformer{coreV1.Nodes().Informer(), coreV1.Services().Informer()} {
		if _, err := informer.AddEventHandler(handler); err != nil {
			klog.ErrorS(err, "Cannot watch deletions: what is remembered of deleted objects stays in memory")
		}
	}
}

// DeletedUID is the UID of an object that an informer reports as deleted; false for another type.
func DeletedUID(obj any) (types.UID, bool) {
	if last, ok := obj.(cache.DeletedFinalStateUnknown); ok {
		obj = last.Obj
	}
	object, ok := obj.(metav1.Object)
	if !ok {
		return "", false
	}
	return object.GetUID(), true
}
