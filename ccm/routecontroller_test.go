package ccm

// Upstream's route controller on top of routes: what the two make together.

import (
	"context"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	routecontroller "k8s.io/cloud-provider/controllers/route"
	controllersmetrics "k8s.io/component-base/metrics/prometheus/controllers"

	"github.com/ccmlab/ccmlab/ccm/contract"
	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
)

// routeTable is a cloud of routes.
type routeTable struct {
	mu     sync.Mutex
	routes []api.Route
	calls  []string // the changes asked for
	lists  int
}

func (c *routeTable) ListRoutes(_ context.Context, f client.RouteFilter) ([]api.Route, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lists++
	return slices.DeleteFunc(slices.Clone(c.routes), func(r api.Route) bool {
		return f.Name != "" && r.Name != f.Name
	}), nil
}

func (c *routeTable) CreateRoute(_ context.Context, r api.RouteCreate) (*api.Route, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.calls = append(c.calls, "create "+r.Name+" to "+r.InstanceID)
	for _, have := range c.routes {
		if prefixesOverlap(have.Destination, r.Destination) {
			return nil, problem(409, api.RouteConflict, ourProject)
		}
	}
	created := api.Route{
		ID: "r-" + r.Name, Project: ourProject, Name: r.Name, Destination: r.Destination, InstanceID: r.InstanceID,
		State: api.RouteActive, Tags: *r.Tags,
	}
	c.routes = append(c.routes, created)
	return &created, nil
}

func (c *routeTable) DeleteRoute(_ context.Context, id string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.calls = append(c.calls, "delete "+id)
	c.routes = slices.DeleteFunc(c.routes, func(r api.Route) bool { return r.ID == id })
	return nil
}

// change edits the cloud behind the controller's back, and forgets the calls.
func (c *routeTable) change(edit func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.calls = nil
	edit()
}

// settle waits for some more rounds, and returns the changes asked for.
func (c *routeTable) settle(t *testing.T) []string {
	t.Helper()
	seen := func() int { c.mu.Lock(); defer c.mu.Unlock(); return c.lists }
	from := seen()
	require.Eventually(t, func() bool { return seen() >= from+8 }, 30*time.Second, 5*time.Millisecond)
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Sorted(slices.Values(c.calls))
}

func TestWithUpstreamsRouteController(t *testing.T) {
	nodeNamed := func(name, instance, cidr string) *corev1.Node {
		n := node("fakecloud://" + instance)
		n.ObjectMeta = metav1.ObjectMeta{Name: name, UID: n.UID}
		n.Spec.PodCIDR, n.Spec.PodCIDRs = cidr, []string{cidr}
		return n
	}
	kube := fake.NewClientset(nodeNamed("node-1", "i-1", "10.244.1.0/24"), nodeNamed("node-2", "i-2", "10.244.2.0/24"))
	cloud := &routeTable{routes: []api.Route{
		{
			ID: "r-person", Project: ourProject, Name: "mine", Destination: "10.244.9.0/24", InstanceID: "i-1",
			Tags: api.Tags{contract.TagCluster: clusterName},
		},
		{
			ID: "r-blue", Project: ourProject, Name: "blue", Destination: "10.244.8.0/24", InstanceID: "i-1",
			Tags: api.Tags{contract.TagCluster: "blue", contract.TagNode: "node-1"},
		},
		{
			ID: "r-left", Project: ourProject, Name: "left-behind", Destination: "10.244.7.0/24", InstanceID: "i-7",
			State: api.RouteBlackhole, Tags: api.Tags{contract.TagCluster: clusterName, contract.TagNode: "node-7"},
		},
	}}
	f := &fakeAPI{t: t, project: ours, getInstance: func(id string) (*api.Instance, error) {
		i := instance(api.InstanceRunning)
		i.ID = id
		return &i, nil
	}}
	factory := informers.NewSharedInformerFactory(kube, 0)
	i := newInstances(f)
	r := &routes{
		api: cloud, project: i.project, inventory: forgetful{routes: cloud}, instances: i, explain: i.explain,
		nodes: factory.Core().V1().Nodes().Lister(),
	}
	_, cidr, err := net.ParseCIDR("10.244.0.0/16")
	require.NoError(t, err)
	controller, err := routecontroller.New(r, kube, factory.Core().V1().Nodes(), clusterName, []*net.IPNet{cidr})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	factory.Start(ctx.Done())
	go func() {
		defer close(done)
		controller.Run(ctx, 10*time.Millisecond, controllersmetrics.NewControllerManagerMetrics("test"))
	}()
	defer func() { cancel(); <-done; factory.Shutdown() }()

	create1, create2 := "create node-1-10.244.1.0-24 to i-1", "create node-2-10.244.2.0-24 to i-2"
	assert.Equal(
		t, []string{create1, create2, "delete r-left"}, cloud.settle(t),
		"what is missing comes, what is left behind goes, what is others' stays",
	)
	assert.Eventually(t, func() bool {
		n, err := kube.CoreV1().Nodes().Get(ctx, "node-2", metav1.GetOptions{})
		return err == nil && slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
			return c.Type == corev1.NodeNetworkUnavailable && c.Status == corev1.ConditionFalse
		})
	}, 30*time.Second, 5*time.Millisecond)

	find := func(name string) int {
		return slices.IndexFunc(cloud.routes, func(r api.Route) bool { return r.Name == name })
	}
	cloud.change(func() { n := find("node-1-10.244.1.0-24"); cloud.routes = slices.Delete(cloud.routes, n, n+1) })
	assert.Equal(t, []string{create1}, cloud.settle(t), "deleted by hand, it comes back")

	cloud.change(func() { cloud.routes[find("node-1-10.244.1.0-24")].State = api.RouteBlackhole })
	assert.Empty(t, cloud.settle(t), "a stopped instance's route is left in peace")

	cloud.change(func() { cloud.routes[find("node-2-10.244.2.0-24")].InstanceID = "i-old" })
	assert.Equal(
		t, []string{create2, "delete r-node-2-10.244.2.0-24"}, cloud.settle(t),
		"a node that became another instance gets a new route",
	)

	cloud.change(func() {})
	require.NoError(t, kube.CoreV1().Nodes().Delete(ctx, "node-2", metav1.DeleteOptions{}))
	require.Eventually(t, func() bool {
		_, err := r.nodes.Get("node-2")
		return err != nil
	}, 30*time.Second, 5*time.Millisecond)
	assert.Equal(t, []string{"delete r-node-2-10.244.2.0-24"}, cloud.settle(t), "and with the node its route goes")
}
