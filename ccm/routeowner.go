package ccm

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

// ownsRoute tells whether a route is for a Node of this cluster.
func (i *clusterIdentity) ownsRoute(route *api.Route) bool {
	uid := i.uid()
	return uid != "" && route.Tags[contract.TagClusterUID] == uid && route.Tags[contract.TagNode] != ""
}

// isUntagged tells whether a route is for a Node of a cluster of this name, and lacks the UID.
func (i *clusterIdentity) isUntagged(route *api.Route) bool {
	return route.Tags[contract.TagClusterUID] == "" && route.Tags[contract.TagCluster] == i.name &&
		route.Tags[contract.TagNode] != ""
}

// adoptRoute gives a route that is as this cluster wants it the cluster's UID. If that fails, the
// route serves all the same, and the next round tries again.
func (r *routes) adoptRoute(ctx context.Context, route *api.Route) {
	if r.identity.ownsRoute(route) {
		return
	}
	tags := maps.Clone(route.Tags)
	tags[contract.TagClusterUID] = r.identity.uid()
	klog.InfoS("Adopting a route of this cluster", "route", route.Name, "id", route.ID, "tagsBefore", route.Tags)
	_, err := r.api.UpdateRoute(client.IfMatch(ctx, route.Version), route.ID, api.ResourceUpdate{Tags: &tags})
	if err != nil {
		klog.ErrorS(err, "Cannot adopt the route yet", "route", route.Name, "id", route.ID)
	}
}

// describeOwner says whose a route is, and what to do about it.
func (i *clusterIdentity) describeOwner(route *api.Route) string {
	node, cluster := route.Tags[contract.TagNode], route.Tags[contract.TagCluster]
	switch {
	case i.ownsRoute(route):
		return fmt.Sprintf("this cluster's node %s and is deleted first", node)
	case cluster == "" || node == "":
		return "no node of a cluster; delete it if nobody needs it"
	case i.isUntagged(route):
		return fmt.Sprintf("node %s of a cluster named %s, which may be another one; "+
			"delete it if nobody needs it", node, cluster)
	case cluster == i.name:
		cluster += fmt.Sprintf(" (another cluster of that name, with UID %s)", route.Tags[contract.TagClusterUID])
	}
	return fmt.Sprintf("node %s of cluster %s; give each cluster its own range", node, cluster)
}
