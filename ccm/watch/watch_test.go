package watch

import (
	"context"
	"maps"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	corelisters "k8s.io/client-go/listers/core/v1"
	k8stesting "k8s.io/client-go/testing"
	kcache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	cloudprovider "k8s.io/cloud-provider"
	cloudproviderapi "k8s.io/cloud-provider/api"
	"k8s.io/cloud-provider/app"
	cloudcontrollerconfig "k8s.io/cloud-provider/app/config"
	"k8s.io/cloud-provider/names"
	"k8s.io/cloud-provider/options"
	"k8s.io/component-base/metrics"
	controllersmetrics "k8s.io/component-base/metrics/prometheus/controllers"
	"k8s.io/component-base/metrics/testutil"
	controllermanager "k8s.io/controller-manager/app"

	"github.com/ccmlab/ccmlab/ccm/cache"
	"github.com/ccmlab/ccmlab/ccm/calls"
	"github.com/ccmlab/ccmlab/ccm/config"
	"github.com/ccmlab/ccmlab/ccm/contract"
	"github.com/ccmlab/ccmlab/ccm/core"
	"github.com/ccmlab/ccmlab/ccm/events"
	"github.com/ccmlab/ccmlab/ccm/guard"
	"github.com/ccmlab/ccmlab/fakecloud/api"
)

// fakeReconciler fails the test on a call that it was not told of.
type fakeReconciler struct {
	core.LoadBalancers // Compares alone.
	t                  *testing.T
	ensure             func(svc *corev1.Service, nodes []*corev1.Node) (*corev1.LoadBalancerStatus, error)
	deleted            func(svc *corev1.Service) error
}

func (f *fakeReconciler) EnsureLoadBalancer(
	_ context.Context,
	cluster string,
	svc *corev1.Service,
	nodes []*corev1.Node,
) (*corev1.LoadBalancerStatus, error) {
	require.NotNil(f.t, f.ensure, "unexpected EnsureLoadBalancer(%s)", svc.Name)
	assert.Equal(f.t, clusterName, cluster)
	return f.ensure(svc, nodes)
}

func (f *fakeReconciler) EnsureLoadBalancerDeleted(_ context.Context, cluster string, svc *corev1.Service) error {
	require.NotNil(f.t, f.deleted, "unexpected EnsureLoadBalancerDeleted(%s)", svc.Name)
	assert.Equal(f.t, clusterName, cluster)
	return f.deleted(svc)
}

// fakeFeed reports the changes that a test writes.
type fakeFeed struct{ subscribers []func(cache.Change) }

func (f *fakeFeed) Subscribe(fn func(cache.Change)) { f.subscribers = append(f.subscribers, fn) }

// watchWorld has the jobs of the cloud watch between a cluster and a cloud that a test writes.
type watchWorld struct {
	*nodeWatch
	*serviceWatch
	*orphanSweeper
	t          *testing.T
	api        *fake.Clientset
	cloud      *fakeMemory
	feed       *fakeFeed
	reconciler *fakeReconciler
	explain    *events.Explainer
	recorder   *record.FakeRecorder
	nodes      kcache.Indexer
	services   serviceIndex
	watch      *Watch
}

// goneInstances says of each Node that it may go.
type goneInstances struct{ core.Instances }

func (goneInstances) MayDelete(context.Context, *corev1.Node) (string, error) {
	return "it is gone", nil
}

// reportChange has the feed's subscribers called.
func (w *watchWorld) reportChange(c cache.Change) {
	for _, notify := range w.feed.subscribers {
		notify(c)
	}
}

