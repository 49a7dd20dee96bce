package client

import (
	"context"
	"errors"
	"net/http"

	"github.com/ccmlab/ccmlab/fakecloud/api"
)

// InstanceFilter narrows a list; zero fields do not.
type InstanceFilter struct {
	Name   string
	Zone   string
	States []api.InstanceState
	// Tags are "key=value", or "key" for any value; all must match.
	Tags []string
}

// ListInstances lists all pages. An error on any page is an error: a partial
// list is never returned.
func (c *Client) ListInstances(ctx context.Context, f InstanceFilter) ([]api.Instance, error) {
	params := api.ListInstancesParams{
		Name: optional(f.Name), Zone: optional(f.Zone), State: optionalList(f.States), Tag: optionalList(f.Tags),
		Limit: new(pageSize),
	}
	return pages(func(token *string) (*api.InstanceList, error) {
		params.PageToken = token
		return read[api.InstanceList](ctx, c, func(ctx context.Context) (*http.Response, error) { return c.raw.ListInstances(ctx, &params) })
	}, func(list *api.InstanceList) ([]api.Instance, *string) { return list.Items, list.NextPageToken })
}

// pages reads all pages of a list, of each of which of gives the items, and the
// token of the next.
func pages[L, T any](read func(token *string) (*L, error), of func(*L) ([]T, *string)) ([]T, error) {
	var all []T
	var token *string
	for {
		list, err := read(token)
		if err != nil {
			return nil, err
		}
		items, next := of(list)
		all = append(all, items...)
		if next == nil || *next == "" {
			return all, nil
		}
		token = next
	}
}

var errNoID = errors.New("no ID given")

// of is a call about one resource. Without an ID it would be about another path
// altogether, so that one is not sent.
func of(id string, do func(context.Context, string, ...api.RequestEditorFn) (*http.Response, error)) call {
	return func(ctx context.Context) (*http.Response, error) {
		if id == "" {
			return nil, errNoID
		}
		return do(ctx, id)
	}
}

// change is of for a call that takes headers, which come with the context.
func change[P any](id string, do func(context.Context, string, *P, ...api.RequestEditorFn) (*http.Response, error)) call {
	return of(id, func(ctx context.Context, id string, edit ...api.RequestEditorFn) (*http.Response, error) {
		return do(ctx, id, new(P), edit...)
	})
}

// GetInstance asks for one instance by its ID.
func (c *Client) GetInstance(ctx context.Context, id string) (*api.Instance, error) {
	return read[api.Instance](ctx, c, of(id, c.raw.GetInstance))
}

// CreateInstance asks for a new instance; it is pending in the reply.
func (c *Client) CreateInstance(ctx context.Context, in api.InstanceCreate) (*api.Instance, error) {
	return create[api.Instance](ctx, c, func(ctx context.Context) (*http.Response, error) {
		return c.raw.CreateInstance(ctx, &api.CreateInstanceParams{}, in)
	})
}

// StartInstance starts a stopped instance.
func (c *Client) StartInstance(ctx context.Context, id string) (*api.Instance, error) {
	return write[api.Instance](ctx, c, change(id, c.raw.StartInstance))
}

// StopInstance stops a running instance.
func (c *Client) StopInstance(ctx context.Context, id string) (*api.Instance, error) {
	return write[api.Instance](ctx, c, change(id, c.raw.StopInstance))
}

// RebootInstance reboots a running instance.
func (c *Client) RebootInstance(ctx context.Context, id string) (*api.Instance, error) {
	return write[api.Instance](ctx, c, change(id, c.raw.RebootInstance))
}

// TerminateInstance ends an instance for good.
func (c *Client) TerminateInstance(ctx context.Context, id string) (*api.Instance, error) {
	return write[api.Instance](ctx, c, change(id, c.raw.TerminateInstance))
}

// LoadBalancerFilter narrows a list; zero fields do not.
type LoadBalancerFilter struct {
	Name   string
	States []api.LoadBalancerState
	// Tags are "key=value", or "key" for any value; all must match.
	Tags []string
}

