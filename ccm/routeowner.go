package ccm

// A route is the cluster's by the cluster's UID in its tags, as a balancer is: clusters may share
// a name. Routes from before there was that tag are taken over if they lead to an instance of one
// of the cluster's Nodes, and get it. Whatever else is there is left alone.

import (
	"context"
	"errors"
	"fmt"
	"maps"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/klog/v2"

	"github.com/ccmlab/ccmlab/ccm/contract"
	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
)

// routeUpdatesAtOnce is how many routes are tagged side by side.
const routeUpdatesAtOnce = 10

// errClusterUnknown is that it is not known yet whose routes are this cluster's: none is made,
// none deleted.
var errClusterUnknown = errors.New("this cluster's UID is not known yet")

// ownsRoute tells whether a route is for a Node of this cluster.
func (i *clusterIdentity) ownsRoute(route *api.Route) bool {
	uid := i.uid()
	return uid != "" && route.Tags[contract.TagClusterUID] == uid && route.Tags[contract.TagNode] != ""
}

// isUntagged tells whether a route is for a Node of a cluster of this name, and from before routes
// had the cluster's UID.
func (i *clusterIdentity) isUntagged(route *api.Route) bool {
	return route.Tags[contract.TagClusterUID] == "" && route.Tags[contract.TagCluster] == i.name &&
		route.Tags[contract.TagNode] != ""
}

// ownRoutes are those of the routes that are this cluster's. One whose tags lack the cluster's UID
// or its present name gets them; if that fails, it is tried again at the next round.
func (r *routes) ownRoutes(ctx context.Context, all []api.Route) ([]api.Route, error) {
	var own []api.Route
	instances, err := r.nodeInstances()
	if err != nil {
		return nil, err
	}
	for _, route := range all {
		if r.identity.ownsRoute(&route) || r.identity.isUntagged(&route) && instances.Has(route.InstanceID) {
			own = append(own, route)
		}
	}
	if err := r.tagRoutes(ctx, own); err != nil {
		klog.ErrorS(err, "Routes keep their old tags for now")
	}
	return own, nil
}

// nodeInstances are the IDs of the instances of the cluster's Nodes.
func (r *routes) nodeInstances() (sets.Set[string], error) {
	nodes, err := r.nodes.List(labels.Everything())
	if err != nil {
		return nil, fmt.Errorf("listing the Nodes of routes: %w", err)
	}
	instances := sets.New[string]()
	for _, node := range nodes {
		if id, err := parseProviderID(node.Spec.ProviderID); err == nil {
			instances.Insert(id)
		}
	}
	return instances, nil
}

// tagRoutes gives each of the cluster's routes the cluster's tags.
func (r *routes) tagRoutes(ctx context.Context, own []api.Route) error {
	updates, ctx := errgroup.WithContext(ctx)
	updates.SetLimit(routeUpdatesAtOnce)
	for i := range own {
		if r.hasClusterTags(&own[i]) {
			continue
		}
		updates.Go(func() error { return r.tagRoute(ctx, &own[i]) })
	}
	return updates.Wait()
}

func (r *routes) hasClusterTags(route *api.Route) bool {
	return r.identity.ownsRoute(route) && route.Tags[contract.TagCluster] == r.identity.name
}

// tagRoute gives a route the cluster's tags, unless the route has changed meanwhile.
func (r *routes) tagRoute(ctx context.Context, route *api.Route) error {
	tags := maps.Clone(route.Tags)
	tags[contract.TagCluster], tags[contract.TagClusterUID] = r.identity.name, r.identity.uid()
	klog.InfoS("Tagging a route of this cluster", "route", route.Name, "id", route.ID, "tagsBefore", route.Tags)
	tagged, err := r.api.UpdateRoute(client.IfMatch(ctx, route.Version), route.ID, api.ResourceUpdate{Tags: &tags})
	if err != nil {
		return fmt.Errorf("tagging route %s (%s): %w", route.Name, route.ID, err)
	}
	r.inventory.NoteRoute(*tagged)
	*route = *tagged
	return nil
}

// describeOwner says whose a route is, and what to do about it.
func (i *clusterIdentity) describeOwner(route *api.Route) string {
	node, cluster := route.Tags[contract.TagNode], route.Tags[contract.TagCluster]
	switch {
	case i.ownsRoute(route):
		return fmt.Sprintf("this cluster's node %s; it goes first", node)
	case cluster == "" || node == "":
		return "no node of a cluster; delete it if it is nobody's"
	case i.isUntagged(route):
		return fmt.Sprintf("node %s of a cluster %s, which may be another of that name: "+
			"the route leads to no instance of this one; delete it if it is nobody's", node, cluster)
	case cluster == i.name:
		cluster += fmt.Sprintf(" (another of that name, by its UID %s)", route.Tags[contract.TagClusterUID])
	}
	return fmt.Sprintf("node %s of cluster %s; give each cluster a range of its own", node, cluster)
}
