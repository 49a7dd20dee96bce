package watch

import (
	"context"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	k8stesting "k8s.io/client-go/testing"
	cloudproviderapi "k8s.io/cloud-provider/api"
	servicehelpers "k8s.io/cloud-provider/service/helpers"
	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/testutil"

	"github.com/ccmlab/ccmlab/ccm/cache"
	"github.com/ccmlab/ccmlab/ccm/config"
	"github.com/ccmlab/ccmlab/ccm/contract"
	"github.com/ccmlab/ccmlab/ccm/core"
	"github.com/ccmlab/ccmlab/ccm/guard"
	"github.com/ccmlab/ccmlab/ccm/ring"
	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
)

const clusterName, clusterUID = "lab", "cluster-uid"

// testCluster is the test's cluster, with that UID unless it is "".
func testCluster(uid string) *core.Cluster {
	cluster := core.NewCluster(clusterName)
	if uid != "" {
		cluster.SetUID(uid)
	}
	return cluster
}

func node(providerID string) *corev1.Node {
	n := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "node-1", UID: "u1"}, Spec: corev1.NodeSpec{ProviderID: providerID},
	}
	if providerID == "" {
		n.Spec.Taints = []corev1.Taint{{Key: cloudproviderapi.TaintExternalCloudProvider}}
	}
	return n
}

// serviceWithoutAddress is a Service whose balancer upstream has begun to build.
func serviceWithoutAddress() *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "default", Name: "web", UID: "01234567-89ab", Annotations: map[string]string{"team": "blue"},
			Finalizers: []string{servicehelpers.LoadBalancerCleanupFinalizer},
		},
		Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer, Ports: []corev1.ServicePort{
			{Port: 8443, NodePort: 30443, Protocol: corev1.ProtocolTCP},
			{Port: 8080, NodePort: 30080, Protocol: corev1.ProtocolTCP},
		}},
	}
}

// serviceWithAddress is one that upstream's controller is done with.
func serviceWithAddress() *corev1.Service {
	svc := serviceWithoutAddress()
	svc.Status.LoadBalancer = *statusAt("127.30.64.1")
	return svc
}

// statusAt is the status of a Service whose balancer has that address.
func statusAt(ip string) *corev1.LoadBalancerStatus {
	return &corev1.LoadBalancerStatus{Ingress: []corev1.LoadBalancerIngress{
		{IP: ip, IPMode: new(corev1.LoadBalancerIPModeProxy)},
	}}
}

// builder is a cloud that makes a balancer.
type builder struct {
	core.Cloud
	made *api.LoadBalancer
}

func (*builder) ListLoadBalancers(context.Context, client.LoadBalancerFilter) ([]api.LoadBalancer, error) {
	return nil, nil
}

func (b *builder) CreateLoadBalancer(_ context.Context, lb api.LoadBalancerCreate) (*api.LoadBalancer, error) {
	b.made = &api.LoadBalancer{
		Metadata: api.Metadata{ID: "lb-1", Name: lb.Name, Tags: lb.Tags}, Address: "127.30.64.1", State: api.LoadBalancerActive, Listeners: lb.Listeners,
		Targets: lb.Targets, SourceRanges: lb.SourceRanges, HealthCheck: lb.HealthCheck,
	}
	return b.made, nil
}

func (b *builder) UpdateLoadBalancer(
	_ context.Context, _ string, u api.LoadBalancerUpdate,
) (*api.LoadBalancer, error) {
	b.made.IdleTimeoutSeconds = *u.IdleTimeoutSeconds
	return b.made, nil
}

// modelOver is the CCM's model over a cloud.
func modelOver(cloud core.Cloud) core.Provider {
	return core.New(cloud, testCluster(clusterUID), core.Options{Addresses: config.Default().NodeAddresses})
}

// built is the balancer that the cloud has for serviceWithAddress and Nodes with those provider IDs.
func built(t *testing.T, targets ...string) api.LoadBalancer {
	t.Helper()
	var nodes []*corev1.Node
	for _, id := range targets {
		nodes = append(nodes, node(id))
	}
	cloud := &builder{}
	_, err := modelOver(cloud).LoadBalancers.EnsureLoadBalancer(t.Context(), clusterName, serviceWithAddress(), nodes)
	require.NoError(t, err)
	return *cloud.made
}

// because is an error of that reason.
type because string

func (because) Error() string       { return "not now" }
func (b because) Cause() core.Cause { return core.Cause{Reason: string(b)} }

// errPending is that of a provider that is at it.
var errPending = cloudproviderapi.NewRetryError("provisioning", 300*time.Millisecond)

