package client

import (
	"context"
	"net/http"

	"github.com/ccmlab/ccmlab/fakecloud/api"
)

// Quotas tells what the token's project may have, and has.
func (c *Client) Quotas(ctx context.Context) (*api.Quotas, error) {
	return read[api.Quotas](ctx, c, func(ctx context.Context) (*http.Response, error) { return c.raw.GetQuotas(ctx) })
}

// ProjectQuotas tells what a project may have, and has.
func (c *Client) ProjectQuotas(ctx context.Context, project string) (*api.Quotas, error) {
	return read[api.Quotas](ctx, c, of(project, c.raw.GetProjectQuotas))
}

// UpdateProjectQuotas sets the limits that are not nil.
func (c *Client) UpdateProjectQuotas(ctx context.Context, project string, u api.QuotasUpdate) (*api.Quotas, error) {
	return write[api.Quotas](ctx, c, of(project, func(ctx context.Context, id string, edit ...api.RequestEditorFn) (*http.Response, error) {
		return c.raw.UpdateProjectQuotas(ctx, id, u, edit...)
	}))
}

// ListRegions lists the regions.
func (c *Client) ListRegions(ctx context.Context) ([]api.Region, error) {
	list, err := read[api.RegionList](ctx, c, func(ctx context.Context) (*http.Response, error) { return c.raw.ListRegions(ctx) })
	if err != nil {
		return nil, err
	}
	return list.Items, nil
}

// ListInstanceTypes lists the sizes that instances can have, the smallest first.
func (c *Client) ListInstanceTypes(ctx context.Context) ([]api.InstanceSize, error) {
	list, err := read[api.InstanceSizeList](ctx, c, func(ctx context.Context) (*http.Response, error) { return c.raw.ListInstanceTypes(ctx) })
	if err != nil {
		return nil, err
	}
	return list.Items, nil
}
