package ccm

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/kubernetes/fake"
	corelisters "k8s.io/client-go/listers/core/v1"
	kcache "k8s.io/client-go/tools/cache"

	"github.com/ccmlab/ccmlab/ccm/cache"
	"github.com/ccmlab/ccmlab/ccm/contract"
	"github.com/ccmlab/ccmlab/ccm/doubt"
	"github.com/ccmlab/ccmlab/ccm/guard"
	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
)

const ourProject = "p-ours"

// fakeAPI answers the calls it was told of; any other fails the test.
type fakeAPI struct {
	t             *testing.T
	getInstance   func(id string) (*api.Instance, error)
	listInstances func(f client.InstanceFilter) ([]api.Instance, error)
	project       func() (*api.Project, error)
	listBalancers func(f client.LoadBalancerFilter) ([]api.LoadBalancer, error)
	create        func(api.LoadBalancerCreate) (*api.LoadBalancer, error)
	update        func(id string, u api.LoadBalancerUpdate) (*api.LoadBalancer, error)
	remove        func(id string) (*api.LoadBalancer, error)
	listRoutes    func(f client.RouteFilter) ([]api.Route, error)
	createRoute   func(api.RouteCreate) (*api.Route, error)
	updateRoute   func(id string, u api.ResourceUpdate) (*api.Route, error)
	deleteRoute   func(id string) error
}

// definite is the cloud as the CCM sees it, whose token never changes.
func definite(source doubt.Source, project string) *doubt.Cloud {
	return doubt.Reject(source, project, func() string { return "" })
}

func (f *fakeAPI) GetInstance(_ context.Context, id string) (*api.Instance, error) {
	require.NotNil(f.t, f.getInstance, "unexpected GetInstance(%s)", id)
	return f.getInstance(id)
}

func (f *fakeAPI) ListInstances(_ context.Context, filter client.InstanceFilter) ([]api.Instance, error) {
	require.NotNil(f.t, f.listInstances, "unexpected ListInstances(%+v)", filter)
	return f.listInstances(filter)
}

func (f *fakeAPI) Project(context.Context) (*api.Project, error) {
	if f.project == nil {
		return ours()
	}
	return f.project()
}

func (f *fakeAPI) ListLoadBalancers(_ context.Context, filter client.LoadBalancerFilter) ([]api.LoadBalancer, error) {
	require.NotNil(f.t, f.listBalancers, "unexpected ListLoadBalancers(%+v)", filter)
	return inOurProject(f.listBalancers, filter, func(lb *api.LoadBalancer) *string { return &lb.Project })
}

func (f *fakeAPI) GetLoadBalancer(_ context.Context, id string) (*api.LoadBalancer, error) {
	require.Fail(f.t, "unexpected GetLoadBalancer", id)
	return nil, nil
}

func (f *fakeAPI) ListAddresses(context.Context, client.AddressFilter) ([]api.ReservedAddress, error) {
	require.Fail(f.t, "unexpected ListAddresses")
	return nil, nil
}

func (f *fakeAPI) CreateLoadBalancer(_ context.Context, lb api.LoadBalancerCreate) (*api.LoadBalancer, error) {
	require.NotNil(f.t, f.create, "unexpected CreateLoadBalancer(%+v)", lb)
	return f.create(lb)
}

func (f *fakeAPI) UpdateLoadBalancer(
	_ context.Context,
	id string,
	u api.LoadBalancerUpdate,
) (*api.LoadBalancer, error) {
	require.NotNil(f.t, f.update, "unexpected UpdateLoadBalancer(%s)", id)
	return f.update(id, u)
}

func (f *fakeAPI) DeleteLoadBalancer(_ context.Context, id string) (*api.LoadBalancer, error) {
	require.NotNil(f.t, f.remove, "unexpected DeleteLoadBalancer(%s)", id)
	return f.remove(id)
}

func (f *fakeAPI) ListRoutes(_ context.Context, filter client.RouteFilter) ([]api.Route, error) {
	require.NotNil(f.t, f.listRoutes, "unexpected ListRoutes(%+v)", filter)
	return inOurProject(f.listRoutes, filter, func(r *api.Route) *string { return &r.Project })
}

func (f *fakeAPI) CreateRoute(_ context.Context, r api.RouteCreate) (*api.Route, error) {
	require.NotNil(f.t, f.createRoute, "unexpected CreateRoute(%+v)", r)
	return f.createRoute(r)
}

func (f *fakeAPI) UpdateRoute(_ context.Context, id string, u api.ResourceUpdate) (*api.Route, error) {
	require.NotNil(f.t, f.updateRoute, "unexpected UpdateRoute(%s)", id)
	return f.updateRoute(id, u)
}

func (f *fakeAPI) DeleteRoute(_ context.Context, id string) error {
	require.NotNil(f.t, f.deleteRoute, "unexpected DeleteRoute(%s)", id)
	return f.deleteRoute(id)
}

