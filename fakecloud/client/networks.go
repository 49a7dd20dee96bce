package client

import (
	"context"
	"net/http"

	"github.com/ccmlab/ccmlab/fakecloud/api"
)

// NetworkFilter narrows a list; zero fields do not.
type NetworkFilter struct {
	Name string
	// Tags are "key=value", or "key" for any value; all must match.
	Tags []string
}

// ListNetworks lists all pages, or fails.
func (c *Client) ListNetworks(ctx context.Context, f NetworkFilter) ([]api.Network, error) {
	params := api.ListNetworksParams{Name: optional(f.Name), Tag: optionalList(f.Tags), Limit: new(pageSize)}
	return pages(func(token *string) (*api.NetworkList, error) {
		params.PageToken = token
		return read[api.NetworkList](ctx, c, func(ctx context.Context) (*http.Response, error) { return c.raw.ListNetworks(ctx, &params) })
	}, func(list *api.NetworkList) ([]api.Network, *string) { return list.Items, list.NextPageToken })
}

// GetNetwork asks for one network by its ID.
func (c *Client) GetNetwork(ctx context.Context, id string) (*api.Network, error) {
	return read[api.Network](ctx, c, of(id, c.raw.GetNetwork))
}

// CreateNetwork makes a new network.
func (c *Client) CreateNetwork(ctx context.Context, n api.NetworkCreate) (*api.Network, error) {
	return create[api.Network](ctx, c, func(ctx context.Context) (*http.Response, error) {
		return c.raw.CreateNetwork(ctx, &api.CreateNetworkParams{}, n)
	})
}

// UpdateNetwork replaces the fields that are not nil.
func (c *Client) UpdateNetwork(ctx context.Context, id string, u api.ResourceUpdate) (*api.Network, error) {
	return write[api.Network](ctx, c, of(id, func(ctx context.Context, id string, edit ...api.RequestEditorFn) (*http.Response, error) {
		return c.raw.UpdateNetwork(ctx, id, &api.UpdateNetworkParams{}, u, edit...)
	}))
}

// DeleteNetwork ends a network that no instance is in.
func (c *Client) DeleteNetwork(ctx context.Context, id string) error {
	_, err := write[struct{}](ctx, c, change(id, c.raw.DeleteNetwork))
	return err
}

// UpdateInstance replaces the fields that are not nil.
func (c *Client) UpdateInstance(ctx context.Context, id string, u api.ResourceUpdate) (*api.Instance, error) {
	return write[api.Instance](ctx, c, of(id, func(ctx context.Context, id string, edit ...api.RequestEditorFn) (*http.Response, error) {
		return c.raw.UpdateInstance(ctx, id, &api.UpdateInstanceParams{}, u, edit...)
	}))
}

// UpdateRoute replaces the fields that are not nil.
func (c *Client) UpdateRoute(ctx context.Context, id string, u api.ResourceUpdate) (*api.Route, error) {
	return write[api.Route](ctx, c, of(id, func(ctx context.Context, id string, edit ...api.RequestEditorFn) (*http.Response, error) {
		return c.raw.UpdateRoute(ctx, id, &api.UpdateRouteParams{}, u, edit...)
	}))
}
