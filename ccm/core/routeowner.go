package core

// A route is the cluster's by the cluster's UID in its tags, as a balancer is: clusters may share
// a name. A route without that tag, of an older release, is adopted when it conflicts with the same
// route with it. All other routes are ignored.

import (
	"context"
	"errors"
	"fmt"
	"maps"

	"k8s.io/klog/v2"

	"github.com/ccmlab/ccmlab/ccm/contract"
	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
)

// errClusterUnknown means that the cluster's own routes cannot be told from others yet. None is
// created or deleted.
var errClusterUnknown = errors.New("this cluster's UID is not known yet")

// routeFilter is the filter of the cloud's list that the cluster's routes match. It fails as long as the UID is to
// be known.
func (c *Cluster) routeFilter() (string, error) {
	switch uid := c.UID(); {
	case uid != "":
		return contract.TagClusterUID + "=" + uid, nil
	case c.expectsUID.Load():
		return "", errClusterUnknown
	}
	return contract.TagCluster + "=" + c.name, nil
}

// ownsRoute tells whether a route is for a Node of this cluster.
func (c *Cluster) ownsRoute(route *api.Route) bool {
	uid := c.UID()
	if uid == "" && !c.expectsUID.Load() {
		return c.lacksUID(route)
	}
	return uid != "" && route.Tags[contract.TagClusterUID] == uid && route.Tags[contract.TagNode] != ""
}

// lacksUID tells whether a route is tagged with this cluster's name and a Node, and with no UID.
func (c *Cluster) lacksUID(route *api.Route) bool {
	return route.Tags[contract.TagClusterUID] == "" && route.Tags[contract.TagCluster] == c.name &&
		route.Tags[contract.TagNode] != ""
}

// adoptRoute gives a route that is as this cluster wants it the cluster's UID. If that fails, the
// route serves all the same, and the next round tries again.
func (r *routes) adoptRoute(ctx context.Context, route *api.Route) {
	if r.cluster.ownsRoute(route) {
		return
	}
	tags := maps.Clone(route.Tags)
	tags[contract.TagClusterUID] = r.cluster.UID()
	klog.InfoS("Adopting a route of this cluster", "route", route.Name, "id", route.ID, "tagsBefore", route.Tags)
	_, err := r.api.UpdateRoute(client.IfMatch(ctx, route.Version), route.ID, api.ResourceUpdate{Tags: &tags})
	if err != nil {
		klog.ErrorS(err, "Cannot adopt the route yet", "route", route.Name, "id", route.ID)
	}
}

// describeOwner says whose a route is, and what to do about it.
func (c *Cluster) describeOwner(route *api.Route) string {
	node, cluster := route.Tags[contract.TagNode], route.Tags[contract.TagCluster]
	switch {
	case c.ownsRoute(route):
		return fmt.Sprintf("this cluster's node %s and is deleted first", node)
	case cluster == "" || node == "":
		return "no node of a cluster; delete it if nobody needs it"
	case c.lacksUID(route):
		return fmt.Sprintf("node %s of a cluster named %s, which may be another one; "+
			"delete it if nobody needs it", node, cluster)
	case cluster == c.name:
		cluster += fmt.Sprintf(" (another cluster of that name, with UID %s)", route.Tags[contract.TagClusterUID])
	}
	return fmt.Sprintf("node %s of cluster %s; give each cluster its own range", node, cluster)
}
