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

	"github.com/ccmlab/ccmlab/ccm/contract"
	"github.com/ccmlab/ccmlab/ccm/core"
	"github.com/ccmlab/ccmlab/ccm/events"
	"github.com/ccmlab/ccmlab/ccm/guard"
	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
)

const clusterName, clusterUID = "lab", "cluster-uid"

// unknownCluster is the test's cluster before its UID is known.
func unknownCluster() *core.Cluster {
	cluster := core.NewCluster(clusterName)
	cluster.ExpectUID()
	return cluster
}

func knownCluster() *core.Cluster {
	cluster := unknownCluster()
	cluster.SetUID(clusterUID)
	return cluster
}

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
	calls  []string         // the changes asked for
	refuse map[string]error // by the kind of change, "create" or "tag"
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

// refusal is an answer of the cloud.
func refusal(status int, code api.ProblemCode) error {
	return &client.Error{Status: status, Problem: api.Problem{Status: status, Code: code, Project: new("p-ours")}}
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

func tagged(key, value string) func(*api.Route) { return func(r *api.Route) { r.Tags[key] = value } }
func untagged(key string) func(*api.Route)      { return func(r *api.Route) { delete(r.Tags, key) } }

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
	if err := c.refuse["create"]; err != nil {
		return nil, err
	}
	for _, have := range c.routes {
		if have.Destination == r.Destination {
			return nil, refusal(409, api.RouteConflict)
		}
	}
	created := api.Route{
		ID: "r-" + r.Name, Name: r.Name, Destination: r.Destination, InstanceID: r.InstanceID,
		State: api.RouteActive, Tags: *r.Tags, Version: 1,
	}
	c.made++
	created.ID += fmt.Sprint("-", c.made) // No ID is given twice.
	c.routes = append(c.routes, created)
	return &created, nil
}

func (c *routeTable) UpdateRoute(_ context.Context, id string, u api.ResourceUpdate) (*api.Route, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	i := slices.IndexFunc(c.routes, func(r api.Route) bool { return r.ID == id })
	if i < 0 {
		return nil, refusal(404, api.NotFound)
	}
	c.calls = append(c.calls, "tag "+c.routes[i].Name)
	if err := c.refuse["tag"]; err != nil {
		return nil, err
	}
	c.routes[i].Tags = *u.Tags
	c.routes[i].Version++
	updated := c.routes[i]
	return &updated, nil
}