// advanceTime is time of a synctest bubble's clock, until all have done what they do
// meanwhile.
func advanceTime(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// newWatchWorld has those objects in the API server and in its indexers.
func newWatchWorld(t *testing.T, objects ...runtime.Object) *watchWorld {
	kube := fake.NewClientset(objects...)
	w := &watchWorld{
		t: t, api: kube, cloud: &fakeMemory{}, feed: &fakeFeed{},
		explain: events.New(), recorder: record.NewFakeRecorder(100),
		nodes:    kcache.NewIndexer(kcache.MetaNamespaceKeyFunc, kcache.Indexers{byProviderID: indexByProviderID}),
		services: serviceIndex{kcache.NewIndexer(kcache.MetaNamespaceKeyFunc, kcache.Indexers{byUID: indexByUID})},
	}
	w.explain.SetRecorder(w.recorder)
	provider := core.New(w.cloud, testCluster("cluster-uid"), core.Options{Addresses: config.Default().NodeAddresses})
	nodes := guard.Limit(provider.Instances, oneThird, w.explain)
	nodes.Keep(fake.NewClientset().CoreV1().ConfigMaps(contract.GuardNamespace))
	nodes.Follow(corelisters.NewNodeLister(w.nodes), func() bool { return true })
	provider.Instances = nodes
	provider = w.explain.Explain(provider)
	// Balancers are of a cluster whose UID is not known, which built leaves out.
	w.reconciler = &fakeReconciler{core.New(nil, testCluster(""), core.Options{}).LoadBalancers, t, nil, nil}
	provider.LoadBalancers = w.reconciler
	w.watch = New(Options{Cluster: testCluster("cluster-uid"), Events: w.explain})
	provider = w.watch.Follow(provider, nil)
	w.nodeWatch = newNodeWatch(w.watch, kube, "nodes")
	w.nodeWatch.nodes, w.prompting, w.removing = w.nodes, true, true
	w.serviceWatch = &serviceWatch{
		memory: w.cloud, events: w.explain, outcomes: w.watch.outcomes, settings: w.watch.settings,
		reconciler: &serviceReconciler{cluster: clusterName, kube: kube, balancers: provider.LoadBalancers},
		balancers:  provider.LoadBalancers,
		nodes:      w.nodes, services: w.services, queue: newKeyQueue("services", minServiceRetry, maxServiceRetry),
		drifts: map[string]*drift{},
	}
	orphans := guard.New(GuardedOrphans, oneThird, w.explain)
	orphans.Keep(fake.NewClientset().CoreV1().ConfigMaps(contract.GuardNamespace))
	w.orphanSweeper = &orphanSweeper{
		cluster: testCluster("cluster-uid"), kube: kube, memory: w.cloud, balancers: provider.LoadBalancers,
		services: w.services, undeletable: newOrphanBackoff(), guard: orphans,
	}
	orphans.Watch(w.listBalancerIDs, func() bool { return true })
	w.feed.Subscribe(w.nodeWatch.enqueueChange)
	w.feed.Subscribe(w.serviceWatch.enqueueChange)
	for _, o := range objects {
		switch o := o.(type) {
		case *corev1.Node:
			require.NoError(t, w.nodes.Add(o))
		case *corev1.Service:
			require.NoError(t, w.services.Add(o))
		}
	}
	t.Cleanup(func() {
		w.nodeWatch.queue.ShutDown()
		w.serviceWatch.queue.ShutDown()
	})
	return w
}

// retryPeriod is what upstream is told to wait.
const retryPeriod = 300 * time.Millisecond

// setOutcome has the last call for the object have failed for that reason.
func (w *watchWorld) setOutcome(obj core.Object, reason string) {
	w.watch.outcomes.record(obj.GetUID(), because(reason), nil)
}

// takeEvents are those since the last call.
func (w *watchWorld) takeEvents() []string {
	var all []string
	for {
		select {
		case e := <-w.recorder.Events:
			all = append(all, e)
		default:
			return all
		}
	}
}

// takeWrites are the calls to the API server that change something, since the last
// call.
func (w *watchWorld) takeWrites() []k8stesting.Action {
	defer w.api.ClearActions()
	return slices.DeleteFunc(slices.Clone(w.api.Actions()), func(a k8stesting.Action) bool {
		return slices.Contains([]string{"get", "list", "watch"}, a.GetVerb())
	})
}

// run starts the jobs with informers of their own, in a synctest bubble, and ends them with
// the test.
func (w *watchWorld) run() {
	ctx, cancel := context.WithCancel(context.Background())
	shared := informers.NewSharedInformerFactory(w.api, 0)
	w.feed.subscribers = nil
	require.NoError(w.t, w.nodeWatch.subscribe(w.feed, shared))
	require.NoError(w.t, w.serviceWatch.subscribe(w.feed, shared))
	require.NoError(w.t, w.useInformers(shared)) // The orphan sweeper's.
	w.nodes, w.services = w.serviceWatch.nodes, w.serviceWatch.services
	shared.Start(ctx.Done())
	require.NoError(w.t, w.watch.start(ctx, func() ([]watchJob, error) {
		return []watchJob{w.nodeWatch, w.serviceWatch, w.orphanSweeper}, nil
	}))
	w.t.Cleanup(func() {
		cancel()
		synctest.Wait()
		shared.Shutdown()
	})
	// That the informers are in sync is asked every 100 ms of the bubble's clock.
	advanceTime(time.Second)
}

// countIncrements is what a function adds to a counter.
func countIncrements(t *testing.T, counter metrics.CounterMetric, fn func()) int {
	t.Helper()
	before, err := testutil.GetCounterMetricValue(counter)
	require.NoError(t, err)
	fn()
	after, err := testutil.GetCounterMetricValue(counter)
	require.NoError(t, err)
	return int(after - before)
}

// What happens in the cloud and in the cluster becomes keys, and nothing else
// is done on the cache's time.
func TestChangesBecomeKeys(t *testing.T) {
	ended, named := node("fakecloud://i-1"), node("")
	ended.Name, named.Name, named.UID = "other-name", "node-1", "u2"
	w := newWatchWorld(t, ended, named, serviceWithAddress())
	keys := func(q interface {
		Len() int
		Get() (string, bool)
		Done(string)
	}) []string {
		var all []string
		for q.Len() > 0 {
			key, _ := q.Get()
			q.Done(key)
			all = append(all, key)
		}
		slices.Sort(all)
		return all
	}

	one := instance(api.InstanceTerminated)
	w.reportChange(cache.Change{Instance: &one, Kind: cache.Deleted})
	assert.Equal(t, []string{"node-1", "other-name"}, keys(w.nodeWatch.queue), "by provider ID and by name")
	assert.Empty(t, keys(w.serviceWatch.queue))

	another := serviceWithAddress()
	another.Name, another.UID = "another", "some-uid"
	require.NoError(t, w.services.Add(another))
	w.reportChange(
		cache.Change{LoadBalancer: &api.LoadBalancer{Tags: api.Tags{contract.TagServiceUID: "some-uid"}}},
	)
	assert.Empty(t, keys(w.nodeWatch.queue))
	assert.Equal(t, []string{"some-uid"}, keys(w.serviceWatch.queue))
	require.NoError(t, w.services.Delete(another))
	w.reportChange(cache.Change{LoadBalancer: &api.LoadBalancer{
		Tags: api.Tags{contract.TagServiceUID: "some-uid"}, State: api.LoadBalancerDeleting,
	}})
	assert.Equal(t, []string{"some-uid"}, keys(w.serviceWatch.queue), "on its way out after its Service")

	assert.Empty(t, keys(w.nodeWatch.queue))
	assert.Empty(t, keys(w.serviceWatch.queue))

	w.reportChange(cache.Change{Kind: cache.Relisted})
	assert.Equal(t, []string{"node-1", "other-name"}, keys(w.nodeWatch.queue), "listed anew: all of them")
	assert.Equal(t, []string{"01234567-89ab"}, keys(w.serviceWatch.queue))
}

// The stream is broken: nobody tells of a change, and it is found all the same.
func TestNodeWatchConvergesWithoutEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWatchWorld(t, node("fakecloud://i-1"))
		w.cloud.instances = []api.Instance{instance(api.InstanceRunning)}
		w.instances = goneInstances{}
		w.run()
		w.cloud.setInstances()
		advanceTime(time.Minute + time.Second)
		_, err := w.api.CoreV1().Nodes().Get(t.Context(), "node-1", metav1.GetOptions{})
		assert.True(t, apierrors.IsNotFound(err), "%v", err)
	})
}