// ListLoadBalancers lists all pages, or fails.
func (c *Client) ListLoadBalancers(ctx context.Context, f LoadBalancerFilter) ([]api.LoadBalancer, error) {
	params := api.ListLoadBalancersParams{
		Name: optional(f.Name), State: optionalList(f.States), Tag: optionalList(f.Tags), Limit: new(pageSize),
	}
	return pages(func(token *string) (*api.LoadBalancerList, error) {
		params.PageToken = token
		return read[api.LoadBalancerList](ctx, c, func(ctx context.Context) (*http.Response, error) { return c.raw.ListLoadBalancers(ctx, &params) })
	}, func(list *api.LoadBalancerList) ([]api.LoadBalancer, *string) { return list.Items, list.NextPageToken })
}

// GetLoadBalancer asks for one balancer by its ID.
func (c *Client) GetLoadBalancer(ctx context.Context, id string) (*api.LoadBalancer, error) {
	return read[api.LoadBalancer](ctx, c, of(id, c.raw.GetLoadBalancer))
}

// LoadBalancerStats are the counters of one balancer's listeners and targets.
// They begin with the cloud's process: less than before means that it began anew.
func (c *Client) LoadBalancerStats(ctx context.Context, id string) (*api.LoadBalancerStats, error) {
	return read[api.LoadBalancerStats](ctx, c, of(id, c.raw.GetLoadBalancerStats))
}

// LoadBalancerHealth is what one balancer knows of its targets, and how they came
// to be so.
func (c *Client) LoadBalancerHealth(ctx context.Context, id string) (*api.LoadBalancerHealth, error) {
	return read[api.LoadBalancerHealth](ctx, c, of(id, c.raw.GetLoadBalancerHealth))
}

// CreateLoadBalancer asks for a new balancer; it is provisioning in the reply.
func (c *Client) CreateLoadBalancer(ctx context.Context, lb api.LoadBalancerCreate) (*api.LoadBalancer, error) {
	return create[api.LoadBalancer](ctx, c, func(ctx context.Context) (*http.Response, error) {
		return c.raw.CreateLoadBalancer(ctx, &api.CreateLoadBalancerParams{}, lb)
	})
}

// UpdateLoadBalancer replaces the fields that are not nil.
func (c *Client) UpdateLoadBalancer(ctx context.Context, id string, u api.LoadBalancerUpdate) (*api.LoadBalancer, error) {
	return write[api.LoadBalancer](ctx, c, of(id, func(ctx context.Context, id string, edit ...api.RequestEditorFn) (*http.Response, error) {
		return c.raw.UpdateLoadBalancer(ctx, id, &api.UpdateLoadBalancerParams{}, u, edit...)
	}))
}

// DeleteLoadBalancer asks for a balancer's end; it is deleting in the reply.
func (c *Client) DeleteLoadBalancer(ctx context.Context, id string) (*api.LoadBalancer, error) {
	return write[api.LoadBalancer](ctx, c, change(id, c.raw.DeleteLoadBalancer))
}

// RouteFilter narrows a list; zero fields do not.
type RouteFilter struct {
	Name string
	// Tags are "key=value", or "key" for any value; all must match.
	Tags []string
}

// ListRoutes lists all pages, or fails.
func (c *Client) ListRoutes(ctx context.Context, f RouteFilter) ([]api.Route, error) {
	params := api.ListRoutesParams{Name: optional(f.Name), Tag: optionalList(f.Tags), Limit: new(pageSize)}
	return pages(func(token *string) (*api.RouteList, error) {
		params.PageToken = token
		return read[api.RouteList](ctx, c, func(ctx context.Context) (*http.Response, error) { return c.raw.ListRoutes(ctx, &params) })
	}, func(list *api.RouteList) ([]api.Route, *string) { return list.Items, list.NextPageToken })
}

// GetRoute asks for one route by its ID.
func (c *Client) GetRoute(ctx context.Context, id string) (*api.Route, error) {
	return read[api.Route](ctx, c, of(id, c.raw.GetRoute))
}

// CreateRoute makes a new route; it is in force in the reply.
func (c *Client) CreateRoute(ctx context.Context, r api.RouteCreate) (*api.Route, error) {
	return create[api.Route](ctx, c, func(ctx context.Context) (*http.Response, error) {
		return c.raw.CreateRoute(ctx, &api.CreateRouteParams{}, r)
	})
}

// DeleteRoute ends a route; it is gone afterwards.
func (c *Client) DeleteRoute(ctx context.Context, id string) error {
	_, err := write[struct{}](ctx, c, change(id, c.raw.DeleteRoute))
	return err
}
