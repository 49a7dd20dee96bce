package watch

import (
	"testing"

	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Which Nodes become targets, as upstream's stableNodeSetPredicates have it: those that are not Ready, too.
func TestTargetNodes(t *testing.T) {
	excluded := func(value string) *corev1.Node {
		n := node("fakecloud://i-1")
		n.Labels = map[string]string{corev1.LabelNodeExcludeBalancers: value}
		return n
	}
	tainted := func(key string) *corev1.Node {
		n := node("fakecloud://i-1")
		n.Spec.Taints = []corev1.Taint{{Key: key, Effect: corev1.TaintEffectNoSchedule}}
		return n
	}
	leaving, notReady := node("fakecloud://i-1"), node("fakecloud://i-1")
	leaving.DeletionTimestamp = new(metav1.Now())
	notReady.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionFalse}}
	for _, is := range []*corev1.Node{notReady, excluded("false"), tainted(corev1.TaintNodeUnschedulable)} {
		assert.True(t, isTargetNode(is), "%+v", is)
	}
	for _, not := range []*corev1.Node{
		leaving, excluded("true"), excluded(""), tainted("ToBeDeletedByClusterAutoscaler"),
	} {
		assert.False(t, isTargetNode(not), "%+v", not)
	}
}
