package core

import (
	"errors"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	cloudprovider "k8s.io/cloud-provider"

	"github.com/ccmlab/ccmlab/ccm/contract"
	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
)

// clusterUID is that of the cluster whose routes are looked at.
const clusterUID = "uid-ours"

func newRoutes(t *testing.T, f *fakeAPI, nodes ...*corev1.Node) *routes {
	t.Helper()
	indexer := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{})
	for _, n := range nodes {
		require.NoError(t, indexer.Add(n))
	}
	return &routes{
		api: f, cluster: testCluster(clusterUID), instances: newInstances(f), nodes: corelisters.NewNodeLister(indexer),
	}
}

// route is what CreateRoute makes for node-1.
func route(change ...func(*api.Route)) api.Route {
	r := api.Route{
		Metadata: api.Metadata{ID: "r-1", Name: "node-1-10.244.1.0-24", Version: 1, Tags: api.Tags{
			contract.TagCluster: clusterName, contract.TagClusterUID: clusterUID, contract.TagNode: "node-1",
		}},
		Destination: "10.244.1.0/24", InstanceID: "i-1", State: api.RouteActive,
	}
	for _, c := range change {
		c(&r)
	}
	return r
}

func tagged(tag, value string) func(*api.Route) { return func(r *api.Route) { r.Tags[tag] = value } }

func untagged(tag string) func(*api.Route) { return func(r *api.Route) { delete(r.Tags, tag) } }

func wanted() *cloudprovider.Route {
	return &cloudprovider.Route{Name: "node-1-10.244.1.0-24", TargetNode: "node-1", DestinationCIDR: "10.244.1.0/24"}
}

func TestListRoutes(t *testing.T) {
	outdated := wanted()
	outdated.EnableNodeAddresses = true
	outdated.TargetNodeAddresses = []corev1.NodeAddress{{Type: corev1.NodeInternalDNS, Address: "i-1"}}
	gone := wanted()
	gone.TargetNode = "node-9"
	blackhole := route(func(r *api.Route) { r.State = api.RouteBlackhole })
	for name, tc := range map[string]struct {
		have api.Route
		err  error
		node string
		want []*cloudprovider.Route
	}{
		"its instance is stopped":       {blackhole, nil, byID, []*cloudprovider.Route{wanted()}},
		"its node is another instance":  {blackhole, nil, "fakecloud://i-2", []*cloudprovider.Route{outdated}},
		"its node is new":               {route(), nil, "", []*cloudprovider.Route{wanted()}},
		"its node is gone":              {route(tagged(contract.TagNode, "node-9")), nil, "", []*cloudprovider.Route{gone}},
		"one of a person":               {route(untagged(contract.TagNode)), nil, "", nil},
		"the filter was not understood": {route(tagged(contract.TagClusterUID, "uid-other")), nil, "", nil},
		"no part of a list that failed": {route(), errors.New("refused"), byID, nil},
	} {
		t.Run(name, func(t *testing.T) {
			list, err := newRoutes(t, &fakeAPI{listRoutes: func(f client.RouteFilter) ([]api.Route, error) {
				assert.Equal(t, client.RouteFilter{Tags: []string{contract.TagClusterUID + "=" + clusterUID}}, f)
				return []api.Route{tc.have}, tc.err
			}}, node(tc.node)).ListRoutes(t.Context(), clusterName)
			require.ErrorIs(t, err, tc.err)
			assert.Equal(t, tc.want, list)
		})
	}
}

