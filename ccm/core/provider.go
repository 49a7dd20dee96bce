package core

import (
	"context"

	corev1 "k8s.io/api/core/v1"
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
	// MayDelete returns why the Node may be deleted: why its instance is gone. It is "" if the instance exists. With an
	// error the Node stays; an api.RetryError of a ring says when to ask again.
	MayDelete(ctx context.Context, node *corev1.Node) (goneReason string, err error)
}

// LoadBalancers builds the balancers of Services.
type LoadBalancers interface {
	cloudprovider.LoadBalancer
	// Compare tells how the Service's balancers differ from what it asks for. It makes no call.
	Compare(svc *corev1.Service, nodes []*corev1.Node, live []api.LoadBalancer) Comparison
}

// Routes keeps the cloud's routes to the pods of Nodes.
type Routes interface {
	cloudprovider.Routes
	// Follow sets where Nodes are looked up. Call it before the controllers start.
	Follow(nodes corelisters.NodeLister)
	// IgnoresNode tells whether the Node is not ours, so that the route controller is not to see it.
	IgnoresNode(node *corev1.Node) bool
}
