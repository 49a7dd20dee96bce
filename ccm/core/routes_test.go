package core

import (
	"context"
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
		ID: "r-1", Name: "node-1-10.244.1.0-24", Destination: "10.244.1.0/24", InstanceID: "i-1",
		State: api.RouteActive, Version: 1, Tags: api.Tags{
			contract.TagCluster: clusterName, contract.TagClusterUID: clusterUID, contract.TagNode: "node-1",
		},
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

func hasRoutes(r ...api.Route) func(client.RouteFilter) ([]api.Route, error) {
	return func(client.RouteFilter) ([]api.Route, error) { return r, nil }
}

func TestListRoutes(t *testing.T) {
	blackhole := func(r *api.Route) { r.State = api.RouteBlackhole }
	outdated := wanted()
	outdated.EnableNodeAddresses = true
	outdated.TargetNodeAddresses = []corev1.NodeAddress{{Type: corev1.NodeInternalDNS, Address: "i-1"}}
	elsewhere := wanted()
	elsewhere.TargetNode = "node-9"
	for name, tc := range map[string]struct {
		have []api.Route
		err  error
		node string
		want []*cloudprovider.Route
		fail string
	}{
		"none": {},
		"one": {
			have: []api.Route{route()}, node: "fakecloud://i-1", want: []*cloudprovider.Route{wanted()},
		},
		"its instance is stopped": {
			have: []api.Route{route(blackhole)}, node: "fakecloud://i-1", want: []*cloudprovider.Route{wanted()},
		},
		"its node is another instance": {
			have: []api.Route{route(blackhole)}, node: "fakecloud://i-2", want: []*cloudprovider.Route{outdated},
		},
		"its node is new": {have: []api.Route{route()}, want: []*cloudprovider.Route{wanted()}},
		"its node is gone": {
			have: []api.Route{route(tagged(contract.TagNode, "node-9"))}, want: []*cloudprovider.Route{elsewhere},
		},
		"one of a person":               {have: []api.Route{route(untagged(contract.TagNode))}},
		"the filter was not understood": {have: []api.Route{route(tagged(contract.TagClusterUID, "uid-other"))}},
		"the cloud is down":             {err: errors.New("refused"), fail: "refused"},
	} {
		t.Run(name, func(t *testing.T) {
			list, err := newRoutes(t, &fakeAPI{listRoutes: func(f client.RouteFilter) ([]api.Route, error) {
				assert.Equal(t, client.RouteFilter{Tags: []string{contract.TagClusterUID + "=" + clusterUID}}, f)
				return tc.have, tc.err
			}}, node(tc.node)).ListRoutes(t.Context(), clusterName)
			if tc.fail != "" {
				require.ErrorContains(t, err, tc.fail)
				assert.Nil(t, list, "no part of a list that failed")
				return
			}
			require.NoError(t, err)
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
		fail    string
	}{
		"the way is free":          {},
		"it is there":              {refusal: api.RouteConflict, have: []api.Route{route()}},
		"it is there, by its name": {refusal: api.NameTaken, have: []api.Route{route()}},
		"it leads to the node's old instance": {
			refusal: api.RouteConflict, have: []api.Route{route(leadsTo("i-0"))},
			fail: "r-1 (node-1-10.244.1.0-24, 10.244.1.0/24 to instance i-0), which belongs to " +
				"this cluster's node node-1 and is deleted first",
		},
		"it leads to another node": {
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
		"the instance has ended": {
			refusal: api.UnknownInstance, fail: "routing 10.244.1.0/24 to instance i-1: unknown-instance",
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
			if tc.have != nil {
				f.listRoutes = func(filter client.RouteFilter) ([]api.Route, error) {
					assert.Equal(t, client.RouteFilter{}, filter, "others' routes are looked at too")
					return tc.have, nil
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
		f := &fakeAPI{getInstance: inState(api.InstanceRunning)}
		f.createRoute = func(api.RouteCreate) (*api.Route, error) {
			return nil, problem(409, api.RouteConflict)
		}
		f.listRoutes = hasRoutes(route(untagged(contract.TagClusterUID)))
		updates := 0
		f.updateRoute = func(id string, u api.ResourceUpdate) (*api.Route, error) {
			updates++
			want := route()
			assert.Equal(t, want.ID, id)
			assert.Equal(t, api.ResourceUpdate{Tags: &want.Tags}, u)
			return &want, failure
		}
		require.NoError(t, newRoutes(t, f, node(byID)).CreateRoute(t.Context(), clusterName, "", wanted()))
		assert.Equal(t, 1, updates)
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
	r := newRoutes(t, &fakeAPI{listRoutes: hasRoutes(route())})
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
	for name, tc := range map[string]struct {
		have   []api.Route
		list   error
		remove error
		want   []string
		fail   string
	}{
		"there":     {have: []api.Route{route()}, want: []string{"r-1"}},
		"not there": {},
		"gone meanwhile": {
			have: []api.Route{route()}, remove: problem(404, api.NotFound), want: []string{"r-1"},
		},
		"refused": {
			have: []api.Route{route()}, remove: errors.New("boom"), want: []string{"r-1"},
			fail: "deleting route node-1-10.244.1.0-24 (r-1): boom",
		},
		"the list fails": {list: errors.New("boom"), fail: "boom"},
		"a person's, another cluster's, another range, another name": {have: []api.Route{
			route(untagged(contract.TagNode)), route(tagged(contract.TagClusterUID, "uid-blue")),
			route(func(r *api.Route) { r.Destination = "10.244.9.0/24" }), route(func(r *api.Route) { r.Name = "x" }),
		}},
	} {
		t.Run(name, func(t *testing.T) {
			f := &fakeAPI{listRoutes: func(f client.RouteFilter) ([]api.Route, error) {
				assert.Equal(t, client.RouteFilter{Tags: []string{contract.TagClusterUID + "=" + clusterUID}}, f)
				return tc.have, tc.list
			}}
			var deleted []string
			f.deleteRoute = func(id string) error { deleted = append(deleted, id); return tc.remove }
			err := newRoutes(t, f).DeleteRoute(t.Context(), clusterName, wanted())
			assertError(t, err, tc.fail)
			assert.Equal(t, tc.want, deleted)
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
	told := noticesOf(t, func(ctx context.Context) {
		require.NoError(t, newRoutes(t, &fakeAPI{}, n).CreateRoute(ctx, clusterName, "", ipv6))
	})
	require.Len(t, told, 1)
	assert.Equal(t, contract.ReasonRouteNotSupported, told[0].Reason)
	assert.Equal(t, "Route fd00:10:244:1::/64 is missing: the cloud routes IPv4 only", told[0].Message)
}
