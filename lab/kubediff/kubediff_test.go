package kubediff_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ccmlab/ccmlab/lab/kubediff"
)

func TestNodes(t *testing.T) {
	before := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", Labels: map[string]string{"zone": "a"}}}
	before.Spec.Taints = []corev1.Taint{{Key: "wait", Effect: "NoSchedule"}, {Key: "other", Effect: "NoSchedule"}}
	before.Status.Conditions = []corev1.NodeCondition{{Type: "Ready", Status: "True"}, {Type: "Old", Status: "False"}}
	after := before.DeepCopy()
	assert.Equal(t, kubediff.Nodes(before, after), kubediff.Nodes(after, before), "nothing has changed")
	assert.Empty(t, kubediff.Nodes(before, after).Conditions)

	after.Spec.ProviderID, after.Labels = "x://1", map[string]string{"zone": "b"}
	after.Spec.Taints = []corev1.Taint{{Key: "other", Effect: "NoExecute"}}
	after.Status.Conditions = []corev1.NodeCondition{{Type: "Ready", Status: "Unknown", Reason: "Silent"}}
	d := kubediff.Nodes(before, after)
	assert.Equal(
		t, kubediff.Set{Added: []string{"other:NoExecute"}, Removed: []string{"wait:NoSchedule", "other:NoSchedule"}},
		d.Taints,
	)
	assert.Equal(t, []string{"wait"}, d.TaintKeys.Removed)
	assert.Empty(t, d.TaintKeys.Added, "its effect is another, and its key is the same")
	assert.Equal(t, kubediff.Set{Added: []string{"zone=b"}, Removed: []string{"zone=a"}}, d.Labels)
	assert.True(t, d.ProviderID.Changed())
	assert.False(t, d.Unschedulable.Changed())
	assert.Equal(t, []kubediff.Condition{
		{Type: "Ready", Before: "True", After: "Unknown", Reason: "Silent"}, {Type: "Old", Before: "False"},
	}, d.Conditions)

	created := kubediff.Nodes(nil, after)
	assert.True(t, created.Created)
	assert.Empty(t, created.Labels.Added, "those it comes with")
	assert.Equal(t, []string{"other"}, created.TaintKeys.Added)
	assert.Equal(t, kubediff.Node{Object: kubediff.Object{Name: "n", Deleted: true}}, kubediff.Nodes(after, nil))
}

func TestServices(t *testing.T) {
	before := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "web", Name: "s", Annotations: map[string]string{"a": "1"}},
	}
	before.Spec.Type, before.Spec.LoadBalancerSourceRanges = corev1.ServiceTypeLoadBalancer, []string{}
	after := before.DeepCopy()
	after.Spec.LoadBalancerSourceRanges = nil
	after.Finalizers, after.DeletionTimestamp = []string{"f"}, new(metav1.Now())
	after.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{
		{IP: "192.0.2.1", IPMode: new(corev1.LoadBalancerIPModeVIP)},
	}
	d := kubediff.Services(before, after)
	assert.False(t, d.SourceRanges.Changed(), "an empty list is like none")
	assert.True(t, d.DeletionStarted)
	assert.Equal(t, []string{"f"}, d.FinalizerSet.Added)
	assert.Equal(t, []string{"192.0.2.1 (VIP)"}, d.Ingress.Added)
	assert.Equal(t, kubediff.Value[string]{After: "192.0.2.1"}, d.IngressAddress)

	created := kubediff.Services(nil, after)
	assert.True(t, created.Created)
	assert.False(t, created.Type.Changed())
	assert.Empty(t, created.Annotations.Added)
	assert.Equal(t, corev1.ServiceTypeLoadBalancer, kubediff.Services(after, nil).Type.Before)
}