// runInBubble runs a subtest in a synctest bubble.
func runInBubble(t *testing.T, name string, test func(t *testing.T)) {
	t.Run(name, func(t *testing.T) { synctest.Test(t, test) })
}

// published is held while a fake calls what a test wrote: what the test changes before it advances the time is then
// seen by a worker that only the time wakes.
var published sync.Mutex

// callPublished calls a function of the test.
func callPublished[T any](fn func() (T, error)) (T, error) {
	published.Lock()
	defer published.Unlock()
	return fn()
}

// advanceTime is time of a synctest bubble's clock, until all have done what they do meanwhile.
func advanceTime(d time.Duration) {
	published.Lock()
	published.Unlock() //nolint:staticcheck // See published.
	time.Sleep(d)
	synctest.Wait()
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

// fakeMemory is what the cache knows of balancers.
type fakeMemory struct {
	Memory
	subscribers []func(cache.Change)

	mu        sync.Mutex
	balancers []api.LoadBalancer
	version   int64 // of the balancer that was set last
	unknown   bool  // balancers that are not shown may be there
}

func (f *fakeMemory) Subscribe(fn func(cache.Change)) { f.subscribers = append(f.subscribers, fn) }

func (f *fakeMemory) setUnknown(unknown bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.unknown = unknown
}

func (f *fakeMemory) KnowsLoadBalancers() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return !f.unknown
}

// set gives each balancer a version of its own, as every change does in the cloud.
func (f *fakeMemory) set(all ...api.LoadBalancer) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.balancers = slices.Clone(all)
	for i := range f.balancers {
		f.version++
		f.balancers[i].Version = f.version
	}
}

func (f *fakeMemory) LoadBalancers() []api.LoadBalancer {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.balancers)
}

func (f *fakeMemory) LoadBalancersOf(uid string) []api.LoadBalancer {
	return slices.DeleteFunc(f.LoadBalancers(), func(lb api.LoadBalancer) bool {
		return lb.Tags[contract.TagServiceUID] != uid
	})
}

// fakeInstances panics on a call that it was not told of.
type fakeInstances struct {
	core.Instances
	find      func() (*api.Instance, error)
	mayDelete func() (string, error)
}

func (f *fakeInstances) FindInstance(context.Context, *corev1.Node) (*api.Instance, error) {
	return callPublished(func() (*api.Instance, error) { return f.find() })
}
func (f *fakeInstances) MayDelete(context.Context, *corev1.Node) (string, error) {
	return callPublished(func() (string, error) { return f.mayDelete() })
}

// fakeBalancers panics on a call that it was not told of. It compares as the model does.
type fakeBalancers struct {
	core.LoadBalancers
	t      *testing.T
	ensure func(svc *corev1.Service) (*corev1.LoadBalancerStatus, error)
	delete func(svc *corev1.Service) error
}

func (f *fakeBalancers) EnsureLoadBalancer(
	_ context.Context, cluster string, svc *corev1.Service, _ []*corev1.Node,
) (*corev1.LoadBalancerStatus, error) {
	assert.Equal(f.t, clusterName, cluster)
	return callPublished(func() (*corev1.LoadBalancerStatus, error) { return f.ensure(svc) })
}

func (f *fakeBalancers) EnsureLoadBalancerDeleted(_ context.Context, cluster string, svc *corev1.Service) error {
	assert.Equal(f.t, clusterName, cluster)
	_, err := callPublished(func() (any, error) { return nil, f.delete(svc) })
	return err
}

// eventLog has what people were told.
type eventLog struct {
	mu   sync.Mutex
	told []string
}

func (e *eventLog) add(event string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.told = append(e.told, event)
}

func (e *eventLog) Note(_ ring.Object, reason, message string) { e.add(reason + ": " + message) }
func (e *eventLog) WarnOnce(_ ring.Object, _, reason, _, message string) {
	e.add("Warning " + reason + ": " + message)
}
func (e *eventLog) Resolve(ring.Object, string) {}

// world has the jobs of the cloud watch between a cluster and a provider that a test writes.
type world struct {
	*Watch
	prompter, remover, balancerJob, sweeper *watchJob

	t         *testing.T
	api       *fake.Clientset
	shared    informers.SharedInformerFactory
	memory    *fakeMemory
	instances *fakeInstances
	balancers *fakeBalancers
	events    *eventLog
}