func TestWatchesForgetDeletedObjects(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		waiting, svc := node(""), serviceWithAddress()
		w := newWatchWorld(t, waiting, svc)
		w.reconciler.ensure = func(svc *corev1.Service, _ []*corev1.Node) (*corev1.LoadBalancerStatus, error) {
			return &svc.Status.LoadBalancer, nil
		}
		w.cloud.setBalancers(*built(t, api.LoadBalancerActive))
		w.run()
		require.NoError(t, w.api.CoreV1().Nodes().Delete(t.Context(), waiting.Name, metav1.DeleteOptions{}))
		require.NoError(t, w.api.CoreV1().Services(svc.Namespace).Delete(t.Context(), svc.Name, metav1.DeleteOptions{}))
		synctest.Wait()
		w.nodeWatch.mu.Lock()
		defer w.nodeWatch.mu.Unlock()
		assert.Empty(t, w.prompts)
		w.serviceWatch.mu.Lock()
		defer w.serviceWatch.mu.Unlock()
		assert.Empty(t, w.drifts)
	})
}

// provider is a cloud provider that has a watch.
type provider struct {
	cloudprovider.Interface
	watch *Watch
}

func (p provider) CloudWatch() *Watch   { return p.watch }
func (p provider) ProviderName() string { return contract.ProviderName }
func (p provider) InstancesV2() (cloudprovider.InstancesV2, bool) {
	return p.watch.provider.Instances, true
}
func (p provider) LoadBalancer() (cloudprovider.LoadBalancer, bool) {
	return p.watch.provider.LoadBalancers, true
}
func (p provider) Routes() (cloudprovider.Routes, bool)       { return nil, false }
func (p provider) Instances() (cloudprovider.Instances, bool) { return nil, false }
func (p provider) HasClusterID() bool                         { return true }

