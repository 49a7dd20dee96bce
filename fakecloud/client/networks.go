package client

import (
	"context"
	"net/http"

	"github.com/ccmlab/ccmlab/fakecloud/api"
)

// NetworkFilter filters a list. Zero fields match everything.
type NetworkFilter struct {
	Name string
	// Tags are "key=value", or "key" for any value; all must match.
	Tags []string
}

// ListNetworks lists all networks that match.
func (c *Client) ListNetworks(ctx context.Context, f NetworkFilter) ([]api.Network, error) {
	params := api.ListNetworksParams{Name: optionalParam(f.Name), Tag: optionalListParam(f.Tags), Limit: new(pageSize)}
	return readAllPages(func(token *string) (*api.NetworkList, error) {
		params.PageToken = token
		return readWithRetries[api.NetworkList](ctx, c, func(ctx context.Context) (*http.Response, error) {
			return c.raw.ListNetworks(ctx, &params)
		})
	}, func(list *api.NetworkList) ([]api.Network, *string) { return list.Items, list.NextPageToken })
}

// GetNetwork returns one network by its ID.
func (c *Client) GetNetwork(ctx context.Context, id string) (*api.Network, error) {
	return readWithRetries[api.Network](ctx, c, callWithID(id, c.raw.GetNetwork))
}

// CreateNetwork creates a network.
func (c *Client) CreateNetwork(ctx context.Context, n api.NetworkCreate) (*api.Network, error) {
	return sendCreate[api.Network](ctx, c, func(ctx context.Context) (*http.Response, error) {
		return c.raw.CreateNetwork(ctx, &api.CreateNetworkParams{}, n)
	})
}

// UpdateNetwork replaces the fields that are not nil.
func (c *Client) UpdateNetwork(ctx context.Context, id string, u api.ResourceUpdate) (*api.Network, error) {
	return sendOnce[api.Network](ctx, c, callWithID(id, func(
		ctx context.Context,
		id string,
		edit ...api.RequestEditorFn,
	) (*http.Response, error) {
		return c.raw.UpdateNetwork(ctx, id, &api.UpdateNetworkParams{}, u, edit...)
	}))
}

// DeleteNetwork deletes a network without instances.
func (c *Client) DeleteNetwork(ctx context.Context, id string) error {
	_, err := sendOnce[struct{}](ctx, c, changeWithID(id, c.raw.DeleteNetwork))
	return err
}