func (c *routeTable) DeleteRoute(_ context.Context, id string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	i := slices.IndexFunc(c.routes, func(r api.Route) bool { return r.ID == id })
	if i < 0 {
		return refusal(404, api.NotFound)
	}
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

func (c *routeTable) setRefusal(kind string, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.refuse = map[string]error{kind: err}
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

func newRouteWorld(t *testing.T, cloud *routeTable, cluster *core.Cluster, nodes ...*corev1.Node) *routeWorld {
	w := &routeWorld{t: t, kube: fake.NewClientset(), cloud: cloud, cluster: cluster}
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
	c.nodes = guard.Limit(c.provider.Instances, guard.Limits{}, c.events)
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

// What is missing comes, what is left behind goes, and what is others' stays. What changes in the cloud alone is found
// at the next resync, also where nothing is remembered of the cloud, and where the controller starts long after its
// informer, as with leader migration.
func TestWithUpstreamsRouteController(t *testing.T) {
	other := func(n int, change func(*api.Route)) api.Route {
		return route(change, func(r *api.Route) {
			r.ID, r.Name = fmt.Sprint("r-", n), fmt.Sprint("other-", n)
			r.Destination = fmt.Sprintf("10.244.%d.0/24", n)
		})
	}
	others := []api.Route{
		other(9, untagged(contract.TagNode)), other(8, tagged(contract.TagClusterUID, "uid-blue")),
		other(7, func(r *api.Route) { // of the cluster under an earlier name
			r.Tags[contract.TagNode], r.Tags[contract.TagCluster] = "left-behind", "before"
		}),
	}
	name := route().Name
	create := "create " + name + " to i-1"
	for situation, set := range map[string]func(w *routeWorld){
		"as ever":       func(*routeWorld) {},
		"without cache": func(w *routeWorld) { w.uncached = true },
		"started late":  func(w *routeWorld) { w.late = true },
	} {
		withAndWithoutWatch(t, situation, func(t *testing.T) {
			cloud := &routeTable{routes: slices.Clone(others)}
			w := newRouteWorld(t, cloud, knownCluster(), routedNode("node-1", "i-1", "10.244.1.0/24"))
			set(w)
			defer w.start()()
			assert.ElementsMatch(t, []string{create, "delete other-7"}, cloud.takeCalls())
			assert.Equal(t, "False RouteCreated", w.networkUnavailable("node-1"))

			cloud.edit(name, func(r *api.Route) { r.InstanceID = "i-old" })
			assert.Equal(t, []string{"delete " + name, create}, cloud.takeCalls(), "the old one goes first")
			assert.Empty(t, cloud.takeCalls())
		})
	}
}

// A Node of another cloud, and one that nobody initializes, get neither a route nor the condition that
// keeps pods away. One that waits for its instance has that condition, and one that has a route keeps it.
func TestNodesThatRoutesLeaveAlone(t *testing.T) {
	foreign, bare := routedNode("foreign", "", "10.244.2.0/24"), routedNode("bare", "", "10.244.3.0/24")
	waiting, routed := routedNode("waiting", "", "10.244.4.0/24"), routedNode("node-1", "", "10.244.1.0/24")
	foreign.Spec.ProviderID, bare.Spec.ProviderID, waiting.Spec.ProviderID = "onprem://edge1", "", ""
	routed.Spec.ProviderID = ""
	waiting.Spec.Taints = []corev1.Taint{{Key: cloudproviderapi.TaintExternalCloudProvider}}
	strayed := route(tagged(contract.TagNode, "foreign"), func(r *api.Route) {
		r.ID, r.Name, r.Destination, r.InstanceID = "r-2", "foreign-10.244.2.0-24", "10.244.2.0/24", "i-2"
	})
	withAndWithoutWatch(t, "", func(t *testing.T) {
		cloud := &routeTable{routes: []api.Route{route(), strayed}}
		w := newRouteWorld(t, cloud, knownCluster(), foreign, bare, waiting, routed)
		defer w.start()()
		assert.Equal(t, []string{"delete " + strayed.Name}, cloud.takeCalls(), "nothing of ours leads to other clouds")
		for name, want := range map[string]string{
			"foreign": "none", "bare": "none", "waiting": "True NoRouteCreated", "node-1": "False RouteCreated",
		} {
			assert.Equal(t, want, w.networkUnavailable(name), name)
		}
		events, err := w.kube.CoreV1().Events("").List(t.Context(), metav1.ListOptions{})
		require.NoError(t, err)
		for _, ev := range events.Items {
			assert.Equal(t, "waiting", ev.InvolvedObject.Name, "%s %s", ev.Reason, ev.Message)
		}
		// The last route goes, and with it the reason to see its Node.
		require.NoError(t, cloud.DeleteRoute(t.Context(), "r-1"))
		assert.Len(t, cloud.takeCalls(), 1)
		assert.Equal(t, "False RouteCreated", w.networkUnavailable("node-1"))

		// As soon as it is initialized it is a Node like any other.
		_, err = w.kube.CoreV1().Nodes().
			Update(t.Context(), routedNode("bare", "i-3", "10.244.3.0/24"), metav1.UpdateOptions{})
		require.NoError(t, err)
		assert.Equal(t, []string{"create bare-10.244.3.0-24 to i-3"}, cloud.takeCalls())
		assert.Equal(t, "False RouteCreated", w.networkUnavailable("bare"))
	})
}

// A route from before they had the cluster's UID is taken over when it is in the way of the same one,
// if not at once then later. What another cluster of that name has, or had, stays as it is. As long as it is not
// known which cluster this is, nothing is done.
func TestUntaggedRoutesAreTakenOver(t *testing.T) {
	old := route(untagged(contract.TagClusterUID))
	ofOthers := route(untagged(contract.TagClusterUID), tagged(contract.TagNode, "node-9"), func(r *api.Route) {
		r.ID, r.Name, r.Destination, r.InstanceID = "r-9", "node-9-10.244.9.0-24", "10.244.9.0/24", "i-9"
	})
	attempt := []string{"create " + old.Name + " to i-1", "tag " + old.Name}
	withAndWithoutWatch(t, "", func(t *testing.T) {
		cloud := &routeTable{routes: []api.Route{old, ofOthers}}
		w := newRouteWorld(t, cloud, unknownCluster(), routedNode("node-1", "i-1", "10.244.1.0/24"))
		cloud.setRefusal("tag", refusal(503, api.Internal))
		stop := w.start()
		assert.Empty(t, cloud.takeCalls())
		w.cluster.SetUID(clusterUID)
		assert.Equal(t, attempt, cloud.takeCalls()[:2])
		assert.Equal(t, "False RouteCreated", w.networkUnavailable("node-1"))
		cloud.setRefusal("tag", nil)
		assert.Equal(t, attempt, cloud.takeCalls())
		assert.Empty(t, cloud.takeCalls())
		stop()
		assert.Equal(t, route().Tags, cloud.routes[0].Tags)
		assert.Equal(t, ofOthers, cloud.routes[1])
	})
}
