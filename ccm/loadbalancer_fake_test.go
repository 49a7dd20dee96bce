package ccm

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/record"

	"github.com/ccmlab/ccmlab/ccm/annotations"
	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
)

const clusterName = "lab"

// testIdentity is the test's cluster, with that UID unless it is "".
func testIdentity(uid string) *clusterIdentity {
	identity := newClusterIdentity(clusterName)
	if uid != "" {
		identity.setUID(uid)
	}
	return identity
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

func serviceWithAnnotations(pairs ...string) *corev1.Service {
	svc := service()
	svc.Annotations = map[string]string{}
	for i := 0; i < len(pairs); i += 2 {
		svc.Annotations[annotations.Prefix+pairs[i]] = pairs[i+1]
	}
	return svc
}

// serviceWithFamilies is service() with IP families and an IP family policy.
func serviceWithFamilies(policy corev1.IPFamilyPolicy, of ...corev1.IPFamily) *corev1.Service {
	svc := service()
	svc.Spec.IPFamilies, svc.Spec.IPFamilyPolicy = of, &policy
	return svc
}

func serviceWithLoadBalancerIP(ip string) *corev1.Service {
	svc := service()
	svc.Spec.LoadBalancerIP = ip //nolint:staticcheck // Deprecated, and used.
	return svc
}

func nodes(providerIDs ...string) []*corev1.Node {
	var out []*corev1.Node
	for _, id := range providerIDs {
		out = append(out, node(id))
	}
	return out
}

// built is the balancer that the cloud would have for service() and nodes().
func built(t *testing.T, state api.LoadBalancerState, targets ...string) *api.LoadBalancer {
	t.Helper()
	want, err := newBalancerSpec(clusterID{name: clusterName}, service(), nodes(targets...))
	require.NoError(t, err)
	return &api.LoadBalancer{
		ID: "lb-1", Project: ourProject, Name: want.Name, Address: "127.30.64.1", State: state,
		Listeners: want.Listeners, Targets: *want.Targets, Tags: *want.Tags, SourceRanges: *want.SourceRanges,
		HealthCheck: want.HealthCheck,
	}
}

func listReturns(lb ...api.LoadBalancer) func(client.LoadBalancerFilter) ([]api.LoadBalancer, error) {
	return func(client.LoadBalancerFilter) ([]api.LoadBalancer, error) { return lb, nil }
}

func newLoadBalancers(f *fakeAPI) *loadBalancers { return (&fakeBalancers{fakeAPI: f}).loadBalancers() }

// fakeBalancers is fakeAPI with the calls that only balancers need.
type fakeBalancers struct {
	*fakeAPI
	get       func(id string) (*api.LoadBalancer, error)
	addresses func() ([]api.ReservedAddress, error)
	events    *record.FakeRecorder
}

// newFakeBalancers is a cloud of ours that lists these balancers.
func newFakeBalancers(t *testing.T, lb ...api.LoadBalancer) *fakeBalancers {
	return &fakeBalancers{fakeAPI: &fakeAPI{t: t, listBalancers: listReturns(lb...)}}
}

func (f *fakeBalancers) GetLoadBalancer(_ context.Context, id string) (*api.LoadBalancer, error) {
	require.NotNil(f.t, f.get, "unexpected GetLoadBalancer(%s)", id)
	return f.get(id)
}

func (f *fakeBalancers) ListAddresses(_ context.Context, filter client.AddressFilter) ([]api.ReservedAddress, error) {
	require.NotNil(f.t, f.addresses, "unexpected ListAddresses()")
	list := func(client.AddressFilter) ([]api.ReservedAddress, error) { return f.addresses() }
	return inOurProject(list, filter, func(a *api.ReservedAddress) *string { return &a.Project })
}

func (f *fakeBalancers) loadBalancers() *loadBalancers {
	f.events = record.NewFakeRecorder(100)
	explain := newExplainer()
	explain.setRecorder(f.events)
	return &loadBalancers{
		api: definite(f, "lab"), explain: explain, identity: testIdentity(""),
	}
}

// takeEvents returns the Events since it was last called.
func (f *fakeBalancers) takeEvents() []string {
	var events []string
	for len(f.events.Events) > 0 {
		events = append(events, <-f.events.Events)
	}
	return events
}
