package client

import (
	"context"
	"net/http"

	"github.com/ccmlab/ccmlab/fakecloud/api"
)

// CreateFault makes calls of this client's project go wrong from now on.
func (c *Client) CreateFault(ctx context.Context, f api.FaultCreate) (*api.Fault, error) {
	return write[api.Fault](ctx, c, func(ctx context.Context) (*http.Response, error) { return c.raw.CreateFault(ctx, f) })
}

// ListFaults lists the project's rules, oldest first, spent ones included.
func (c *Client) ListFaults(ctx context.Context) ([]api.Fault, error) {
	list, err := read[api.FaultList](ctx, c, func(ctx context.Context) (*http.Response, error) { return c.raw.ListFaults(ctx) })
	if err != nil {
		return nil, err
	}
	return list.Items, nil
}

// GetFault asks for one rule by its ID.
func (c *Client) GetFault(ctx context.Context, id string) (*api.Fault, error) {
	return read[api.Fault](ctx, c, of(id, c.raw.GetFault))
}

// DeleteFault lifts a rule; calls that it holds are let go of.
func (c *Client) DeleteFault(ctx context.Context, id string) error {
	_, err := write[struct{}](ctx, c, of(id, c.raw.DeleteFault))
	return err
}

// DeleteFaults lifts all rules that the project made.
func (c *Client) DeleteFaults(ctx context.Context) error {
	_, err := write[struct{}](ctx, c, func(ctx context.Context) (*http.Response, error) { return c.raw.DeleteFaults(ctx) })
	return err
}
