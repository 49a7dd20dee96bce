package core

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	cloudproviderapi "k8s.io/cloud-provider/api"

	"github.com/ccmlab/ccmlab/ccm/annotations"
	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
)

const clusterName = "lab"

// testCluster is the test's cluster, with that UID unless it is "".
func testCluster(uid string) *Cluster {
	cluster := NewCluster(clusterName)
	if uid != "" {
		cluster.SetUID(uid)
	}
	return cluster
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

// serviceWithAddress is service() with the address of built() in its status.
func serviceWithAddress() *corev1.Service {
	svc := service()
	svc.Status.LoadBalancer = *statusOf(balancerSpec{svc: svc}, &api.LoadBalancer{Address: "127.30.64.1"})
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
	want, err := newBalancerSpec(testCluster(""), service(), nodes(targets...))
	require.NoError(t, err)
	return &api.LoadBalancer{
		Metadata: api.Metadata{ID: "lb-1", Name: want.Name, Tags: want.Tags}, Address: "127.30.64.1", State: state,
		Listeners: want.Listeners, Targets: want.Targets, SourceRanges: want.SourceRanges,
		HealthCheck: want.HealthCheck,
	}
}

func listReturns(lb ...api.LoadBalancer) func(client.LoadBalancerFilter) ([]api.LoadBalancer, error) {
	return func(client.LoadBalancerFilter) ([]api.LoadBalancer, error) { return lb, nil }
}

// newFakeBalancers is a cloud that lists these balancers.
func newFakeBalancers(lb ...api.LoadBalancer) *fakeAPI {
	return &fakeAPI{listBalancers: listReturns(lb...)}
}

// listing is a cloud that has that balancer, as it is when it is listed.
func listing(lb *api.LoadBalancer) *fakeAPI {
	return &fakeAPI{listBalancers: func(client.LoadBalancerFilter) ([]api.LoadBalancer, error) {
		return []api.LoadBalancer{*lb}, nil
	}}
}

func (f *fakeAPI) loadBalancers() *loadBalancers {
	return &loadBalancers{api: f, cluster: testCluster("")}
}

// notices are those of a call in the context that it returns, by reason.
func notices(ctx context.Context) (context.Context, func() []string) {
	var all []Notice
	return collectNotices(ctx, &all), func() (reasons []string) {
		for _, n := range all {
			reasons = append(reasons, n.Reason)
		}
		return reasons
	}
}

func collectNotices(ctx context.Context, all *[]Notice) context.Context {
	return WithNotices(ctx, func(n Notice) { *all = append(*all, n) })
}

// retryAfter is when the error says to call again, 0 if it says nothing of it.
func retryAfter(err error) time.Duration {
	var retry *cloudproviderapi.RetryError
	if errors.As(err, &retry) {
		return retry.RetryAfter()
	}
	return 0
}

// node is a Node with that provider ID, or one that waits to be initialized.
func node(providerID string) *corev1.Node {
	n := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "node-1", UID: "u1"}, Spec: corev1.NodeSpec{ProviderID: providerID},
	}
	if providerID == "" {
		n.Spec.Taints = []corev1.Taint{{Key: cloudproviderapi.TaintExternalCloudProvider}}
	}
	return n
}
