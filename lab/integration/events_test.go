package integration

// What people are told, each by its exact reason: programs look for these.

import (
	"fmt"
	"net"
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ccmlab/ccmlab/ccm/contract"
	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/lab/testbed"
)

func TestWhatNodesAreTold(t *testing.T) {
	t.Parallel()
	w := newWorld(t, testbed.Options{})
	w.startCCM(testbed.CCMOptions{})

	t.Run("no instance of that name, until it comes", func(t *testing.T) {
		w := w.in(t)
		require.NoError(t, w.RegisterNodes(w.ctx, nil, "late"))
		uid := w.nodeUID("late")
		w.awaitEvent(uid, contract.ReasonInstanceNotFound, "late")
		_, err := w.CreateInstances(w.ctx, "late")
		require.NoError(t, err)
		w.awaitInitialized("late")
		told := w.events(uid, contract.ReasonInstanceNotFound)
		require.Len(t, told, 1)
		assert.LessOrEqual(t, told[0].Count, int32(1), "once per cause, not per retry")
	})
	t.Run("an instance stops, and ends", func(t *testing.T) {
		w := w.in(t)
		instance := w.addNode("ends")
		uid := w.nodeUID("ends")
		_, err := w.Cloud().StopInstance(w.ctx, instance.ID)
		require.NoError(t, err)
		w.awaitEvent(uid, contract.ReasonInstanceStopped, instance.ID)
		_, err = w.Cloud().TerminateInstance(w.ctx, instance.ID)
		require.NoError(t, err)
		w.awaitNodeGone("ends") // Its Ready condition was True all the time.
		w.awaitEvent(uid, contract.ReasonNodeRemoved, instance.ID)
	})
	t.Run("the kubelet names an address that the cloud does not", func(t *testing.T) {
		w := w.in(t)
		made, err := w.CreateInstances(w.ctx, "elsewhere")
		require.NoError(t, err)
		require.NoError(t, w.RegisterNodes(w.ctx, func(_ int, n *corev1.Node) {
			n.Annotations = map[string]string{"alpha.kubernetes.io/provided-node-ip": "192.0.2.1"}
		}, "elsewhere"))
		w.awaitEvent(w.nodeUID("elsewhere"), contract.ReasonProvidedNodeIP, "192.0.2.1", made[0].Addresses[0].IP)
	})
	t.Run("another cloud's", func(t *testing.T) {
		w := w.in(t)
		require.NoError(
			t, w.RegisterNodes(w.ctx, func(_ int, n *corev1.Node) { n.Spec.ProviderID = "aws:///eu/i-1" }, "foreign"),
		)
		w.awaitEvent(w.nodeUID("foreign"), contract.ReasonForeignProviderID, "aws:///eu/i-1")
	})
	t.Run("throttled", func(t *testing.T) {
		w := w.in(t)
		_, lift := w.fault(api.FaultCreate{Effect: api.FaultEffect{Status: 429, RetryAfterSeconds: 2}})
		require.NoError(t, w.RegisterNodes(w.ctx, nil, "throttled"))
		w.awaitEvent(w.nodeUID("throttled"), contract.ReasonCloudThrottled)
		lift()
		_, err := w.CreateInstances(w.ctx, "throttled")
		require.NoError(t, err)
		w.awaitInitialized("throttled")
	})
	t.Run("no access", func(t *testing.T) {
		w := w.in(t)
		_, lift := w.fault(api.FaultCreate{Effect: api.FaultEffect{Status: 403}})
		require.NoError(t, w.RegisterNodes(w.ctx, nil, "denied"))
		w.awaitEvent(w.nodeUID("denied"), contract.ReasonCloudAccessDenied)
		lift()
		_, err := w.CreateInstances(w.ctx, "denied")
		require.NoError(t, err)
		w.awaitInitialized("denied")
	})
}

// The token is swapped to that of another project: nothing that it shows is
// believed, and nothing is deleted.
func TestATokenOfAnotherProject(t *testing.T) {
	t.Parallel()
	w := newWorld(t, testbed.Options{})
	w.startCCM(testbed.CCMOptions{})
	w.addNode("node-1")
	svc := w.create(service("web", 8080))
	w.awaitAddress(svc, "")

	other, err := w.Cloud().CreateProject(w.ctx, api.ProjectCreate{Name: "other"})
	require.NoError(t, err)
	token, err := w.Cloud().CreateToken(w.ctx, other.ID, api.TokenCreate{Name: "ccm-of-other", Role: api.RoleEditor})
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(w.CCMToken, []byte(token.Secret+"\n"), 0o600))

	require.NoError(t, w.RegisterNodes(w.ctx, nil, "node-2"))
	w.awaitEvent(w.nodeUID("node-2"), contract.ReasonWrongProject, "other")
	require.NoError(t, w.SetReady(w.ctx, corev1.ConditionUnknown, "node-1"))
	w.change(svc, func(s *corev1.Service) { s.Spec.Ports[0].Port = 8081 })
	w.awaitEvent(string(svc.UID), contract.ReasonWrongProject, "other")
	w.nodeExists("node-1")
	assert.Len(t, w.balancers(svc), 1)
}

