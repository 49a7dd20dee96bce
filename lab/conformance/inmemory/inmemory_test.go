package inmemory

import (
	"context"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"
	cloudprovider "k8s.io/cloud-provider"
	cloudproviderapi "k8s.io/cloud-provider/api"

	"github.com/ccmlab/ccmlab/lab/conformance"
)

// parts are New's, with the cluster that client stands for.
func parts(client kubernetes.Interface) (*cloud, *ccm) {
	i := New(&rest.Config{})
	m := i.CCM.(*ccm)
	m.connect = func(*rest.Config) (kubernetes.Interface, error) { return client, nil }
	return m.cloud, m
}

func TestInstanceStates(t *testing.T) {
	c, _ := parts(nil)
	p, ctx := &provider{c, &callGate{}}, t.Context()
	first, err := c.CreateInstance(ctx, conformance.InstanceSpec{Name: "node-1"})
	require.NoError(t, err)
	byID := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "another"}, Spec: corev1.NodeSpec{ProviderID: first.ProviderID},
	}
	is := func(node *corev1.Node, exists, shutdown bool) {
		t.Helper()
		found, err := p.InstanceExists(ctx, node)
		require.NoError(t, err)
		assert.Equal(t, exists, found, "exists")
		off, err := p.InstanceShutdown(ctx, node)
		require.NoError(t, err)
		assert.Equal(t, shutdown, off, "shutdown")
	}
	is(byID, true, false)
	require.NoError(t, c.StopInstance(ctx, first.ID))
	is(byID, true, true)
	require.NoError(t, c.StartInstance(ctx, first.ID))
	is(byID, true, false)
	require.NoError(t, c.TerminateInstance(ctx, first.ID))
	is(byID, false, false)
	_, err = p.InstanceMetadata(ctx, byID)
	require.ErrorIs(t, err, cloudprovider.InstanceNotFound)

	require.NoError(t, c.TerminateInstance(ctx, first.ID), "one that has ended already is no error")
	require.Error(t, c.StartInstance(ctx, first.ID), "the end is for good")
	require.Error(t, c.StopInstance(ctx, "i-unknown"))

	again, err := c.CreateInstance(ctx, conformance.InstanceSpec{Name: "node-1"})
	require.NoError(t, err)
	assert.NotEqual(t, first.ID, again.ID)
	assert.NotEqual(t, first.InternalIPs, again.InternalIPs)
	is(byID, false, false)
}

func TestAnotherCloudsNode(t *testing.T) {
	c, _ := parts(nil)
	p := &provider{c, &callGate{}}
	foreign := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "node-1"}, Spec: corev1.NodeSpec{ProviderID: "other://i-1"},
	}
	_, err := p.InstanceExists(t.Context(), foreign)
	require.ErrorContains(t, err, "other://i-1")
	waiting := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-2"}}
	ours := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "node-3"}, Spec: corev1.NodeSpec{ProviderID: "i-3"},
	}
	assert.Equal(t, []string{"i-3"}, targetIDs([]*corev1.Node{foreign, waiting, ours}))
}

func TestUpdateMakesNoBalancer(t *testing.T) {
	c, _ := parts(nil)
	p, svc := &provider{c, &callGate{}}, newService()
	nodes := []*corev1.Node{{Spec: corev1.NodeSpec{ProviderID: "i-1"}}}
	require.NoError(t, p.UpdateLoadBalancer(t.Context(), "", svc, nodes))
	assert.Empty(t, c.balancers)
	_, err := p.EnsureLoadBalancer(t.Context(), "", svc, nil)
	require.ErrorContains(t, err, "no Node")
	assert.Empty(t, c.balancers)
	_, err = p.EnsureLoadBalancer(t.Context(), "", svc, nodes)
	require.NoError(t, err)
	again, err := p.EnsureLoadBalancer(t.Context(), "", svc, nodes)
	require.NoError(t, err)
	assert.Len(t, c.balancers, 1)
	_, found, err := p.GetLoadBalancer(t.Context(), "", svc)
	require.NoError(t, err)
	assert.True(t, found)
	require.NoError(t, p.UpdateLoadBalancer(t.Context(), "", svc, nodes))
	for _, b := range c.balancers {
		assert.Equal(t, again.Ingress[0].IP, b.Address)
		assert.Equal(t, []string{"i-1"}, b.Targets)
		assert.Equal(t, []conformance.Listener{{Protocol: "TCP", Port: 80}}, b.Listeners)
	}
}

func TestStoppedCCMDoesNothing(t *testing.T) {
	var asked atomic.Int32
	arrived, answer := make(chan struct{}), make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		asked.Add(1)
		close(arrived)
		<-answer
	}))
	defer server.Close()
	g := &callGate{next: http.DefaultTransport}
	get := func() error {
		resp, err := (&http.Client{Transport: g}).Get(server.URL)
		if err == nil {
			err = resp.Body.Close()
		}
		return err
	}
	var answered atomic.Bool
	first := make(chan error)
	go func() { first <- get() }()
	<-arrived
	go func() { answered.Store(true); close(answer) }()
	g.shut()
	assert.True(t, answered.Load(), "the gate was shut while a request was under way")
	require.NoError(t, <-first)
	require.ErrorContains(t, get(), "stopped")
	assert.EqualValues(t, 1, asked.Load())

	c, _ := parts(nil)
	p := &provider{c, g}
	_, err := p.EnsureLoadBalancer(t.Context(), "", newService(), []*corev1.Node{newNode("node-1", "i-1")})
	require.ErrorContains(t, err, "stopped")
	assert.Empty(t, c.balancers)
}

