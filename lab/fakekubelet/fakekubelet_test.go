package fakekubelet

import (
	"testing"

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
