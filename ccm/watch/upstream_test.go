package watch

import (
	"testing"

	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Which Nodes become targets, as upstream's stableNodeSetPredicates have it.
func TestTargetNodes(t *testing.T) {
	now := metav1.Now()
	for name, tc := range map[string]struct {
		change func(n *corev1.Node)
		want   bool
	}{
		"a plain one": {change: func(*corev1.Node) {}, want: true},
		"not Ready: the health check finds out": {change: func(n *corev1.Node) {
			n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionFalse}}
		}, want: true},
		"cordoned": {change: func(n *corev1.Node) { n.Spec.Unschedulable = true }, want: true},
		"tainted": {change: func(n *corev1.Node) {
			n.Spec.Taints = []corev1.Taint{{Key: "any", Effect: corev1.TaintEffectNoSchedule}}
		}, want: true},
		"being deleted": {change: func(n *corev1.Node) { n.DeletionTimestamp = &now }},
		"excluded": {change: func(n *corev1.Node) {
			n.Labels = map[string]string{corev1.LabelNodeExcludeBalancers: "true"}
		}},
		"excluded by \"\"": {change: func(n *corev1.Node) {
			n.Labels = map[string]string{corev1.LabelNodeExcludeBalancers: ""}
		}},
		"told that it is not excluded": {change: func(n *corev1.Node) {
			n.Labels = map[string]string{corev1.LabelNodeExcludeBalancers: "false"}
		}, want: true},
		"about to be removed by the autoscaler": {change: func(n *corev1.Node) {
			n.Spec.Taints = []corev1.Taint{
				{Key: "ToBeDeletedByClusterAutoscaler", Effect: corev1.TaintEffectNoSchedule},
			}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			n := node("fakecloud://i-1")
			tc.change(n)
			assert.Equal(t, tc.want, isTargetNode(n))
		})
	}
}
