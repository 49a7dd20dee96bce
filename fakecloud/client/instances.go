package client

import (
	"context"
	"net/http"

	"github.com/ccmlab/ccmlab/fakecloud/api"
)

// InstanceFilter filters a list. Zero fields match everything.
type InstanceFilter struct {
	Name   string
	Zone   string
	States []api.InstanceState
	// Tags are "key=value", or "key" for any value; all must match.
	Tags []string
}

// ListInstances lists all instances that match. Like every list of this package it reads all
// pages. An error on any page is an error: a partial list is never returned.
func (c *Client) ListInstances(ctx context.Context, f InstanceFilter) ([]api.Instance, error) {
	params := api.ListInstancesParams{
		Name: optionalParam(f.Name), Zone: optionalParam(f.Zone), State: optionalListParam(f.States),
		Tag:   optionalListParam(f.Tags),
		Limit: new(pageSize),
	}
	return readAllPages(func(token *string) (*api.InstanceList, error) {
		params.PageToken = token
		return readWithRetries[api.InstanceList](ctx, c, func(ctx context.Context) (*http.Response, error) {
			return c.raw.ListInstances(ctx, &params)
		})
	}, func(list *api.InstanceList) ([]api.Instance, *string) { return list.Items, list.NextPageToken })
}

// GetInstance returns one instance by its ID.
func (c *Client) GetInstance(ctx context.Context, id string) (*api.Instance, error) {
	return readWithRetries[api.Instance](ctx, c, callWithID(id, c.raw.GetInstance))
}

// CreateInstance creates an instance. It is pending in the reply.
func (c *Client) CreateInstance(ctx context.Context, in api.InstanceCreate) (*api.Instance, error) {
	return sendCreate[api.Instance](ctx, c, func(ctx context.Context) (*http.Response, error) {
		return c.raw.CreateInstance(ctx, &api.CreateInstanceParams{}, in)
	})
}

// UpdateInstance replaces the fields that are not nil.
func (c *Client) UpdateInstance(ctx context.Context, id string, u api.ResourceUpdate) (*api.Instance, error) {
	return sendOnce[api.Instance](ctx, c, callWithID(id, func(
		ctx context.Context,
		id string,
		edit ...api.RequestEditorFn,
	) (*http.Response, error) {
		return c.raw.UpdateInstance(ctx, id, &api.UpdateInstanceParams{}, u, edit...)
	}))
}

// StartInstance starts a stopped instance.
func (c *Client) StartInstance(ctx context.Context, id string) (*api.Instance, error) {
	return sendOnce[api.Instance](ctx, c, changeWithID(id, c.raw.StartInstance))
}

// StopInstance stops a running instance.
func (c *Client) StopInstance(ctx context.Context, id string) (*api.Instance, error) {
	return sendOnce[api.Instance](ctx, c, changeWithID(id, c.raw.StopInstance))
}

// RebootInstance reboots a running instance.
func (c *Client) RebootInstance(ctx context.Context, id string) (*api.Instance, error) {
	return sendOnce[api.Instance](ctx, c, changeWithID(id, c.raw.RebootInstance))
}

// TerminateInstance ends an instance for good.
func (c *Client) TerminateInstance(ctx context.Context, id string) (*api.Instance, error) {
	return sendOnce[api.Instance](ctx, c, changeWithID(id, c.raw.TerminateInstance))
}
