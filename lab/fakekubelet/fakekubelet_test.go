package fakekubelet

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
)

// A Node that is lost once would be so to the end of its test, however well its lease
// is renewed.
func TestANodeThatWasTakenForLostComesBack(t *testing.T) {
	for said, want := range map[corev1.ConditionStatus]corev1.ConditionStatus{
		corev1.ConditionUnknown: corev1.ConditionTrue,
		corev1.ConditionTrue:    corev1.ConditionTrue,
		corev1.ConditionFalse:   corev1.ConditionFalse, // A kubelet's own word.
	} {
		k := &Kubelets{}
		node := k.NewNode("worker")
		node.Status.Conditions[0].Status = said
		kube := fake.NewClientset(node)
		k.Kube = kube
		restored, err := k.RestoreIfLost(t.Context(), "worker")
		require.NoError(t, err)
		assert.Equal(t, said != want, restored)
		now, err := kube.CoreV1().Nodes().Get(t.Context(), "worker", metav1.GetOptions{})
		require.NoError(t, err)
		assert.Equal(t, want, now.Status.Conditions[0].Status, said)
	}
	restored, err := (&Kubelets{Kube: fake.NewClientset()}).RestoreIfLost(t.Context(), "gone")
	require.NoError(t, err)
	assert.False(t, restored)
}

// A lease is created once and renewed from then on, whoever else writes or deletes it.
func TestRenewLease(t *testing.T) {
	kube := fake.NewClientset()
	k, leases := &Kubelets{Kube: kube}, kube.CoordinationV1().Leases(corev1.NamespaceNodeLease)
	renewed := func() time.Time {
		require.NoError(t, k.RenewLease(t.Context(), "worker"))
		lease, err := leases.Get(t.Context(), "worker", metav1.GetOptions{})
		require.NoError(t, err)
		assert.Equal(t, "worker", *lease.Spec.HolderIdentity)
		return lease.Spec.RenewTime.Time
	}
	first := renewed()
	assert.True(t, renewed().After(first))

	require.NoError(t, leases.Delete(t.Context(), "worker", metav1.DeleteOptions{}))
	require.NoError(t, k.RenewLease(t.Context(), "worker"), "the next round creates it")
	again := renewed()

	k = &Kubelets{Kube: kube} // That does not know yet that there is one.
	assert.Equal(t, again, renewed())
	assert.True(t, renewed().After(again))
	require.NoError(t, k.DeleteNode(t.Context(), "worker"), "there is only its lease")
	list, err := leases.List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	assert.Empty(t, list.Items)
}