func TestCreateRoute(t *testing.T) {
	wider := func(r *api.Route) {
		r.Name, r.Destination = "x", "10.244.0.0/16"
		r.Tags[contract.TagCluster], r.Tags[contract.TagClusterUID] = "blue", "uid-blue"
	}
	leadsTo := func(instance string) func(*api.Route) { return func(r *api.Route) { r.InstanceID = instance } }
	elsewhere := func(r *api.Route) { r.Name, r.Destination = "x", "10.9.0.0/24" }
	sameName := func(r *api.Route) { r.Destination = "192.0.2.0/24" }
	for name, tc := range map[string]struct {
		refusal api.ProblemCode // "" for none
		have    []api.Route
		listErr error
		fail    string
	}{
		"the others cannot be listed": {
			refusal: api.RouteConflict, listErr: errors.New("boom"),
			fail: "looking for the conflicting route: boom",
		},
		"the way is free": {},
		"it is there":     {refusal: api.RouteConflict, have: []api.Route{route()}},
		"it leads to the node's old instance": {
			refusal: api.RouteConflict, have: []api.Route{route(leadsTo("i-0"))},
			fail: "r-1 (node-1-10.244.1.0-24, 10.244.1.0/24 to instance i-0), which belongs to " +
				"this cluster's node node-1 and is deleted first",
		},
		"it is another node's": {
			refusal: api.RouteConflict, have: []api.Route{route(tagged(contract.TagNode, "node-9"))},
			fail: "this cluster's node node-9 and is deleted first",
		},
		"a wider one of another cluster": {
			refusal: api.RouteConflict, have: []api.Route{route(wider)},
			fail: "r-1 (x, 10.244.0.0/16 to instance i-1), which belongs to node node-1 of cluster blue; " +
				"give each cluster its own range",
		},
		"one of another cluster of that name": {
			refusal: api.RouteConflict, have: []api.Route{route(tagged(contract.TagClusterUID, "uid-other"))},
			fail: "to node node-1 of cluster lab (another cluster of that name, with UID uid-other); give each cluster",
		},
		"one without a UID, to another's instance": {
			refusal: api.RouteConflict, have: []api.Route{route(untagged(contract.TagClusterUID), leadsTo("i-9"))},
			fail: "to node node-1 of a cluster named lab, which may be another one; delete it",
		},
		"one of a person": {
			refusal: api.NameTaken, have: []api.Route{route(sameName, untagged(contract.TagNode))},
			fail: "to no node of a cluster",
		},
		"nothing is in sight": {
			refusal: api.RouteConflict, have: []api.Route{route(elsewhere)}, fail: "route-conflict",
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := &fakeAPI{getInstance: inState(api.InstanceRunning)}
			f.createRoute = func(r api.RouteCreate) (*api.Route, error) {
				made := route()
				assert.Equal(t, api.RouteCreate{
					Name: made.Name, Destination: made.Destination, InstanceID: made.InstanceID, Tags: &made.Tags,
				}, r)
				if tc.refusal != "" {
					return nil, problem(409, tc.refusal)
				}
				return &made, nil
			}
			if tc.refusal != "" {
				f.listRoutes = func(filter client.RouteFilter) ([]api.Route, error) {
					assert.Equal(t, client.RouteFilter{}, filter, "others' routes are looked at too")
					return tc.have, tc.listErr
				}
			}
			err := newRoutes(t, f, node(byID)).CreateRoute(t.Context(), clusterName, "hint", wanted())
			assertError(t, err, tc.fail)
		})
	}
}

// A route of an older release gets the cluster's UID when it is in the way of itself. It serves also if that fails.
func TestAdoptedRoutes(t *testing.T) {
	for _, failure := range []error{nil, problem(412, api.PreconditionFailed)} {
		var sent []api.ResourceUpdate
		f := &fakeAPI{
			getInstance: inState(api.InstanceRunning),
			createRoute: func(api.RouteCreate) (*api.Route, error) { return nil, problem(409, api.RouteConflict) },
			listRoutes: func(client.RouteFilter) ([]api.Route, error) {
				return []api.Route{route(untagged(contract.TagClusterUID))}, nil
			},
			updateRoute: func(_ string, u api.ResourceUpdate) (*api.Route, error) {
				sent = append(sent, u)
				return nil, failure
			},
		}
		require.NoError(t, newRoutes(t, f, node(byID)).CreateRoute(t.Context(), clusterName, "", wanted()))
		assert.Equal(t, []api.ResourceUpdate{{Tags: new(route().Tags)}}, sent)
	}
}

// A cluster that knows no UID has the routes of its name. While its UID is to come it does nothing.
func TestRoutesWithoutUID(t *testing.T) {
	f := &fakeAPI{listRoutes: func(f client.RouteFilter) ([]api.Route, error) {
		assert.Equal(t, client.RouteFilter{Tags: []string{contract.TagCluster + "=" + clusterName}}, f)
		return []api.Route{route(), route(untagged(contract.TagClusterUID), tagged(contract.TagNode, "node-9"))}, nil
	}}
	r := newRoutes(t, f, node(byID))
	r.cluster = testCluster("")
	list, err := r.ListRoutes(t.Context(), clusterName)
	require.NoError(t, err)
	require.Len(t, list, 1)
	assert.EqualValues(t, "node-9", list[0].TargetNode)

	f.listRoutes = nil
	r.cluster.ExpectUID()
	_, err = r.ListRoutes(t.Context(), clusterName)
	require.ErrorIs(t, err, errClusterUnknown)
	require.ErrorIs(t, r.CreateRoute(t.Context(), clusterName, "", wanted()), errClusterUnknown)
	require.ErrorIs(t, r.DeleteRoute(t.Context(), clusterName, wanted()), errClusterUnknown)
}