// Follow is a stream that never opens.
func (f *fakeAPI) Follow(
	ctx context.Context, _ int64, _ func(api.Event) error, onBreak func(error), _ ...client.EventFilter,
) error {
	onBreak(errors.New("this fake has no events"))
	<-ctx.Done()
	return ctx.Err()
}

// inOurProject is a list whose items belong to our project unless the test says otherwise.
func inOurProject[F, T any](list func(F) ([]T, error), filter F, project func(*T) *string) ([]T, error) {
	found, err := list(filter)
	found = slices.Clone(found)
	for n := range found {
		p := project(&found[n])
		*p = cmp.Or(*p, ourProject)
	}
	return found, err
}

func ours() (*api.Project, error) { return &api.Project{ID: ourProject, Name: "lab"}, nil }

// problem is an answer of the cloud itself.
func problem(status int, code api.ProblemCode, project string) error {
	return &client.Error{
		Status: status, Problem: api.Problem{Status: status, Code: code, Detail: string(code), Project: &project},
	}
}

func instance(state api.InstanceState) api.Instance {
	return api.Instance{
		ID: "i-1", Project: ourProject, Name: "node-1", Region: "r", Zone: "r-a", Type: "small", State: state,
		Addresses: []api.Address{
			{Type: api.AddressInternal, IP: "127.30.16.1"}, {Type: api.AddressExternal, IP: "192.0.2.1"},
		},
	}
}

// newTestGuard is a budget that is kept in an API server of its own.
func newTestGuard(kind guard.Kind, list func() sets.Set[types.UID], explain *explainer) *guard.Budget {
	b := guard.New(kind, oneThird, explain)
	b.Keep(fake.NewClientset().CoreV1().ConfigMaps(contract.GuardNamespace))
	b.Watch(list, func() bool { return true })
	return b
}

// limited puts a budget of Nodes, kept in an API server of its own, around the instances.
func limited(i *instances, nodes ...*corev1.Node) *guard.Instances {
	indexer := kcache.NewIndexer(kcache.MetaNamespaceKeyFunc, kcache.Indexers{})
	for _, n := range nodes {
		_ = indexer.Add(n) // An indexer never fails.
	}
	guarded := guard.Limit(i, oneThird, i.explain)
	guarded.Keep(fake.NewClientset().CoreV1().ConfigMaps(contract.GuardNamespace))
	guarded.Follow(corelisters.NewNodeLister(indexer), func() bool { return true })
	return guarded
}

// oneThird is the configuration's default.
var oneThird = guard.Limits{Share: 0.33, Minimum: 1, Window: time.Hour, Hold: 30 * time.Minute}

// assertError asserts that err says want, or that there is none if want is "".
func assertError(t *testing.T, err error, want string) {
	t.Helper()
	if want == "" {
		assert.NoError(t, err)
	} else {
		assert.ErrorContains(t, err, want)
	}
}

// runInBubble runs a subtest in a synctest bubble.
func runInBubble(t *testing.T, name string, test func(t *testing.T)) {
	t.Run(name, func(t *testing.T) { synctest.Test(t, test) })
}

// newTestMemory is a cache of that cloud.
func newTestMemory(source cache.Source, identity *clusterIdentity) *cache.Cloud {
	memory := cache.New(source, cache.Options{
		ClusterFilters: identity.tagFilters, InCluster: identity.mayOwn, ServiceTag: contract.TagServiceUID,
		Observe: func(_, _ string) {},
	})
	identity.onUIDKnown = memory.RelistCluster
	return memory
}

// fakeMemory is the cloud as a test has the cache know it.
type fakeMemory struct {
	mu         sync.Mutex
	instances  []api.Instance
	balancers  []api.LoadBalancer
	versions   bool  // each balancer that is set gets a version
	version    int64 // of the one that was set last
	unknown    bool  // balancers that are not shown may be there
	err        error // of questions about instances
	namedCalls int   // how often somebody asked by name
}

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

// api is a cloud of these instances.
func (f *fakeMemory) api(t *testing.T) *fakeAPI {
	return &fakeAPI{t: t, getInstance: func(id string) (*api.Instance, error) {
		f.mu.Lock()
		defer f.mu.Unlock()
		for _, i := range f.instances {
			if i.ID == id && f.err == nil {
				return &i, nil
			}
		}
		return nil, cmp.Or(f.err, problem(404, api.NotFound, ourProject))
	}, listInstances: func(filter client.InstanceFilter) ([]api.Instance, error) {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.namedCalls++
		return slices.DeleteFunc(slices.Clone(f.instances), func(i api.Instance) bool { return i.Name != filter.Name }), f.err
	}}
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

func (f *fakeMemory) setInstances(instances ...api.Instance) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.instances = instances
}

// setBalancers gives each a version of its own, as every change does in the cloud, if the test wants that.
func (f *fakeMemory) setBalancers(all ...api.LoadBalancer) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.balancers = slices.Clone(all)
	for i := range f.balancers {
		if !f.versions {
			break
		}
		f.version++
		f.balancers[i].Version = f.version
	}
}