// newWorld has those objects in the API server and in its informers.
func newWorld(t *testing.T, objects ...runtime.Object) *world {
	w := &world{
		t: t, api: fake.NewClientset(objects...), memory: &fakeMemory{}, instances: &fakeInstances{},
		balancers: &fakeBalancers{LoadBalancers: modelOver(nil).LoadBalancers, t: t}, events: &eventLog{},
	}
	w.shared = informers.NewSharedInformerFactory(w.api, 0)
	w.Watch = New(testCluster(clusterUID), w.events, w.newBudget(config.MassDeletion{}))
	w.Follow(core.Provider{Instances: w.instances, LoadBalancers: w.balancers}, w.memory)
	w.SetInformers(w.shared)
	w.prompter, w.remover = newNodePrompter(w.Watch, w.api), newNodeRemover(w.Watch, w.api)
	w.balancerJob, w.sweeper = newServiceWatch(w.Watch, w.api), w.newSweeper()
	w.inform(objects...)
	for _, job := range w.jobs() {
		t.Cleanup(job.queue.ShutDown)
	}
	return w
}

// newBudget is for orphans. Without limits it allows all.
func (w *world) newBudget(limits config.MassDeletion) *guard.Budget {
	budget := guard.New(GuardedOrphans, limits, w.events)
	budget.Start(w.t.Context(), fake.NewClientset().CoreV1().ConfigMaps(contract.GuardNamespace))
	return budget
}

// newSweeper makes the orphan sweeper, whose budget takes the informers for synced.
func (w *world) newSweeper() *watchJob {
	sweeper := newOrphanSweeper(w.Watch, w.api)
	w.t.Cleanup(sweeper.queue.ShutDown)
	w.orphans.Watch(w.listBalancerIDs, func() bool { return true })
	return sweeper
}

func (w *world) jobs() []*watchJob {
	return []*watchJob{w.prompter, w.remover, w.balancerJob, w.sweeper}
}

// syncService looks at serviceWithAddress.
func (w *world) syncService() error { return w.balancerJob.sync(w.t.Context(), uid) }

// inform has the informers know those objects.
func (w *world) inform(objects ...runtime.Object) {
	for _, object := range objects {
		if svc, ok := object.(*corev1.Service); ok {
			require.NoError(w.t, w.services.GetIndexer().Add(svc))
		} else {
			require.NoError(w.t, w.nodes.GetIndexer().Add(object))
		}
	}
}

// run runs the jobs in a synctest bubble until the test ends. The informers know then what the API server has.
func (w *world) run() {
	require.NoError(w.t, w.nodes.GetIndexer().Replace(nil, ""))
	require.NoError(w.t, w.services.GetIndexer().Replace(nil, ""))
	w.shared.Start(w.t.Context().Done())
	for _, job := range w.jobs() {
		require.NoError(w.t, w.start(w.t.Context(), job))
	}
	w.t.Cleanup(func() {
		synctest.Wait()
		w.shared.Shutdown()
	})
	advanceTime(time.Second) // Every 100 ms it is asked whether the informers have synced.
}

// reportChange is what the cache does when something changes in the cloud.
func (w *world) reportChange(c cache.Change) {
	for _, notify := range w.memory.subscribers {
		notify(c)
	}
}

// setOutcome has the last call for the object have failed for that reason.
func (w *world) setOutcome(obj ring.Object, reason string) {
	w.recordOutcome(obj.GetUID(), because(reason), "")
}

// takeEvents are those since the last call.
func (w *world) takeEvents() []string {
	w.events.mu.Lock()
	defer w.events.mu.Unlock()
	defer func() { w.events.told = nil }()
	return w.events.told
}

// takeWrites are the calls since the last call that change something in the API server.
func (w *world) takeWrites() []k8stesting.Action {
	defer w.api.ClearActions()
	return slices.DeleteFunc(slices.Clone(w.api.Actions()), func(a k8stesting.Action) bool {
		return slices.Contains([]string{"get", "list", "watch"}, a.GetVerb())
	})
}

// refuse has the API server refuse calls about these objects.
func (w *world) refuse(verb, resource string, err error) {
	w.api.PrependReactor(verb, resource, func(k8stesting.Action) (bool, runtime.Object, error) {
		return err != nil, nil, err
	})
}

// getService is the Service as the API server has it.
func (w *world) getService() *corev1.Service {
	svc, err := w.api.CoreV1().Services("default").Get(w.t.Context(), "web", metav1.GetOptions{})
	require.NoError(w.t, err)
	return svc
}

// setService has the API server have that Service, and tell its informers.
func (w *world) setService(svc *corev1.Service) {
	require.NoError(w.t, w.api.Tracker().
		Update(corev1.SchemeGroupVersion.WithResource("services"), svc, svc.Namespace))
}
