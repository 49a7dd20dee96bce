package watch

import (
	"cmp"
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
	cloudproviderapi "k8s.io/cloud-provider/api"

	"github.com/ccmlab/ccmlab/ccm/config"
	"github.com/ccmlab/ccmlab/ccm/contract"
	"github.com/ccmlab/ccmlab/ccm/core"
	"github.com/ccmlab/ccmlab/ccm/guard"
	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
)

const clusterName = "lab"

// testCluster is the test's cluster, with that UID unless it is "".
func testCluster(uid string) *core.Cluster {
	cluster := core.NewCluster(clusterName)
	if uid != "" {
		cluster.SetUID(uid)
	}
	return cluster
}

// oneThird is the configuration's default.
var oneThird = guard.Limits{Share: 0.33, Minimum: 1, Window: time.Hour, Hold: 30 * time.Minute}

func node(providerID string) *corev1.Node {
	n := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "node-1", UID: "u1"}, Spec: corev1.NodeSpec{ProviderID: providerID},
	}
	if providerID == "" {
		n.Spec.Taints = []corev1.Taint{{Key: cloudproviderapi.TaintExternalCloudProvider}}
	}
	return n
}

func instance(state api.InstanceState) api.Instance {
	return api.Instance{
		ID: "i-1", Name: "node-1", State: state, Addresses: []api.Address{{Type: api.AddressInternal, IP: "127.30.16.1"}},
	}
}

func service() *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", UID: "01234567-89ab"},
		Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer, Ports: []corev1.ServicePort{
			{Port: 8443, NodePort: 30443, Protocol: corev1.ProtocolTCP},
			{Port: 8080, NodePort: 30080, Protocol: corev1.ProtocolTCP},
		}},
	}
}

// builder is a cloud that makes balancers.
type builder struct{ core.Cloud }

func (builder) ListLoadBalancers(context.Context, client.LoadBalancerFilter) ([]api.LoadBalancer, error) {
	return nil, nil
}

func (builder) CreateLoadBalancer(_ context.Context, lb api.LoadBalancerCreate) (*api.LoadBalancer, error) {
	return &api.LoadBalancer{
		ID: "lb-1", Name: lb.Name, Address: "127.30.64.1", State: api.LoadBalancerActive, Listeners: lb.Listeners,
		Targets: *lb.Targets, Tags: *lb.Tags, SourceRanges: *lb.SourceRanges, HealthCheck: lb.HealthCheck,
	}, nil
}

// built is the balancer that the cloud would have for service() and Nodes with those provider IDs.
func built(t *testing.T, state api.LoadBalancerState, targets ...string) *api.LoadBalancer {
	t.Helper()
	var nodes []*corev1.Node
	for _, id := range targets {
		nodes = append(nodes, node(id))
	}
	cluster := core.NewCluster(clusterName)
	var lb *api.LoadBalancer
	provider := core.New(capture{builder{}, &lb}, cluster, core.Options{Addresses: config.Default().NodeAddresses})
	_, err := provider.LoadBalancers.EnsureLoadBalancer(t.Context(), clusterName, service(), nodes)
	require.NoError(t, err)
	lb.State = state
	return lb
}

// capture keeps the balancer that was made.
type capture struct {
	core.Cloud
	made **api.LoadBalancer
}

func (c capture) CreateLoadBalancer(ctx context.Context, lb api.LoadBalancerCreate) (*api.LoadBalancer, error) {
	var err error
	*c.made, err = c.Cloud.CreateLoadBalancer(ctx, lb)
	return *c.made, err
}

// statusOf is the status that a Service with that balancer is to have.
func statusOf(svc *corev1.Service, lb *api.LoadBalancer) *corev1.LoadBalancerStatus {
	provider := core.New(nil, testCluster(""), core.Options{Addresses: config.Default().NodeAddresses})
	has := provider.LoadBalancers.Compare(svc, nil, []api.LoadBalancer{*lb})
	return &corev1.LoadBalancerStatus{Ingress: has.Ingress}
}

// because is an error of that reason.
type because string

func (because) Error() string       { return "not now" }
func (b because) Cause() core.Cause { return core.Cause{Reason: string(b)} }

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

// fakeMemory is the cloud as a test has the cache know it.
type fakeMemory struct {
	core.Cloud
	mu         sync.Mutex
	instances  []api.Instance
	balancers  []api.LoadBalancer
	version    int64 // of the balancer that was set last
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

func (f *fakeMemory) GetInstance(_ context.Context, id string) (*api.Instance, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, i := range f.instances {
		if i.ID == id && f.err == nil {
			return &i, nil
		}
	}
	return nil, cmp.Or(f.err, error(&client.Error{
		Status: 404, Problem: api.Problem{Code: api.NotFound, Project: new("p-ours")},
	}))
}

func (f *fakeMemory) ListInstances(_ context.Context, filter client.InstanceFilter) ([]api.Instance, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.namedCalls++
	return slices.DeleteFunc(slices.Clone(f.instances), func(i api.Instance) bool { return i.Name != filter.Name }), f.err
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

// setBalancers gives each a version of its own, as every change does in the cloud.
func (f *fakeMemory) setBalancers(all ...api.LoadBalancer) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.balancers = slices.Clone(all)
	for i := range f.balancers {
		f.version++
		f.balancers[i].Version = f.version
	}
}
