package client

import (
	"context"
	"net/http"

	"github.com/ccmlab/ccmlab/fakecloud/api"
)

// LoadBalancerFilter filters a list. Zero fields match everything.
type LoadBalancerFilter struct {
	Name   string
	States []api.LoadBalancerState
	// Tags are "key=value", or "key" for any value; all must match.
	Tags []string
}

// ListLoadBalancers lists all load balancers that match.
func (c *Client) ListLoadBalancers(ctx context.Context, f LoadBalancerFilter) ([]api.LoadBalancer, error) {
	params := api.ListLoadBalancersParams{
		Name: optionalParam(f.Name), State: optionalListParam(f.States), Tag: optionalListParam(f.Tags),
		Limit: new(pageSize),
	}
	return readAllPages(func(token *string) (*api.LoadBalancerList, error) {
		params.PageToken = token
		return readWithRetries[api.LoadBalancerList](ctx, c, func(ctx context.Context) (*http.Response, error) {
			return c.raw.ListLoadBalancers(ctx, &params)
		})
	}, func(list *api.LoadBalancerList) ([]api.LoadBalancer, *string) { return list.Items, list.NextPageToken })
}

// GetLoadBalancer returns one load balancer by its ID.
func (c *Client) GetLoadBalancer(ctx context.Context, id string) (*api.LoadBalancer, error) {
	return readWithRetries[api.LoadBalancer](ctx, c, callWithID(id, c.raw.GetLoadBalancer))
}

// LoadBalancerStats returns the counters of one balancer's listeners and targets. They count
// from the start of the cloud's process: lower figures than before mean that it restarted.
func (c *Client) LoadBalancerStats(ctx context.Context, id string) (*api.LoadBalancerStats, error) {
	return readWithRetries[api.LoadBalancerStats](ctx, c, callWithID(id, c.raw.GetLoadBalancerStats))
}

// LoadBalancerHealth returns the health of one balancer's targets, with its history.
func (c *Client) LoadBalancerHealth(ctx context.Context, id string) (*api.LoadBalancerHealth, error) {
	return readWithRetries[api.LoadBalancerHealth](ctx, c, callWithID(id, c.raw.GetLoadBalancerHealth))
}

// CreateLoadBalancer creates a load balancer. It is provisioning in the reply.
func (c *Client) CreateLoadBalancer(ctx context.Context, lb api.LoadBalancerCreate) (*api.LoadBalancer, error) {
	return sendCreate[api.LoadBalancer](ctx, c, func(ctx context.Context) (*http.Response, error) {
		return c.raw.CreateLoadBalancer(ctx, &api.CreateLoadBalancerParams{}, lb)
	})
}

// UpdateLoadBalancer replaces the fields that are not nil.
func (c *Client) UpdateLoadBalancer(
	ctx context.Context,
	id string,
	u api.LoadBalancerUpdate,
) (*api.LoadBalancer, error) {
	return sendOnce[api.LoadBalancer](ctx, c, callWithID(id, func(
		ctx context.Context,
		id string,
		edit ...api.RequestEditorFn,
	) (*http.Response, error) {
		return c.raw.UpdateLoadBalancer(ctx, id, &api.UpdateLoadBalancerParams{}, u, edit...)
	}))
}

// DeleteLoadBalancer deletes a load balancer. It is deleting in the reply.
func (c *Client) DeleteLoadBalancer(ctx context.Context, id string) (*api.LoadBalancer, error) {
	return sendOnce[api.LoadBalancer](ctx, c, changeWithID(id, c.raw.DeleteLoadBalancer))
}
