package onfakecloud

// Routes, as the cloud's own records say them.

import (
	"context"
	"strings"

	"github.com/ccmlab/ccmlab/ccm/contract"
	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
	"github.com/ccmlab/ccmlab/lab/conformance"
	"github.com/ccmlab/ccmlab/lab/conformance/driver/protocol"
)

// ListRoutes implements protocol.Operations. By the cluster alone: with what a CCM marks the
// Node of a route is its own matter.
func (c *Cloud) ListRoutes(ctx context.Context) (out protocol.RouteList, err error) {
	all, err := c.API.ListRoutes(ctx, client.RouteFilter{Tags: []string{c.Names.clusterTag() + "=" + c.Cluster}})
	if err != nil {
		return out, err
	}
	for _, r := range all {
		if r.Tags[c.Names.clusterUIDTag()] != namesakeUID {
			out.Routes = append(out.Routes, routeOf(&r))
		}
	}
	return out, nil
}

func routeOf(r *api.Route) conformance.Route {
	return conformance.Route{ID: r.ID, Destination: r.Destination, InstanceID: r.InstanceID}
}

// GetRoute implements protocol.Operations.
func (c *Cloud) GetRoute(ctx context.Context, id string) (conformance.Route, error) {
	r, err := c.API.GetRoute(ctx, id)
	if err != nil {
		return conformance.Route{}, orNotFound(err)
	}
	return routeOf(r), nil
}

// DeleteRoute implements protocol.Operations.
func (c *Cloud) DeleteRoute(ctx context.Context, id string) error {
	return unlessNotFound(c.API.DeleteRoute(ctx, id))
}

// DivertRoute implements protocol.Operations. Where a route leads cannot be changed
// here: another takes its place, with its name and tags. A CCM that is faster puts
// its own there, which then is the one to go.
func (c *Cloud) DivertRoute(ctx context.Context, id string, body protocol.RouteDiversion) error {
	was, err := c.API.GetRoute(ctx, id)
	if err != nil {
		return err
	}
	want := api.RouteCreate{
		Name: was.Name, Destination: was.Destination, InstanceID: body.InstanceID, Tags: &was.Tags,
	}
	return pollUntil(ctx, func() (bool, error) {
		there, err := c.ListRoutes(ctx)
		if err != nil {
			return false, err
		}
		for _, r := range there.Routes {
			if r.Destination == was.Destination {
				if err := c.DeleteRoute(ctx, r.ID); err != nil {
					return false, err
				}
			}
		}
		_, err = c.API.CreateRoute(ctx, want)
		if client.HasCode(err, api.RouteConflict) || client.HasCode(err, api.NameTaken) {
			return false, nil
		}
		return true, err
	})
}

// CreateForeignRoute implements protocol.Operations. It belongs to a Node of another
// cluster, as a neighbour's in the same project would.
func (c *Cloud) CreateForeignRoute(ctx context.Context, body protocol.ForeignRoute) (conformance.Route, error) {
	return c.createStrangersRoute(ctx, body, api.Tags{c.Names.clusterTag(): c.stranger()})
}

// CreateNamesakeRoute implements protocol.Operations.
func (c *Cloud) CreateNamesakeRoute(ctx context.Context, body protocol.ForeignRoute) (conformance.Route, error) {
	return c.createStrangersRoute(ctx, body, c.namesakeTags())
}

// createStrangersRoute makes a route of a Node that is in another cluster, by these tags.
func (c *Cloud) createStrangersRoute(
	ctx context.Context, body protocol.ForeignRoute, tags api.Tags,
) (conformance.Route, error) {
	tags[contract.TagNode] = "stranger"
	made, err := c.API.CreateRoute(ctx, api.RouteCreate{
		Destination: body.Destination, InstanceID: body.InstanceID, Tags: &tags,
		Name: "stranger-" + strings.NewReplacer("/", "-", ":", "-").Replace(body.Destination),
	})
	if err != nil {
		return conformance.Route{}, err
	}
	return routeOf(made), nil
}

// LimitRoutes implements protocol.Operations.
func (c *Cloud) LimitRoutes(ctx context.Context) (protocol.Injection, error) {
	return c.exhaustQuota(ctx, func(q *api.Quotas) api.QuotasUpdate { return api.QuotasUpdate{Routes: &q.Routes.Limit} })
}
