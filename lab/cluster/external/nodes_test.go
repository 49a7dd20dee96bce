package external

import (
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/lab/cluster"
	"github.com/ccmlab/ccmlab/lab/ui"
)

func node(name, providerID string, taints ...corev1.Taint) corev1.Node {
	return corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       corev1.NodeSpec{ProviderID: providerID, Taints: taints},
		Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{
			{Type: corev1.NodeHostName, Address: name},
			{Type: corev1.NodeInternalIP, Address: "fd00::1"},
			{Type: corev1.NodeInternalIP, Address: "10.0.0.1"},
		}},
	}
}

var waits = corev1.Taint{
	Key: "node.cloudprovider.kubernetes.io/uninitialized", Value: "true", Effect: corev1.TaintEffectNoSchedule,
}

func TestNodesOfAnotherProviderAreNamed(t *testing.T) {
	mine, waiting, theirs := node("a", "fakecloud://i-1"), node("b", "", waits), node("c", "kind://docker/x/c")
	require.NoError(t, checkNoCCM(t.Context(), fake.NewClientset(&mine, &waiting)))
	err := checkNoCCM(t.Context(), fake.NewClientset(&mine, &theirs))
	require.ErrorContains(t, err, "another provider: c (kind://docker/x/c); use a cluster whose")
}

func lease(holder string, renewed time.Time) *coordinationv1.Lease {
	at, seconds := metav1.NewMicroTime(renewed), int32(15)
	return &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: leaseName},
		Spec:       coordinationv1.LeaseSpec{HolderIdentity: &holder, RenewTime: &at, LeaseDurationSeconds: &seconds},
	}
}

// Whoever renews the lease is a CCM; one that has ended keeps it for a while.
func TestWhoHoldsTheLease(t *testing.T) {
	for name, tc := range map[string]struct {
		holder string
		age    time.Duration
		renews bool
		want   string
		within time.Duration
	}{
		"given back": {holder: "", renews: true},
		"run out":    {holder: "old", age: time.Minute},
		"dead":       {holder: "old", within: 16 * time.Second},
		"alive": {
			holder: "them", renews: true, want: "them holds the lease kube-system/cloud-controller-manager",
			within: 3 * time.Second,
		},
		"ahead": {holder: "them", age: -time.Hour, want: "them holds the lease", within: leaseBound},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				kube := fake.NewClientset(lease(tc.holder, began.Add(-tc.age)))
				done := make(chan struct{})
				go func() {
					for tc.renews {
						select {
						case <-done:
							return
						case <-time.After(2 * time.Second):
							_, err := kube.CoordinationV1().Leases("kube-system").
								Update(t.Context(), lease(tc.holder, time.Now()), metav1.UpdateOptions{})
							assert.NoError(t, err)
						}
					}
				}()
				err := checkLeaseFree(t.Context(), kube)
				close(done)
				if tc.want == "" {
					assert.NoError(t, err)
				} else {
					assert.ErrorContains(t, err, tc.want)
				}
				assert.LessOrEqual(t, time.Since(began), tc.within)
			})
		})
	}
	require.NoError(t, checkLeaseFree(t.Context(), fake.NewClientset()))
}

func TestPresent(t *testing.T) {
	instances := []api.Instance{{ID: "i-1", State: api.InstanceRunning}, {ID: "i-2", State: api.InstanceTerminated}}
	nodes := []corev1.Node{
		node("a", "fakecloud://i-1"), node("b", "fakecloud://i-2"), node("c", "", waits), node("d", "other://d"),
		node("e", ""),
	}
	machines, err := presentMachines(nodes, instances)
	require.NoError(t, err)
	assert.Equal(t, []cluster.Machine{{Name: "a", Address: "10.0.0.1"}, {Name: "c", Address: "10.0.0.1"}}, machines)

	assert.Equal(t, []netip.Addr{netip.MustParseAddr("10.0.0.1")}, targetAddresses(nodes[2:]), "balancers may send to c alone")
	_, err = presentMachines(nodes, instances[1:])
	require.ErrorContains(t, err, "a (fakecloud://i-1), and a provider ID cannot be changed")
	assert.ErrorContains(t, err, "`kubectl delete node NAME` and restart its kubelet")
	assert.NotContains(t, err.Error(), "i-2")
}

func TestManyNodesAreNotAllNamed(t *testing.T) {
	assert.Equal(t, "1, 2, 3, 4, 5 and 2 more", ui.JoinFirst([]string{"1", "2", "3", "4", "5", "6", "7"}, namesShown))
}
