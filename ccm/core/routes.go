package core

// Routes lead from the cloud to the pods, one for each Node and range. Upstream's route controller deletes each listed
// route that no Node wants, and creates each that is missing. A route names its Node in its tags, so the list takes
// one call, and no doubt about instances can cost a route.
//
// A route is the cluster's by the cluster's UID in its tags: clusters may share a name. A route without that tag, of
// an older release, is adopted when it conflicts with the same route with it. All other routes are ignored.

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	corelisters "k8s.io/client-go/listers/core/v1"
	cloudprovider "k8s.io/cloud-provider"
	"k8s.io/klog/v2"
	utilnet "k8s.io/utils/net"

	"github.com/ccmlab/ccmlab/ccm/contract"
	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
)

// routes answers the route controller.
type routes struct {
	api       Cloud
	cluster   *Cluster
	instances *instances
	nodes     corelisters.NodeLister // set before the controllers start
	// routedNodes are the names of the Nodes that have routes, by the last list.
	routedNodes atomic.Pointer[sets.Set[string]]
}

// Follow sets where Nodes are looked up.
func (r *routes) Follow(nodes corelisters.NodeLister) { r.nodes = nodes }

// ListRoutes lists the cluster's routes, all of them or none.
//
// None is called a blackhole, whatever the cloud calls it: upstream deletes blackholes, and creates them again in its
// next round, which may be half a day away. Instead, the route of a stopped instance waits for its start, one of an
// ended instance is deleted with its Node, and one whose Node has become another instance is replaced.
func (r *routes) ListRoutes(ctx context.Context, cluster string) ([]*cloudprovider.Route, error) {
	found, err := r.listOwnRoutes(ctx)
	if err != nil {
		return nil, fmt.Errorf("listing the routes of cluster %s: %w", cluster, err)
	}
	routed := sets.New[string]()
	var outdated, current []*cloudprovider.Route
	for _, route := range found {
		node := route.Tags[contract.TagNode]
		routed.Insert(node)
		listed := &cloudprovider.Route{
			Name: route.Name, TargetNode: types.NodeName(node), DestinationCIDR: route.Destination,
		}
		if !r.isOutdated(&route) {
			current = append(current, listed)
			continue
		}
		// Addresses that the Node does not have tell upstream to delete the route and to
		// create it anew, in one round and in this order if the list begins with such a one.
		listed.EnableNodeAddresses = true
		listed.TargetNodeAddresses = []corev1.NodeAddress{{Type: corev1.NodeInternalDNS, Address: route.InstanceID}}
		outdated = append(outdated, listed)
	}
	r.routedNodes.Store(&routed)
	return append(outdated, current...), nil
}

// listOwnRoutes are the routes of this cluster.
func (r *routes) listOwnRoutes(ctx context.Context) ([]api.Route, error) {
	filter, err := r.cluster.routeFilter()
	if err != nil {
		return nil, err
	}
	found, err := r.api.ListRoutes(ctx, client.RouteFilter{Tags: []string{filter}})
	return slices.DeleteFunc(found, func(route api.Route) bool { return !r.cluster.ownsRoute(&route) }), err
}

// IgnoresNode tells whether the Node is not ours, so that it gets no route and the route controller
// does not see it. A Node without a provider ID keeps a route that it has.
func (r *routes) IgnoresNode(node *corev1.Node) bool {
	err := CheckOwnNode(node)
	if errors.Is(err, errNoProviderID) {
		routed := r.routedNodes.Load()
		return routed == nil || !routed.Has(node.Name)
	}
	return err != nil
}

// CreateRoute makes a route in one call.
func (r *routes) CreateRoute(ctx context.Context, _, _ string, route *cloudprovider.Route) error {
	node, err := r.nodes.Get(string(route.TargetNode))
	if err != nil {
		return err
	}
	if _, err := r.cluster.routeFilter(); err != nil {
		return err // Upstream tries again: ListRoutes fails with the same error.
	}
	if utilnet.IsIPv6CIDRString(route.DestinationCIDR) {
		if slices.ContainsFunc(node.Spec.PodCIDRs, utilnet.IsIPv4CIDRString) {
			// An error would have upstream call the Node's whole network unavailable,
			// although its other range has a route.
			notify(ctx, contract.ReasonRouteNotSupported, "Route %s is missing: %v", route.DestinationCIDR, errOnlyIPv4)
			return nil
		}
		return errOnlyIPv4
	}
	return r.createRoute(ctx, node, route)
}