func TestWhatServicesAreTold(t *testing.T) {
	t.Parallel()
	w := newWorld(t, testbed.Options{})
	w.startCCM(testbed.CCMOptions{})
	w.addNode("node-1")

	t.Run("quota", func(t *testing.T) {
		w := w.in(t)
		none := api.QuotaLimit(0)
		_, err := w.Cloud().UpdateProjectQuotas(w.ctx, w.projectID(), api.QuotasUpdate{LoadBalancers: &none})
		require.NoError(t, err)
		svc := w.create(service("quota", 8080))
		w.awaitEvent(string(svc.UID), contract.ReasonQuotaExceeded)
		many := api.QuotaLimit(100)
		_, err = w.Cloud().UpdateProjectQuotas(w.ctx, w.projectID(), api.QuotasUpdate{LoadBalancers: &many})
		require.NoError(t, err)
		w.awaitAddress(svc, "")
		assert.Len(t, w.events(string(svc.UID), contract.ReasonQuotaExceeded), 1)
	})
	t.Run("the balancer failed", func(t *testing.T) {
		w := w.in(t)
		reason := "no capacity in this region"
		_, lift := w.fault(api.FaultCreate{
			Match:  api.FaultMatch{Kinds: []api.FaultMatchKinds{api.FaultLoadBalancer}},
			Effect: api.FaultEffect{Fail: reason},
		})
		svc := w.create(service("failed", 8081))
		w.awaitEvent(string(svc.UID), contract.ReasonLoadBalancerFailed, reason)
		lift()
		w.awaitAddress(svc, "")
	})
	t.Run("a port that cannot be bound", func(t *testing.T) {
		w := w.in(t)
		// Whoever listens on all addresses keeps everybody off the port.
		busy, err := net.Listen("tcp", "0.0.0.0:0")
		require.NoError(t, err)
		defer func() { _ = busy.Close() }()
		port := busy.Addr().(*net.TCPAddr).Port
		svc := w.create(service("bound", int32(port)))
		w.awaitEvent(string(svc.UID), contract.ReasonPortCannotBeBound, fmt.Sprint(port))
		require.NoError(t, busy.Close())
		w.awaitAddress(svc, "")
	})
	t.Run("what the cloud cannot do", func(t *testing.T) {
		w := w.in(t)
		asked := service("sctp", 8083)
		asked.Spec.Ports[0].Protocol = corev1.ProtocolSCTP
		asked.Spec.LoadBalancerSourceRanges = nil
		svc := w.create(asked)
		w.awaitEvent(string(svc.UID), contract.ReasonInvalidService, "SCTP")
		assert.Empty(t, w.balancers(svc))
		w.remove(svc)
		w.awaitServiceGone(svc)
	})
	t.Run("an address that is not reserved", func(t *testing.T) {
		w := w.in(t)
		asked := service("address", 8084)
		asked.Spec.LoadBalancerIP = "127.99.99.99" //nolint:staticcheck // Deprecated, and still in use.
		svc := w.create(asked)
		w.awaitEvent(string(svc.UID), contract.ReasonAddressNotAvailable, "127.99.99.99")
		assert.Empty(t, w.balancers(svc))
	})
}

func (w *world) projectID() string {
	w.t.Helper()
	p, err := w.Cloud().Project(w.ctx)
	require.NoError(w.t, err)
	return p.ID
}

// Upstream says again at each retry that a route could not be made; we say once
// why.
func TestWhatRoutesAreTold(t *testing.T) {
	t.Parallel()
	w := newWorld(t, testbed.Options{})
	w.startCCM(testbed.CCMOptions{Flags: []string{
		"--configure-cloud-routes=true", "--cluster-cidr=10.200.0.0/16", "--route-reconciliation-period=1s",
	}})
	made, err := w.CreateInstances(w.ctx, "node-1", "node-2")
	require.NoError(t, err)
	_, err = w.Cloud().
		CreateRoute(w.ctx, api.RouteCreate{Name: "somebodys", Destination: "10.200.1.0/24", InstanceID: made[0].ID})
	require.NoError(t, err)
	require.NoError(t, w.RegisterNodes(w.ctx, func(i int, n *corev1.Node) {
		n.Spec.PodCIDR = fmt.Sprintf("10.200.%d.0/24", i)
		n.Spec.PodCIDRs = []string{n.Spec.PodCIDR}
	}, "node-1", "node-2"))
	w.awaitEvent(w.nodeUID("node-2"), contract.ReasonRouteConflict, "somebodys")
	assert.Len(t, w.events(w.nodeUID("node-2"), contract.ReasonRouteConflict), 1)
	w.await("the other node's network", func() error {
		n, err := w.Admin().CoreV1().Nodes().Get(w.ctx, "node-1", metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, c := range n.Status.Conditions {
			if c.Type == corev1.NodeNetworkUnavailable && c.Status == corev1.ConditionFalse {
				return nil
			}
		}
		return fmt.Errorf("conditions: %v", n.Status.Conditions)
	})
}
