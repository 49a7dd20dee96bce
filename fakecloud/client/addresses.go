package client

import (
	"context"
	"net/http"

	"github.com/ccmlab/ccmlab/fakecloud/api"
)

// AddressFilter filters a list. Zero fields match everything.
type AddressFilter struct {
	Name   string
	States []api.AddressState
	// Tags are "key=value", or "key" for any value; all must match.
	Tags []string
}

// ListAddresses lists all reserved addresses that match.
func (c *Client) ListAddresses(ctx context.Context, f AddressFilter) ([]api.ReservedAddress, error) {
	params := api.ListAddressesParams{
		Name: optionalParam(f.Name), State: optionalListParam(f.States), Tag: optionalListParam(f.Tags),
		Limit: new(pageSize),
	}
	return readAllPages(func(token *string) (*api.ReservedAddressList, error) {
		params.PageToken = token
		return readWithRetries[api.ReservedAddressList](ctx, c, func(ctx context.Context) (*http.Response, error) {
			return c.raw.ListAddresses(ctx, &params)
		})
	}, func(list *api.ReservedAddressList) ([]api.ReservedAddress, *string) {
		return list.Items, list.NextPageToken
	})
}

// GetAddress returns one reserved address by its ID.
func (c *Client) GetAddress(ctx context.Context, id string) (*api.ReservedAddress, error) {
	return readWithRetries[api.ReservedAddress](ctx, c, callWithID(id, c.raw.GetAddress))
}

// ReserveAddress reserves an address for the project. It is available in the reply.
func (c *Client) ReserveAddress(ctx context.Context, a api.ReservedAddressCreate) (*api.ReservedAddress, error) {
	return sendCreate[api.ReservedAddress](ctx, c, func(ctx context.Context) (*http.Response, error) {
		return c.raw.ReserveAddress(ctx, &api.ReserveAddressParams{}, a)
	})
}

// UpdateAddress replaces the fields that are not nil.
func (c *Client) UpdateAddress(
	ctx context.Context,
	id string,
	u api.ReservedAddressUpdate,
) (*api.ReservedAddress, error) {
	return sendOnce[api.ReservedAddress](ctx, c, callWithID(id, func(
		ctx context.Context,
		id string,
		edit ...api.RequestEditorFn,
	) (*http.Response, error) {
		return c.raw.UpdateAddress(ctx, id, &api.UpdateAddressParams{}, u, edit...)
	}))
}

// AttachAddress attaches an available address to an instance.
func (c *Client) AttachAddress(ctx context.Context, id, instance string) (*api.ReservedAddress, error) {
	return sendOnce[api.ReservedAddress](ctx, c, callWithID(id, func(
		ctx context.Context,
		id string,
		edit ...api.RequestEditorFn,
	) (*http.Response, error) {
		return c.raw.AttachAddress(
			ctx, id, &api.AttachAddressParams{}, api.AddressAttach{InstanceID: instance}, edit...,
		)
	}))
}

// DetachAddress detaches an address from its instance.
func (c *Client) DetachAddress(ctx context.Context, id string) (*api.ReservedAddress, error) {
	return sendOnce[api.ReservedAddress](ctx, c, changeWithID(id, c.raw.DetachAddress))
}

// ReleaseAddress ends a reservation. It does not exist any more afterwards.
func (c *Client) ReleaseAddress(ctx context.Context, id string) error {
	_, err := sendOnce[struct{}](ctx, c, changeWithID(id, c.raw.ReleaseAddress))
	return err
}
