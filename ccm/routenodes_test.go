package ccm

// Upstream's route controller on top of routes: what the two make together, with and without
// the feature gate that has the controller reconcile only when Nodes change.

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	cloudprovider "k8s.io/cloud-provider"
	cloudproviderapi "k8s.io/cloud-provider/api"
	"k8s.io/cloud-provider/app"
	cloudcontrollerconfig "k8s.io/cloud-provider/app/config"
	"k8s.io/cloud-provider/names"
	featuregatetesting "k8s.io/component-base/featuregate/testing"
	controllersmetrics "k8s.io/component-base/metrics/prometheus/controllers"
	controllermanager "k8s.io/controller-manager/app"
	"k8s.io/controller-manager/pkg/features"

	"github.com/ccmlab/ccmlab/ccm/config"
	"github.com/ccmlab/ccmlab/ccm/contract"
	"github.com/ccmlab/ccmlab/ccm/core"
	"github.com/ccmlab/ccmlab/ccm/events"
	"github.com/ccmlab/ccmlab/ccm/guard"
	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
)

const clusterName, clusterUID = "lab", "cluster-uid"

// clients gives the same client to all; who asks for anything but ClientOrDie panics.
type clients struct {
	cloudprovider.ControllerClientBuilder
	kube kubernetes.Interface
}

func (c clients) ClientOrDie(string) kubernetes.Interface { return c.kube }

// routeTable is a cloud of routes, whose instances all run.
type routeTable struct {
	core.Cloud
	mu     sync.Mutex
	routes []api.Route
	made   int
	calls  []string // the changes asked for
}

func (c *routeTable) GetInstance(_ context.Context, id string) (*api.Instance, error) {
	return &api.Instance{ID: id, State: api.InstanceRunning}, nil
}

func (c *routeTable) ListInstances(context.Context, client.InstanceFilter) ([]api.Instance, error) {
	return nil, nil
}

// Follow is a stream that never opens.
func (c *routeTable) Follow(
	ctx context.Context, _ int64, _ func(api.Event) error, onBreak func(error), _ ...client.EventFilter,
) error {
	onBreak(errors.New("this fake has no events"))
	<-ctx.Done()
	return ctx.Err()
}

// route is the one of Node node-1 in this cluster, changed.
func route(changes ...func(*api.Route)) api.Route {
	r := api.Route{
		ID: "r-1", Name: "node-1-10.244.1.0-24", Destination: "10.244.1.0/24", InstanceID: "i-1", State: api.RouteActive,
		Tags: api.Tags{
			contract.TagCluster: clusterName, contract.TagClusterUID: clusterUID, contract.TagNode: "node-1",
		},
	}
	for _, change := range changes {
		change(&r)
	}
	return r
}

// otherRoute is one of Node "left-behind", which is gone, changed.
func otherRoute(n int, change func(*api.Route)) api.Route {
	return route(func(r *api.Route) {
		r.ID, r.Name, r.Destination = fmt.Sprint("r-", n), fmt.Sprint("other-", n), fmt.Sprintf("10.244.%d.0/24", n)
		r.Tags[contract.TagNode] = "left-behind"
	}, change)
}

func (c *routeTable) ListRoutes(_ context.Context, f client.RouteFilter) ([]api.Route, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(c.routes), func(r api.Route) bool {
		return slices.ContainsFunc(f.Tags, func(tag string) bool {
			key, value, given := strings.Cut(tag, "=")
			has, tagged := r.Tags[key]
			return !tagged || given && has != value
		})
	}), nil
}

func (c *routeTable) CreateRoute(_ context.Context, r api.RouteCreate) (*api.Route, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.calls = append(c.calls, "create "+r.Name+" to "+r.InstanceID)
	c.made++
	created := api.Route{
		ID: fmt.Sprint("r-made-", c.made), Name: r.Name, Destination: r.Destination, InstanceID: r.InstanceID,
		State: api.RouteActive, Tags: *r.Tags, Version: 1,
	}
	c.routes = append(c.routes, created)
	return &created, nil
}

func (c *routeTable) DeleteRoute(_ context.Context, id string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	i := slices.IndexFunc(c.routes, func(r api.Route) bool { return r.ID == id })
	c.calls = append(c.calls, "delete "+c.routes[i].Name)
	c.routes = slices.Delete(c.routes, i, i+1)
	return nil
}

