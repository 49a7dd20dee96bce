package client

import (
	"context"
	"net/http"

	"github.com/ccmlab/ccmlab/fakecloud/api"
)

// CreateFault creates a fault rule. It applies from now on.
func (c *Client) CreateFault(ctx context.Context, f api.FaultCreate) (*api.Fault, error) {
	return sendOnce[api.Fault](ctx, c, func(ctx context.Context) (*http.Response, error) {
		return c.raw.CreateFault(ctx, f)
	})
}

// ListFaults lists the project's fault rules, oldest first, including spent ones.
func (c *Client) ListFaults(ctx context.Context) ([]api.Fault, error) {
	list, err := readWithRetries[api.FaultList](ctx, c, func(ctx context.Context) (*http.Response, error) {
		return c.raw.ListFaults(ctx)
	})
	if err != nil {
		return nil, err
	}
	return list.Items, nil
}

// GetFault returns one fault rule by its ID.
func (c *Client) GetFault(ctx context.Context, id string) (*api.Fault, error) {
	return readWithRetries[api.Fault](ctx, c, callWithID(id, c.raw.GetFault))
}

// DeleteFault deletes a fault rule. Calls that it delays or hangs go on.
func (c *Client) DeleteFault(ctx context.Context, id string) error {
	_, err := sendOnce[struct{}](ctx, c, callWithID(id, c.raw.DeleteFault))
	return err
}

// DeleteFaults deletes all fault rules that the project created.
func (c *Client) DeleteFaults(ctx context.Context) error {
	_, err := sendOnce[struct{}](ctx, c, func(ctx context.Context) (*http.Response, error) {
		return c.raw.DeleteFaults(ctx)
	})
	return err
}
