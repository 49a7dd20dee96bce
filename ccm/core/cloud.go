package core

import (
	"context"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
)

// Cloud is what the cloud controller manager asks of the cloud, and has it do. fakecloud/client implements it.
//
// An error for which client.IsNotFound is true means that the resource does not exist. Any other error
// means that nothing is known.
type Cloud interface {
	GetInstance(ctx context.Context, id string) (*api.Instance, error)
	ListInstances(ctx context.Context, f client.InstanceFilter) ([]api.Instance, error)

	GetLoadBalancer(ctx context.Context, id string) (*api.LoadBalancer, error)
	ListLoadBalancers(ctx context.Context, f client.LoadBalancerFilter) ([]api.LoadBalancer, error)
	CreateLoadBalancer(ctx context.Context, lb api.LoadBalancerCreate) (*api.LoadBalancer, error)
	UpdateLoadBalancer(ctx context.Context, id string, u api.LoadBalancerUpdate) (*api.LoadBalancer, error)
	DeleteLoadBalancer(ctx context.Context, id string) (*api.LoadBalancer, error)
	ListAddresses(ctx context.Context, f client.AddressFilter) ([]api.ReservedAddress, error)

	ListRoutes(ctx context.Context, f client.RouteFilter) ([]api.Route, error)
	CreateRoute(ctx context.Context, r api.RouteCreate) (*api.Route, error)
	UpdateRoute(ctx context.Context, id string, u api.ResourceUpdate) (*api.Route, error)
	DeleteRoute(ctx context.Context, id string) error
}
