package conformance

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
func TestAStandInThatWasTakenForLostComesBack(t *testing.T) {
	for said, want := range map[corev1.ConditionStatus]corev1.ConditionStatus{
		corev1.ConditionUnknown: corev1.ConditionTrue,
		corev1.ConditionTrue:    corev1.ConditionTrue,
		corev1.ConditionFalse:   corev1.ConditionFalse, // A kubelet's own word.
	} {
		node := nodeFromSpec(NodeSpec{Name: "worker"})
		node.Status.Conditions = []corev1.NodeCondition{readyCondition(said, "")}
		kube := fake.NewClientset(node)
		n := &StandIn{Name: "worker", t: &T{Suite: &Suite{Kube: kube}}}
		require.NoError(t, n.restoreIfLost(t.Context()))
		now, err := kube.CoreV1().Nodes().Get(t.Context(), "worker", metav1.GetOptions{})
		require.NoError(t, err)
		assert.Equal(t, want, now.Status.Conditions[0].Status, said)
	}
	gone := &StandIn{Name: "gone", t: &T{Suite: &Suite{Kube: fake.NewClientset()}}}
	assert.NoError(t, gone.restoreIfLost(t.Context()))
}