// A Node without a provider ID keeps a route that it has.
func TestIgnoredNodes(t *testing.T) {
	bare := node("")
	bare.Spec.Taints = nil
	r := newRoutes(t, &fakeAPI{listRoutes: func(client.RouteFilter) ([]api.Route, error) {
		return []api.Route{route()}, nil
	}})
	assert.True(t, r.IgnoresNode(bare))
	_, err := r.ListRoutes(t.Context(), clusterName)
	require.NoError(t, err)
	assert.False(t, r.IgnoresNode(bare))
	for id, want := range map[string]bool{"": false, byID: false, "aws:///eu/i-1": true} {
		assert.Equal(t, want, r.IgnoresNode(node(id)), id)
	}
}

// A Node's name is cut where it is too long for a route's, and what is left is a name that the cloud takes.
func TestRouteNames(t *testing.T) {
	validName := regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`)
	for cut := 190; cut <= 210; cut++ {
		for _, separator := range []string{".", "-"} {
			node := strings.Repeat("n", cut) + separator + "example"
			name := routeName(&cloudprovider.Route{TargetNode: types.NodeName(node), DestinationCIDR: "10.244.1.0/24"})
			assert.Regexp(t, validName, name)
			assert.LessOrEqual(t, len(name), 253)
		}
	}
}

func TestDeleteRoute(t *testing.T) {
	others := []api.Route{
		route(untagged(contract.TagNode)), route(tagged(contract.TagClusterUID, "uid-blue")),
		route(func(r *api.Route) { r.Destination = "10.244.9.0/24" }), route(func(r *api.Route) { r.Name = "x" }),
	}
	for name, tc := range map[string]struct {
		have         []api.Route
		list, remove error
		tries        int
		fail         string
	}{
		"there":          {have: append(others, route()), tries: 1},
		"gone meanwhile": {have: []api.Route{route()}, remove: problem(404, api.NotFound), tries: 1},
		"refused": {
			have: []api.Route{route()}, remove: errors.New("boom"), tries: 1,
			fail: "deleting route node-1-10.244.1.0-24 (r-1): boom",
		},
		"the list fails": {list: errors.New("boom"), fail: "boom"},
		"a person's, another cluster's, another range, another name": {have: others},
	} {
		t.Run(name, func(t *testing.T) {
			tries := 0
			f := &fakeAPI{listRoutes: func(client.RouteFilter) ([]api.Route, error) { return tc.have, tc.list }}
			f.deleteRoute = func(id string) error {
				tries++
				assert.Equal(t, "r-1", id)
				return tc.remove
			}
			assertError(t, newRoutes(t, f).DeleteRoute(t.Context(), clusterName, wanted()), tc.fail)
			assert.Equal(t, tc.tries, tries)
		})
	}
}

// What the cloud cannot route is told as that, without a call. A Node that has another range, which the cloud can
// route, is not held up by it: upstream would call its whole network unavailable.
func TestIPv6RangesCannotBeRouted(t *testing.T) {
	ipv6 := wanted()
	ipv6.DestinationCIDR = "fd00:10:244:1::/64"
	n := node(byID)
	n.Spec.PodCIDRs = []string{ipv6.DestinationCIDR}
	err := newRoutes(t, &fakeAPI{}, n).CreateRoute(t.Context(), clusterName, "", ipv6)
	require.ErrorContains(t, err, "the cloud routes IPv4 only")
	assert.Equal(t, contract.ReasonRouteNotSupported, CauseOf(err).Reason)

	n.Spec.PodCIDRs = append(n.Spec.PodCIDRs, "10.244.1.0/24")
	ctx, noticed := notices(t.Context())
	require.NoError(t, newRoutes(t, &fakeAPI{}, n).CreateRoute(ctx, clusterName, "", ipv6))
	assert.Equal(t, []string{contract.ReasonRouteNotSupported}, noticed())
}
