package client

import (
	"context"
	"net/http"

	"github.com/ccmlab/ccmlab/fakecloud/api"
)

// AddressFilter narrows a list; zero fields do not.
type AddressFilter struct {
	Name   string
	States []api.AddressState
	// Tags are "key=value", or "key" for any value; all must match.
	Tags []string
}

// ListAddresses lists all pages of reserved addresses, or fails.
func (c *Client) ListAddresses(ctx context.Context, f AddressFilter) ([]api.ReservedAddress, error) {
	params := api.ListAddressesParams{Name: optional(f.Name), State: optionalList(f.States), Tag: optionalList(f.Tags), Limit: new(pageSize)}
	return pages(func(token *string) (*api.ReservedAddressList, error) {
		params.PageToken = token
		return read[api.ReservedAddressList](ctx, c, func(ctx context.Context) (*http.Response, error) { return c.raw.ListAddresses(ctx, &params) })
	}, func(list *api.ReservedAddressList) ([]api.ReservedAddress, *string) {
		return list.Items, list.NextPageToken
	})
}

// GetAddress asks for one reserved address by its ID.
func (c *Client) GetAddress(ctx context.Context, id string) (*api.ReservedAddress, error) {
	return read[api.ReservedAddress](ctx, c, of(id, c.raw.GetAddress))
}

// ReserveAddress gives the project an address; it is available in the reply.
func (c *Client) ReserveAddress(ctx context.Context, a api.ReservedAddressCreate) (*api.ReservedAddress, error) {
	return create[api.ReservedAddress](ctx, c, func(ctx context.Context) (*http.Response, error) {
		return c.raw.ReserveAddress(ctx, &api.ReserveAddressParams{}, a)
	})
}

// UpdateAddress replaces the fields that are not nil.
func (c *Client) UpdateAddress(ctx context.Context, id string, u api.ReservedAddressUpdate) (*api.ReservedAddress, error) {
	return write[api.ReservedAddress](ctx, c, of(id, func(ctx context.Context, id string, edit ...api.RequestEditorFn) (*http.Response, error) {
		return c.raw.UpdateAddress(ctx, id, &api.UpdateAddressParams{}, u, edit...)
	}))
}

// AttachAddress gives an available address to an instance.
func (c *Client) AttachAddress(ctx context.Context, id, instance string) (*api.ReservedAddress, error) {
	return write[api.ReservedAddress](ctx, c, of(id, func(ctx context.Context, id string, edit ...api.RequestEditorFn) (*http.Response, error) {
		return c.raw.AttachAddress(ctx, id, &api.AttachAddressParams{}, api.AddressAttach{InstanceID: instance}, edit...)
	}))
}

// DetachAddress takes an address from its instance.
func (c *Client) DetachAddress(ctx context.Context, id string) (*api.ReservedAddress, error) {
	return write[api.ReservedAddress](ctx, c, change(id, c.raw.DetachAddress))
}

// ReleaseAddress ends a reservation; it is gone afterwards.
func (c *Client) ReleaseAddress(ctx context.Context, id string) error {
	_, err := write[struct{}](ctx, c, change(id, c.raw.ReleaseAddress))
	return err
}
