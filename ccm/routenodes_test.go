package ccm

// Upstream's route controller on top of routes: what the two make together, with and without
// the feature gate that has the controller reconcile only when Nodes change.

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	cloudprovider "k8s.io/cloud-provider"
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

func (c *routeTable) ListRoutes(context.Context, client.RouteFilter) ([]api.Route, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.routes), nil
}

func (c *routeTable) CreateRoute(_ context.Context, r api.RouteCreate) (*api.Route, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.calls = append(c.calls, "create "+r.Name+" to "+r.InstanceID)
	c.made++
	created := api.Route{
		Metadata:    api.Metadata{ID: fmt.Sprint("r-made-", c.made), Name: r.Name, Tags: *r.Tags, Version: 1},
		Destination: r.Destination, InstanceID: r.InstanceID, State: api.RouteActive,
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

// divert has the only route lead elsewhere, behind the controller's back.
func (c *routeTable) divert() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.routes[0].InstanceID = "i-old"
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

// startRouteController starts the route controller as the program does, and returns what stops it. If it is late its
// informer runs already, as with leader migration.
func startRouteController(t *testing.T, kube kubernetes.Interface, routes core.Cloud, late bool) func() {
	c := &cloud{cluster: core.NewCluster(clusterName), events: events.New()}
	c.cluster.SetUID(clusterUID)
	c.provider = core.New(routes, c.cluster, core.Options{})
	c.nodes = guard.Limit(c.provider.Instances, config.MassDeletion{}, c.events)
	factory := informers.NewSharedInformerFactory(kube, 12*time.Hour) // Upstream's period.
	c.SetInformers(factory)
	cfg := &cloudcontrollerconfig.Config{ClientBuilder: clients{kube: kube}, SharedInformers: factory}
	shared := &cfg.ComponentConfig.KubeCloudShared
	shared.ConfigureCloudRoutes, shared.ClusterName, shared.ClusterCIDR = true, clusterName, "10.244.0.0/16"
	shared.RouteReconciliationPeriod.Duration = 10 * time.Second
	constructor := controllerConstructors()[names.NodeRouteController]
	start := constructor.Constructor(app.ControllerInitContext{ClientName: "x"}, cfg.Complete(), c)
	ctx, stop := context.WithCancel(t.Context())
	if late {
		factory.Start(ctx.Done())
		factory.WaitForCacheSync(ctx.Done())
	}
	_, started, err := start(ctx, controllermanager.ControllerContext{
		ControllerManagerMetrics: controllersmetrics.NewControllerManagerMetrics("test"),
	})
	require.NoError(t, err)
	require.True(t, started)
	factory.Start(ctx.Done())
	return func() {
		stop()
		factory.Shutdown()
	}
}

// What is missing comes, and what changes in the cloud alone is found at the next resync: with and without the feature
// gate, and where the controller starts long after its informer.
func TestWithUpstreamsRouteController(t *testing.T) {
	// The second of upstream's handlers of errors waits until its newest error, of the real time,
	// is a millisecond ago; in a bubble that takes decades.
	handlers := utilruntime.ErrorHandlers
	t.Cleanup(func() { utilruntime.ErrorHandlers = handlers })
	utilruntime.ErrorHandlers = handlers[:1]
	const name = "node-1-10.244.1.0-24"
	const create = "create " + name + " to i-1"
	for _, watchBased := range []bool{false, true} {
		for _, late := range []bool{false, true} {
			t.Run(fmt.Sprintf("watch-based: %t, started late: %t", watchBased, late), func(t *testing.T) {
				featuregatetesting.SetFeatureGateDuringTest(t, utilfeature.DefaultFeatureGate,
					features.CloudControllerManagerWatchBasedRoutesReconciliation, watchBased)
				synctest.Test(t, func(t *testing.T) {
					cloud := &routeTable{}
					node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-1", UID: "u1"}, Spec: corev1.NodeSpec{
						ProviderID: contract.ProviderID("i-1"), PodCIDR: "10.244.1.0/24", PodCIDRs: []string{"10.244.1.0/24"},
					}}
					defer startRouteController(t, fake.NewClientset(node), cloud, late)()
					assert.Equal(t, []string{create}, cloud.takeCalls())
					cloud.divert()
					assert.Equal(t, []string{"delete " + name, create}, cloud.takeCalls(), "the old one goes first")
					assert.Empty(t, cloud.takeCalls())
				})
			})
		}
	}
}