// newTestWatch is a watch of a cloud that does not answer.
func newTestWatch() *Watch {
	cluster := testCluster("")
	w := New(Options{Cluster: cluster, Events: events.New()})
	w.Follow(core.New(nil, cluster, core.Options{}), cache.New(nil, cache.Options{}))
	return w
}

// startWith starts those controllers that the flag enables, as upstream's app does, and returns the
// names of the cloud watch's jobs.
func startWith(t *testing.T, flag string) (jobs []string) {
	opts, err := options.NewCloudControllerManagerOptions()
	require.NoError(t, err)
	opts.KubeCloudShared.CloudProvider.Name = contract.ProviderName
	opts.KubeCloudShared.ConfigureCloudRoutes = false
	opts.Master, opts.SecureServing.BindPort = "http://127.0.0.1:1", 0 // Nothing is asked and nothing served.
	constructors, aliases := maps.Clone(app.DefaultInitFuncConstructors), names.CCMControllerAliases()
	AddControllers(constructors)
	aliases["cloud-watch"] = calls.CloudWatch
	controllers := app.ControllerNames(constructors)
	flags := new(cobra.Command).Flags()
	for _, set := range opts.Flags(controllers, nil, aliases, nil, nil).FlagSets {
		flags.AddFlagSet(set)
	}
	require.NoError(t, flags.Parse([]string{flag}))
	cfg, err := opts.Config(controllers, nil, aliases, nil, nil)
	require.NoError(t, err)
	completed, w := cfg.Complete(), newTestWatch()
	ctx, cancel := context.WithCancel(t.Context())
	cancel() // The jobs end at once.
	for name, start := range app.ConstructControllerInitializers(constructors, completed, provider{watch: w}) {
		if isEnabled(name, completed) {
			_, _, err := start(ctx, controllermanager.ControllerContext{
				ControllerManagerMetrics: controllersmetrics.NewControllerManagerMetrics("test"),
			})
			require.NoError(t, err)
		}
	}
	for _, job := range w.health.jobs {
		if job != w.memoryHealth && job != w.routeHealth {
			jobs = append(jobs, job.name)
		}
	}
	return jobs
}

