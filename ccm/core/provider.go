package core

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	corelisters "k8s.io/client-go/listers/core/v1"
	cloudprovider "k8s.io/cloud-provider"

	"github.com/ccmlab/ccmlab/fakecloud/api"
)

// Provider is what a cloud provider answers. New makes it; rings around it wrap its parts.
type Provider struct {
	Instances     Instances
	LoadBalancers LoadBalancers
	Routes        Routes
}

// Instances knows the machines behind Nodes.
type Instances interface {
	cloudprovider.InstancesV2
	// FindInstance returns the Node's instance. The error is a cloudprovider.InstanceNotFound, and says why that
	// is certain, exactly if the instance is gone.
	FindInstance(ctx context.Context, node *corev1.Node) (*api.Instance, error)
	// MayDelete returns why the Node may be deleted, "" if its instance exists. With an error the Node stays; an
	// api.RetryError says when to ask again.
	MayDelete(ctx context.Context, node *corev1.Node) (goneReason string, err error)
}

// LoadBalancers builds the balancers of Services.
type LoadBalancers interface {
	cloudprovider.LoadBalancer
	// Compare tells how the Service's balancers differ from what it asks for. It makes no call.
	Compare(svc *corev1.Service, nodes []*corev1.Node, live []api.LoadBalancer) Comparison
}

// Routes leads to the pods of Nodes.
type Routes interface {
	cloudprovider.Routes
	// Follow sets where Nodes are looked up. Call it before the controllers start.
	Follow(nodes corelisters.NodeLister)
	// IgnoresNode tells whether the Node is not ours, so that the route controller is not to see it.
	IgnoresNode(node *corev1.Node) bool
}

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

// Call is one call of a Provider.
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
func Wrap(p Provider, around Around) Provider {
	return Provider{
		Instances:     wrappedInstances{p.Instances, around},
		LoadBalancers: wrappedBalancers{p.LoadBalancers, around},
		Routes:        wrappedRoutes{p.Routes, around},
	}
}

type wrappedInstances struct {
	Instances
	around Around
}

// aroundNode makes a call about a Node.
func aroundNode[T any](
	ctx context.Context, w wrappedInstances, method string, node *corev1.Node,
	call func(Instances, context.Context, *corev1.Node) (T, error),
) (value T, err error) {
	err = w.around(ctx, Call{Method: method, Object: node}, func(ctx context.Context) error {
		value, err = call(w.Instances, ctx, node)
		return err
	})
	return value, err
}

func (w wrappedInstances) FindInstance(ctx context.Context, node *corev1.Node) (*api.Instance, error) {
	return aroundNode(ctx, w, "FindInstance", node, Instances.FindInstance)
}

func (w wrappedInstances) MayDelete(ctx context.Context, node *corev1.Node) (string, error) {
	return aroundNode(ctx, w, "MayDelete", node, Instances.MayDelete)
}

func (w wrappedInstances) InstanceExists(ctx context.Context, node *corev1.Node) (bool, error) {
	return aroundNode(ctx, w, "InstanceExists", node, Instances.InstanceExists)
}

func (w wrappedInstances) InstanceShutdown(ctx context.Context, node *corev1.Node) (bool, error) {
	return aroundNode(ctx, w, "InstanceShutdown", node, Instances.InstanceShutdown)
}

func (w wrappedInstances) InstanceMetadata(
	ctx context.Context, node *corev1.Node,
) (*cloudprovider.InstanceMetadata, error) {
	return aroundNode(ctx, w, "InstanceMetadata", node, Instances.InstanceMetadata)
}

type wrappedBalancers struct {
	LoadBalancers
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
	Routes
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
