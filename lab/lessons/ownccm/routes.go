package main

// The route controller calls these methods, if Routes of provider.go returns p, true:
// which routes has the cluster, make one, delete one. It compares them with the pod ranges
// of all Nodes itself.

import (
	"context"

	cloudprovider "k8s.io/cloud-provider"
)

// step 6
import (
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
)

// end

// ListRoutes is called first in each round. Whatever it returns and no Node wants is
// deleted, so it must return this cluster's routes and nobody else's; a route that it
// leaves out is made again.
func (p *provider) ListRoutes(ctx context.Context, clusterName string) ([]*cloudprovider.Route, error) {
	// step 6
	all, err := p.cloud.ListRoutes(ctx, client.RouteFilter{Tags: []string{tagCluster + "=" + clusterName, tagNode}})
	if err != nil {
		return nil, err
	}
	var routes []*cloudprovider.Route
	for _, r := range all {
		// A route via a stopped instance is no Blackhole to upstream: it would be deleted,
		// and made again, as long as the Node is there.
		routes = append(routes, &cloudprovider.Route{
			Name: r.ID, TargetNode: types.NodeName(r.Tags[tagNode]), DestinationCIDR: r.Destination,
		})
	}
	return routes, nil
	// before
	// return nil, errNotWritten
	// end
}

// CreateRoute is called for each range of a Node, of spec.podCIDRs, that no listed route
// is for. An error keeps the Node's network unavailable, until a later round has none.
// nameHint is the Node's UID.
func (p *provider) CreateRoute(
	ctx context.Context,
	clusterName string,
	nameHint string,
	route *cloudprovider.Route,
) error {
	// step 6
	i, err := p.instanceByName(ctx, string(route.TargetNode))
	if err != nil {
		return fmt.Errorf("where to route %s: %w", route.DestinationCIDR, err)
	}
	_, err = p.cloud.CreateRoute(ctx, api.RouteCreate{
		// A Node may have two ranges, so its name alone is none for a route.
		Name:        i.Name + "-" + strings.NewReplacer("/", "-", ":", "-").Replace(route.DestinationCIDR),
		Destination: route.DestinationCIDR, InstanceID: i.ID,
		Tags: &api.Tags{tagCluster: clusterName, tagNode: string(route.TargetNode)},
	})
	return err
	// before
	// return errNotWritten
	// end
}

// DeleteRoute is called for each listed route that no Node wants. The route is as
// ListRoutes returned it.
func (p *provider) DeleteRoute(ctx context.Context, clusterName string, route *cloudprovider.Route) error {
	// step 6
	err := p.cloud.DeleteRoute(ctx, route.Name) // Its ID: see ListRoutes.
	if client.IsNotFound(err) {
		return nil
	}
	return err
	// before
	// return errNotWritten
	// end
}