// A job runs only where the controller runs that it helps.
func TestJobsFollowTheFlagControllers(t *testing.T) {
	const waiting, ended = "the watch of waiting Nodes", "the watch of ended instances"
	const services, orphans = "the service watch", "the orphan sweeper"
	all := []string{waiting, ended, services, orphans}
	for flag, want := range map[string][]string{
		"--controllers=cloud-watch-controller,cloud-node-controller": {waiting},
		"--controllers=-cloud-watch-controller":                      nil,
		"--controllers=cloud-node-controller":                        nil,
		"--controllers=*":                                            all,
		"--controllers=*,-cloud-watch":                               nil,
		"--controllers=*,-service-lb-controller":                     {waiting, ended},
		"--controllers=-cloud-node-lifecycle,*":                      {waiting, services, orphans},
		"--controllers=*,-cloud-node-controller":                     {ended, services, orphans},
		"--controllers=*,-cloud-node,-cloud-node-lifecycle":          {services, orphans},
		"--controllers=cloud-watch,cloud-node":                       {waiting},
		"--controllers=cloud-watch,service-lb-controller":            {services, orphans},
		"--controllers=cloud-watch,route":                            nil,
	} {
		t.Run(flag, func(t *testing.T) { assert.ElementsMatch(t, want, startWith(t, flag)) })
	}
	assert.ElementsMatch(t, slices.Collect(maps.Keys(watchDuties)), slices.DeleteFunc(
		slices.Collect(maps.Keys(app.DefaultInitFuncConstructors)),
		func(name string) bool { return name == names.NodeRouteController }), "routes have no duty")
}

// A Node whose instance has ended, a stopped one and one that waits are left to others, where
// the controllers that would see to them are off.
func TestNodesAreLeftAloneWhereTheirControllerIsOff(t *testing.T) {
	for name, tc := range map[string]struct {
		state              api.InstanceState
		providerID         string
		prompting, removal bool
		writes, events     int
	}{
		"ended, and nobody removes":   {api.InstanceTerminated, "fakecloud://i-1", true, false, 0, 0},
		"ended":                       {api.InstanceTerminated, "fakecloud://i-1", false, true, 1, 1},
		"stopped, and nobody removes": {api.InstanceStopped, "fakecloud://i-1", true, false, 0, 0},
		"stopped":                     {api.InstanceStopped, "fakecloud://i-1", false, true, 0, 1},
		"waits, and nobody prompts":   {api.InstanceRunning, "", false, true, 0, 0},
		"waits":                       {api.InstanceRunning, "", true, false, 1, 0},
	} {
		t.Run(name, func(t *testing.T) {
			n := node(tc.providerID)
			if tc.providerID == "" {
				n.Spec.Taints = []corev1.Taint{{Key: cloudproviderapi.TaintExternalCloudProvider}}
			}
			w := newWatchWorld(t, n)
			w.prompting, w.removing = tc.prompting, tc.removal
			w.cloud.instances = []api.Instance{instance(tc.state)}
			if tc.providerID == "" {
				w.setOutcome(n, contract.ReasonInstanceNotFound)
			}
			require.NoError(t, w.syncNode(t.Context(), n.Name))
			assert.Len(t, w.takeWrites(), tc.writes)
			assert.Len(t, w.takeEvents(), tc.events)
		})
	}
}

// Without a cache there is nothing to follow.
func TestCloudWatchNeedsTheCache(t *testing.T) {
	start := startCloudWatch(app.ControllerInitContext{}, &cloudcontrollerconfig.CompletedConfig{}, provider{})
	ctrl, enabled, err := start(t.Context(), controllermanager.ControllerContext{})
	require.NoError(t, err)
	assert.False(t, enabled)
	assert.Nil(t, ctrl)
}
