package client

import (
	"context"
	"net/http"

	"github.com/ccmlab/ccmlab/fakecloud/api"
)

// ListZones lists the zones of every region.
func (c *Client) ListZones(ctx context.Context) ([]api.Zone, error) {
	list, err := readWithRetries[api.ZoneList](ctx, c, func(ctx context.Context) (*http.Response, error) {
		return c.raw.ListZones(ctx)
	})
	if err != nil {
		return nil, err
	}
	return list.Items, nil
}

// ListRegions lists the regions.
func (c *Client) ListRegions(ctx context.Context) ([]api.Region, error) {
	list, err := readWithRetries[api.RegionList](ctx, c, func(ctx context.Context) (*http.Response, error) {
		return c.raw.ListRegions(ctx)
	})
	if err != nil {
		return nil, err
	}
	return list.Items, nil
}

// ListInstanceTypes lists the types that instances can have, smallest first.
func (c *Client) ListInstanceTypes(ctx context.Context) ([]api.InstanceSize, error) {
	list, err := readWithRetries[api.InstanceSizeList](ctx, c, func(ctx context.Context) (*http.Response, error) {
		return c.raw.ListInstanceTypes(ctx)
	})
	if err != nil {
		return nil, err
	}
	return list.Items, nil
}