// errOnlyIPv4 lasts: a retry does not help.
var errOnlyIPv4 = newReasonError(contract.ReasonRouteNotSupported, "the cloud routes IPv4 only")

// createRoute makes a route. One that is already as it should be will do: the list that lacked it may have been stale.
func (r *routes) createRoute(ctx context.Context, node *corev1.Node, route *cloudprovider.Route) error {
	instance, err := r.instances.FindInstance(ctx, node)
	if err != nil {
		return fmt.Errorf("finding the instance for route %s: %w", route.DestinationCIDR, err)
	}
	want := api.RouteCreate{
		Name: routeName(route), Destination: route.DestinationCIDR, InstanceID: instance.ID,
		Tags: &api.Tags{contract.TagCluster: r.cluster.name, contract.TagNode: node.Name},
	}
	if uid := r.cluster.UID(); uid != "" {
		(*want.Tags)[contract.TagClusterUID] = uid
	}
	klog.InfoS("Creating route", "node", klog.KObj(node), "destination", want.Destination, "instance", want.InstanceID)
	_, err = r.api.CreateRoute(ctx, want)
	if client.HasCode(err, api.RouteConflict) || client.HasCode(err, api.NameTaken) {
		err = r.resolveConflict(ctx, want, err)
	}
	if err != nil {
		return fmt.Errorf("routing %s to instance %s: %w", want.Destination, want.InstanceID, err)
	}
	return nil
}

// resolveConflict names the conflicting route. If the cloud already has the wanted route, it adopts
// that one if it is untagged.
func (r *routes) resolveConflict(ctx context.Context, want api.RouteCreate, refusal error) error {
	all, err := r.api.ListRoutes(ctx, client.RouteFilter{})
	if err != nil {
		return fmt.Errorf("%w; looking for the conflicting route: %w", refusal, err)
	}
	for _, have := range all {
		switch {
		case have.Name != want.Name && !prefixesOverlap(have.Destination, want.Destination):
		case (r.cluster.ownsRoute(&have) || r.cluster.lacksUID(&have)) &&
			have.Tags[contract.TagNode] == (*want.Tags)[contract.TagNode] &&
			have.Destination == want.Destination && have.InstanceID == want.InstanceID:
			r.adoptRoute(ctx, &have)
			return nil
		default:
			return &reasonError{contract.ReasonRouteConflict, have.ID, fmt.Errorf(
				"it conflicts with route %s (%s, %s to instance %s), which belongs to %s",
				have.ID, have.Name, have.Destination, have.InstanceID, r.cluster.describeOwner(&have))}
		}
	}
	return refusal
}

// DeleteRoute deletes what ListRoutes listed, if it is still there.
func (r *routes) DeleteRoute(ctx context.Context, _ string, route *cloudprovider.Route) error {
	found, err := r.listOwnRoutes(ctx)
	if err != nil {
		return fmt.Errorf("looking for route %s: %w", route.Name, err)
	}
	n := slices.IndexFunc(found, func(have api.Route) bool {
		return have.Name == route.Name && have.Destination == route.DestinationCIDR
	})
	if n < 0 {
		return nil
	}
	if err := r.api.DeleteRoute(ctx, found[n].ID); err != nil && !client.IsNotFound(err) {
		return fmt.Errorf("deleting route %s (%s): %w", route.Name, found[n].ID, err)
	}
	return nil
}

// isOutdated tells whether the route's Node is now known to be another instance.
func (r *routes) isOutdated(route *api.Route) bool {
	node, err := r.nodes.Get(route.Tags[contract.TagNode])
	if err != nil {
		return false // Upstream deletes routes without a Node by itself.
	}
	id, err := parseProviderID(node.Spec.ProviderID)
	return err == nil && id != route.InstanceID
}

// routeName is "<node>-<range>", unique as ranges are, and the same each time. A Node's name that is cut does not
// end with a dot: in the cloud, letters or digits stand on both sides of one.
func routeName(route *cloudprovider.Route) string {
	node := string(route.TargetNode)
	node = strings.TrimSuffix(node[:min(len(node), 200)], ".")
	return node + "-" + strings.NewReplacer("/", "-", ":", "-").Replace(route.DestinationCIDR)
}

func prefixesOverlap(a, b string) bool {
	x, errX := netip.ParsePrefix(a)
	y, errY := netip.ParsePrefix(b)
	return errX == nil && errY == nil && x.Overlaps(y)
}

// errClusterUnknown means that the cluster's own routes cannot be told from others yet. None is created or deleted.
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