// edit changes a route behind the controller's back.
func (c *routeTable) edit(name string, change func(*api.Route)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	i := slices.IndexFunc(c.routes, func(r api.Route) bool { return r.Name == name })
	change(&c.routes[i])
	c.routes[i].Version++
}

// takeCalls are the changes that were asked for since it was called last, within one period.
func (c *routeTable) takeCalls() []string {
	time.Sleep(routeResyncPeriod + time.Second)
	synctest.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	defer func() { c.calls = nil }()
	return c.calls
}

// routeWorld is the route controller as the program starts it, with a fake API server and cloud.
type routeWorld struct {
	t        *testing.T
	uncached bool
	late     bool // The controller starts after its informer.
	kube     *fake.Clientset
	cloud    *routeTable
	cluster  *core.Cluster
}

func newRouteWorld(t *testing.T, cloud *routeTable, nodes ...*corev1.Node) *routeWorld {
	w := &routeWorld{t: t, kube: fake.NewClientset(), cloud: cloud, cluster: core.NewCluster(clusterName)}
	for _, n := range nodes {
		require.NoError(t, w.kube.Tracker().Add(n.DeepCopy()))
	}
	return w
}

// withAndWithoutWatch runs test in a bubble with the feature gate off, and on. The range of the cluster's pods is
// 10.244.0.0/16, with fd00:10:244::/56 for a second family.
func withAndWithoutWatch(t *testing.T, name string, test func(t *testing.T)) {
	// The second of upstream's handlers of errors waits until its newest error, of the real time,
	// is a millisecond ago; in a bubble that takes decades.
	handlers := utilruntime.ErrorHandlers
	t.Cleanup(func() { utilruntime.ErrorHandlers = handlers })
	utilruntime.ErrorHandlers = handlers[:1]
	for _, on := range []bool{false, true} {
		t.Run(fmt.Sprint(name, " watch-based: ", on), func(t *testing.T) {
			featuregatetesting.SetFeatureGateDuringTest(
				t, utilfeature.DefaultFeatureGate, features.CloudControllerManagerWatchBasedRoutesReconciliation, on,
			)
			synctest.Test(t, test)
		})
	}
}

// start starts the controller by its constructor, and returns what stops it.
func (w *routeWorld) start() func() {
	c := w.newCloud()
	factory := informers.NewSharedInformerFactory(w.kube, 12*time.Hour) // Upstream's period.
	c.SetInformers(factory)
	cfg := &cloudcontrollerconfig.Config{ClientBuilder: clients{kube: w.kube}, SharedInformers: factory}
	shared := &cfg.ComponentConfig.KubeCloudShared
	shared.ConfigureCloudRoutes, shared.ClusterName = true, clusterName
	shared.ClusterCIDR = "10.244.0.0/16,fd00:10:244::/56"
	shared.RouteReconciliationPeriod.Duration = 10 * time.Second
	constructor := controllerConstructors()[names.NodeRouteController]
	start := constructor.Constructor(app.ControllerInitContext{ClientName: "x"}, cfg.Complete(), c)
	ctx, stop := context.WithCancel(w.t.Context())
	if w.late {
		factory.Start(ctx.Done())
		factory.WaitForCacheSync(ctx.Done())
	}
	following := make(chan struct{})
	go func() {
		defer close(following)
		if c.memory != nil {
			c.memory.Run(ctx)
		}
	}()
	_, started, err := start(ctx, controllermanager.ControllerContext{
		ControllerManagerMetrics: controllersmetrics.NewControllerManagerMetrics("test"),
	})
	require.NoError(w.t, err)
	require.True(w.t, started)
	factory.Start(ctx.Done())
	return func() {
		stop()
		<-following
		factory.Shutdown()
	}
}

func (w *routeWorld) newCloud() *cloud {
	c := &cloud{cluster: w.cluster, events: events.New()}
	var cloud core.Cloud = w.cloud
	if !w.uncached {
		c.memory = newMemory(w.cloud, w.cluster)
		cloud = c.memory
	}
	c.provider = core.New(cloud, w.cluster, core.Options{})
	c.nodes = guard.Limit(c.provider.Instances, config.MassDeletion{}, c.events)
	return c
}

