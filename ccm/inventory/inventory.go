// Package inventory is what the CCM remembers of the cloud, so that N nodes
// cost a list and a stream of events, and not N calls. It may say "yes, and it
// looks so"; that something is not in it proves nothing, and whoever would act
// on an absence asks the cloud itself.
package inventory

import (
	"context"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
)

// Cloud are the calls that an inventory makes.
type Cloud interface {
	GetInstance(ctx context.Context, id string) (*api.Instance, error)
	ListInstances(ctx context.Context, f client.InstanceFilter) ([]api.Instance, error)
	ListLoadBalancers(ctx context.Context, f client.LoadBalancerFilter) ([]api.LoadBalancer, error)
	ListRoutes(ctx context.Context, f client.RouteFilter) ([]api.Route, error)
}

// Options say what is remembered, and for how long.
type Options struct {
	// ClusterTag, "key=value", is what the cluster's balancers and routes carry.
	ClusterTag string
	// ServiceTag is the key of the tag that names a balancer's Service by UID.
	ServiceTag string
	// Off has every question asked of the cloud.
	Off bool
}

// Change is something that the inventory learned, in order: of one resource, as
// it is now, or as it last was if it is Gone. One without a resource says that
// everything was listed anew.
type Change struct {
	Instance     *api.Instance
	LoadBalancer *api.LoadBalancer
	Route        *api.Route
	Gone         bool
}

// Inventory is safe for concurrent use.
type Inventory struct {
	cloud Cloud
	opts  Options
}

// New makes an inventory that knows nothing yet.
func New(cloud Cloud, opts Options) *Inventory { return &Inventory{cloud: cloud, opts: opts} }

// Subscribe has fn told of every change, one at a time; it must not block, and
// must be called before Run.
func (v *Inventory) Subscribe(fn func(Change)) {}

// Run follows the cloud's events until ctx ends. Without it, or while the stream
// is broken, what is too old is listed again when somebody asks.
func (v *Inventory) Run(ctx context.Context) { <-ctx.Done() }

// Instance is the instance with that ID; nil if the inventory has none.
func (v *Inventory) Instance(ctx context.Context, id string) (*api.Instance, error) { return nil, nil }

// InstancesNamed are all instances of that name that the cloud still shows,
// ended ones included.
func (v *Inventory) InstancesNamed(ctx context.Context, name string) ([]api.Instance, error) {
	return v.cloud.ListInstances(ctx, client.InstanceFilter{Name: name})
}

// LoadBalancersOf are the cluster's balancers whose tag names that Service. It
// asks nothing of the cloud: what is not known is not there.
func (v *Inventory) LoadBalancersOf(serviceUID string) []api.LoadBalancer { return nil }

// LoadBalancers are all balancers of the cluster that are known.
func (v *Inventory) LoadBalancers() []api.LoadBalancer { return nil }

// Routes are all routes of the cluster.
func (v *Inventory) Routes(ctx context.Context) ([]api.Route, error) {
	return v.cloud.ListRoutes(ctx, client.RouteFilter{Tags: []string{v.opts.ClusterTag}})
}

// NoteLoadBalancer takes in what the cloud answered to a change, so that the
// next question does not wait for the event. One that is older than what is
// known changes nothing.
func (v *Inventory) NoteLoadBalancer(lb api.LoadBalancer) {}

// NoteRoute is the same for a route.
func (v *Inventory) NoteRoute(r api.Route) {}