// Nodes and Services have a test each: upstream's service controller reads its
// cache without a lock when a Node changes, which the race detector finds.

func TestNodesAcrossARestart(t *testing.T) {
	client, ctx := fake.NewClientset(), t.Context()
	c, m := parts(client)
	nodes := client.CoreV1().Nodes()
	register := func(name string) {
		i, err := c.CreateInstance(ctx, conformance.InstanceSpec{Name: name})
		require.NoError(t, err)
		_, err = nodes.Create(ctx, newNode(name, i.ProviderID), metav1.CreateOptions{})
		require.NoError(t, err)
	}
	initialized := func(name string) func() bool {
		return func() bool {
			node, err := nodes.Get(ctx, name, metav1.GetOptions{})
			require.NoError(t, err)
			return len(node.Spec.Taints) == 0 && len(node.Status.Addresses) > 0
		}
	}
	start(t, m)
	register("node-1")
	eventually(t, initialized("node-1"))
	stop(t, m)
	register("node-2")
	start(t, m)
	eventually(t, initialized("node-2"))
	stop(t, m)
}

func TestServicesAcrossARestart(t *testing.T) {
	client, ctx := fake.NewClientset(), t.Context()
	c, m := parts(client)
	services := client.CoreV1().Services("default")
	i, err := c.CreateInstance(ctx, conformance.InstanceSpec{Name: "node-1"})
	require.NoError(t, err)
	nodes := client.CoreV1().Nodes()
	_, err = nodes.Create(ctx, newNode("node-1", i.ProviderID), metav1.CreateOptions{})
	require.NoError(t, err)
	start(t, m)
	eventually(t, func() bool { // What the service controller does when a Node comes is over by then.
		node, err := nodes.Get(ctx, "node-1", metav1.GetOptions{})
		require.NoError(t, err)
		return len(node.Spec.Taints) == 0
	})
	_, err = services.Create(ctx, newService(), metav1.CreateOptions{})
	require.NoError(t, err)
	eventually(t, func() bool {
		svc, err := services.Get(ctx, "web", metav1.GetOptions{})
		require.NoError(t, err)
		all, err := c.ListBalancers(ctx)
		require.NoError(t, err)
		in := svc.Status.LoadBalancer.Ingress
		return len(all) == 1 && len(in) == 1 && in[0].IP == all[0].Address
	})
	stop(t, m)
	svc, err := services.Get(ctx, "web", metav1.GetOptions{})
	require.NoError(t, err)
	require.NotEmpty(t, svc.Finalizers)
	now := metav1.Now() // What the API server makes of a deletion while there is a finalizer.
	svc.DeletionTimestamp = &now
	_, err = services.Update(ctx, svc, metav1.UpdateOptions{})
	require.NoError(t, err)
	require.NoError(t, nodes.Delete(ctx, "node-1", metav1.DeleteOptions{}))
	start(t, m)
	eventually(t, func() bool {
		all, err := c.ListBalancers(ctx)
		require.NoError(t, err)
		return len(all) == 0
	})
	stop(t, m)
}

func start(t *testing.T, m *ccm) {
	t.Helper()
	require.NoError(t, m.Start(t.Context()))
	t.Cleanup(func() { _ = m.Stop(context.Background()) })
	require.NoError(t, m.Start(t.Context()), "starting one that runs does nothing")
}

// stop requires that no goroutine of the CCM's is left, either.
func stop(t *testing.T, m *ccm) {
	t.Helper()
	require.NoError(t, m.Stop(t.Context()))
	require.NoError(t, m.Stop(t.Context()), "stopping one that does not run does nothing")
	eventually(t, func() bool { return !upstreamRuns() })
}

func eventually(t *testing.T, is func() bool) {
	t.Helper()
	require.Eventually(t, is, time.Minute, 10*time.Millisecond, "%s", stacks())
}

// upstreamRuns tells whether there is a goroutine of the controllers' or their
// informers'.
func upstreamRuns() bool {
	all := stacks()
	return strings.Contains(all, "k8s.io/cloud-provider") || strings.Contains(all, "client-go/tools/") ||
		strings.Contains(all, "client-go/util/workqueue")
}

func stacks() string {
	all := make([]byte, 4<<20)
	return string(all[:runtime.Stack(all, true)])
}

func newNode(name, providerID string) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.NodeSpec{
		ProviderID: providerID, Taints: []corev1.Taint{
			{Key: cloudproviderapi.TaintExternalCloudProvider, Value: "true", Effect: corev1.TaintEffectNoSchedule},
		},
	}}
}

func newService() *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "default", UID: types.UID("u-1")},
		Spec: corev1.ServiceSpec{
			Type:  corev1.ServiceTypeLoadBalancer,
			Ports: []corev1.ServicePort{{Protocol: corev1.ProtocolTCP, Port: 80, NodePort: 30080}},
		},
	}
}
