package core

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
)

// fakeAPI answers the calls it was told of; any other panics.
type fakeAPI struct {
	Cloud
	getInstance   func(id string) (*api.Instance, error)
	listInstances func(f client.InstanceFilter) ([]api.Instance, error)
	listBalancers func(f client.LoadBalancerFilter) ([]api.LoadBalancer, error)
	create        func(api.LoadBalancerCreate) (*api.LoadBalancer, error)
	update        func(id string, u api.LoadBalancerUpdate) (*api.LoadBalancer, error)
	remove        func(id string) (*api.LoadBalancer, error)
	addresses     func() ([]api.ReservedAddress, error)
	listRoutes    func(f client.RouteFilter) ([]api.Route, error)
	createRoute   func(api.RouteCreate) (*api.Route, error)
	updateRoute   func(id string, u api.ResourceUpdate) (*api.Route, error)
	deleteRoute   func(id string) error
}

func (f *fakeAPI) GetInstance(_ context.Context, id string) (*api.Instance, error) {
	return f.getInstance(id)
}

func (f *fakeAPI) ListInstances(_ context.Context, filter client.InstanceFilter) ([]api.Instance, error) {
	return f.listInstances(filter)
}

func (f *fakeAPI) ListLoadBalancers(_ context.Context, filter client.LoadBalancerFilter) ([]api.LoadBalancer, error) {
	return f.listBalancers(filter)
}

func (f *fakeAPI) ListAddresses(context.Context, client.AddressFilter) ([]api.ReservedAddress, error) {
	return f.addresses()
}

func (f *fakeAPI) CreateLoadBalancer(_ context.Context, lb api.LoadBalancerCreate) (*api.LoadBalancer, error) {
	return f.create(lb)
}

func (f *fakeAPI) UpdateLoadBalancer(
	_ context.Context, id string, u api.LoadBalancerUpdate,
) (*api.LoadBalancer, error) {
	return f.update(id, u)
}

func (f *fakeAPI) DeleteLoadBalancer(_ context.Context, id string) (*api.LoadBalancer, error) {
	return f.remove(id)
}

func (f *fakeAPI) ListRoutes(_ context.Context, filter client.RouteFilter) ([]api.Route, error) {
	return f.listRoutes(filter)
}

func (f *fakeAPI) CreateRoute(_ context.Context, r api.RouteCreate) (*api.Route, error) {
	return f.createRoute(r)
}

func (f *fakeAPI) UpdateRoute(_ context.Context, id string, u api.ResourceUpdate) (*api.Route, error) {
	return f.updateRoute(id, u)
}

func (f *fakeAPI) DeleteRoute(_ context.Context, id string) error { return f.deleteRoute(id) }

// problem is an answer of the cloud itself.
func problem(status int, code api.ProblemCode) error {
	return &client.Error{
		Status: status, Problem: api.Problem{Status: status, Code: code, Detail: string(code), Project: new("p-ours")},
	}
}

func instance(state api.InstanceState) api.Instance {
	return api.Instance{
		ID: "i-1", Name: "node-1", Region: "r", Zone: "r-a", Type: "small", State: state,
		Addresses: []api.Address{
			{Type: api.AddressInternal, IP: "127.30.16.1"}, {Type: api.AddressExternal, IP: "192.0.2.1"},
		},
	}
}

// assertError asserts that err says want, or that there is none if want is "".
func assertError(t *testing.T, err error, want string) {
	t.Helper()
	if want == "" {
		assert.NoError(t, err)
	} else {
		assert.ErrorContains(t, err, want)
	}
}
