package client

import (
	"context"
	"net/http"

	"github.com/ccmlab/ccmlab/fakecloud/api"
)

// Quotas returns the limits and the use of the token's project.
func (c *Client) Quotas(ctx context.Context) (*api.Quotas, error) {
	return readWithRetries[api.Quotas](ctx, c, func(ctx context.Context) (*http.Response, error) {
		return c.raw.GetQuotas(ctx)
	})
}

// ProjectQuotas returns the limits and the use of a project.
func (c *Client) ProjectQuotas(ctx context.Context, project string) (*api.Quotas, error) {
	return readWithRetries[api.Quotas](ctx, c, callWithID(project, c.raw.GetProjectQuotas))
}

// UpdateProjectQuotas sets the limits that are not nil.
func (c *Client) UpdateProjectQuotas(ctx context.Context, project string, u api.QuotasUpdate) (*api.Quotas, error) {
	return sendOnce[api.Quotas](ctx, c, callWithID(project, func(
		ctx context.Context,
		id string,
		edit ...api.RequestEditorFn,
	) (*http.Response, error) {
		return c.raw.UpdateProjectQuotas(ctx, id, u, edit...)
	}))
}
