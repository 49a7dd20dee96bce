package client

import (
	"context"
	"net/http"

	"github.com/ccmlab/ccmlab/fakecloud/api"
)

// RouteFilter filters a list. Zero fields match everything.
type RouteFilter struct {
	Name string
	// Tags are "key=value", or "key" for any value; all must match.
	Tags []string
}

// ListRoutes lists all routes that match.
func (c *Client) ListRoutes(ctx context.Context, f RouteFilter) ([]api.Route, error) {
	params := api.ListRoutesParams{Name: optionalParam(f.Name), Tag: optionalListParam(f.Tags), Limit: new(pageSize)}
	return readAllPages(func(token *string) (*api.RouteList, error) {
		params.PageToken = token
		return readWithRetries[api.RouteList](ctx, c, func(ctx context.Context) (*http.Response, error) {
			return c.raw.ListRoutes(ctx, &params)
		})
	}, func(list *api.RouteList) ([]api.Route, *string) { return list.Items, list.NextPageToken })
}

// GetRoute returns one route by its ID.
func (c *Client) GetRoute(ctx context.Context, id string) (*api.Route, error) {
	return readWithRetries[api.Route](ctx, c, callWithID(id, c.raw.GetRoute))
}

// CreateRoute creates a route. It is in force in the reply.
func (c *Client) CreateRoute(ctx context.Context, r api.RouteCreate) (*api.Route, error) {
	return sendCreate[api.Route](ctx, c, func(ctx context.Context) (*http.Response, error) {
		return c.raw.CreateRoute(ctx, &api.CreateRouteParams{}, r)
	})
}

// UpdateRoute replaces the fields that are not nil.
func (c *Client) UpdateRoute(ctx context.Context, id string, u api.ResourceUpdate) (*api.Route, error) {
	return sendOnce[api.Route](ctx, c, callWithID(id, func(
		ctx context.Context,
		id string,
		edit ...api.RequestEditorFn,
	) (*http.Response, error) {
		return c.raw.UpdateRoute(ctx, id, &api.UpdateRouteParams{}, u, edit...)
	}))
}

// DeleteRoute deletes a route. It does not exist any more afterwards.
func (c *Client) DeleteRoute(ctx context.Context, id string) error {
	_, err := sendOnce[struct{}](ctx, c, changeWithID(id, c.raw.DeleteRoute))
	return err
}