// networkUnavailable is the status and reason of the Node's condition.
func (w *routeWorld) networkUnavailable(name string) string {
	n, err := w.kube.CoreV1().Nodes().Get(w.t.Context(), name, metav1.GetOptions{})
	require.NoError(w.t, err)
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeNetworkUnavailable {
			return fmt.Sprint(c.Status, " ", c.Reason)
		}
	}
	return "none"
}

func routedNode(name, instance string, ranges ...string) *corev1.Node {
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)},
		Spec:       corev1.NodeSpec{ProviderID: contract.ProviderID(instance), PodCIDR: ranges[0], PodCIDRs: ranges},
	}
}

// What is missing comes, what is left behind goes, and what is others' stays, as soon as it is known which cluster this
// is. What changes in the cloud alone is found at the next resync, also where nothing is remembered of the cloud, and
// where the controller starts long after its informer, as with leader migration.
func TestWithUpstreamsRouteController(t *testing.T) {
	others := []api.Route{
		otherRoute(9, func(r *api.Route) { delete(r.Tags, contract.TagNode) }),
		otherRoute(8, func(r *api.Route) { r.Tags[contract.TagClusterUID] = "uid-blue" }),
		otherRoute(7, func(r *api.Route) { r.Tags[contract.TagCluster] = "before" }), // ours under an earlier name
	}
	name := route().Name
	create := "create " + name + " to i-1"
	for situation, set := range map[string]func(w *routeWorld){
		"as ever":       func(*routeWorld) {},
		"without cache": func(w *routeWorld) { w.uncached = true },
		"started late":  func(w *routeWorld) { w.late = true },
		"UID unknown":   func(w *routeWorld) { w.cluster = core.NewCluster(clusterName); w.cluster.ExpectUID() },
	} {
		withAndWithoutWatch(t, situation, func(t *testing.T) {
			cloud := &routeTable{routes: slices.Clone(others)}
			w := newRouteWorld(t, cloud, routedNode("node-1", "i-1", "10.244.1.0/24"))
			w.cluster.SetUID(clusterUID)
			set(w)
			defer w.start()()
			if w.cluster.UID() == "" {
				assert.Empty(t, cloud.takeCalls())
				w.cluster.SetUID(clusterUID)
			}
			assert.ElementsMatch(t, []string{create, "delete other-7"}, cloud.takeCalls())
			assert.Equal(t, "False RouteCreated", w.networkUnavailable("node-1"))

			cloud.edit(name, func(r *api.Route) { r.InstanceID = "i-old" })
			assert.Equal(t, []string{"delete " + name, create}, cloud.takeCalls(), "the old one goes first")
			assert.Empty(t, cloud.takeCalls())
		})
	}
}

// A Node of another cloud, and one that nobody initializes, are not seen by the controller: they get neither a route
// nor the condition that keeps pods away. One that waits for its instance has that condition.
func TestNodesThatRoutesLeaveAlone(t *testing.T) {
	foreign, bare := routedNode("foreign", "", "10.244.2.0/24"), routedNode("bare", "", "10.244.3.0/24")
	waiting := routedNode("waiting", "", "10.244.4.0/24")
	foreign.Spec.ProviderID, bare.Spec.ProviderID, waiting.Spec.ProviderID = "onprem://edge1", "", ""
	waiting.Spec.Taints = []corev1.Taint{{Key: cloudproviderapi.TaintExternalCloudProvider}}
	withAndWithoutWatch(t, "", func(t *testing.T) {
		w := newRouteWorld(t, &routeTable{}, foreign, bare, waiting)
		w.cluster.SetUID(clusterUID)
		defer w.start()()
		assert.Empty(t, w.cloud.takeCalls())
		for name, want := range map[string]string{"foreign": "none", "bare": "none", "waiting": "True NoRouteCreated"} {
			assert.Equal(t, want, w.networkUnavailable(name), name)
		}
		// As soon as it is initialized it is a Node like any other.
		_, err := w.kube.CoreV1().Nodes().
			Update(t.Context(), routedNode("bare", "i-3", "10.244.3.0/24"), metav1.UpdateOptions{})
		require.NoError(t, err)
		assert.Equal(t, []string{"create bare-10.244.3.0-24 to i-3"}, w.cloud.takeCalls())
		assert.Equal(t, "False RouteCreated", w.networkUnavailable("bare"))
	})
}
