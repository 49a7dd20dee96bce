package chaos

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	cloudproviderapi "k8s.io/cloud-provider/api"

	"github.com/ccmlab/ccmlab/ccm/contract"
	"github.com/ccmlab/ccmlab/fakecloud/api"
)

// wellFacts are two instances with their Nodes, one of which is stopped, and a Service with its balancer.
func wellFacts() *facts {
	node := func(name string, ready corev1.ConditionStatus, taints ...corev1.Taint) corev1.Node {
		return corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec:       corev1.NodeSpec{ProviderID: contract.ProviderID("i-" + name), Taints: taints},
			Status: corev1.NodeStatus{
				Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: ready}},
			},
		}
	}
	return &facts{
		instances: map[string]api.Instance{
			"i-a": {ID: "i-a", Name: "a", State: api.InstanceRunning},
			"i-b": {ID: "i-b", Name: "b", State: api.InstanceStopped},
		},
		nodes: []corev1.Node{
			node("a", corev1.ConditionTrue),
			node("b", corev1.ConditionUnknown, corev1.Taint{Key: cloudproviderapi.TaintNodeShutdown}),
		},
		services: []corev1.Service{{
			ObjectMeta: metav1.ObjectMeta{Name: "web", UID: "uid"},
			Spec: corev1.ServiceSpec{
				Type: corev1.ServiceTypeLoadBalancer, Ports: []corev1.ServicePort{{Port: 80, NodePort: 30080}},
			},
			Status: corev1.ServiceStatus{
				LoadBalancer: corev1.LoadBalancerStatus{Ingress: []corev1.LoadBalancerIngress{{IP: "192.0.2.1"}}},
			},
		}},
		balancers: []api.LoadBalancer{{
			Metadata: api.Metadata{Name: "web", Tags: api.Tags{contract.TagServiceUID: "uid"}}, Address: "192.0.2.1", State: api.LoadBalancerActive,
			Listeners: []api.Listener{{Port: 80, TargetPort: 30080}},
			Targets:   []api.Target{{InstanceID: "i-a"}, {InstanceID: "i-b"}},
		}},
	}
}

// Whatever is not as it should be is told.
func TestFactsThatAreNotWell(t *testing.T) {
	require.NoError(t, wellFacts().checkNodes())
	require.NoError(t, wellFacts().checkServices(t.Context()))
	for want, spoil := range map[string]func(*facts){
		"instance b (i-b) is stopped and has no Node":      func(f *facts) { f.nodes = f.nodes[:1] },
		"of which there is no instance":                    func(f *facts) { delete(f.instances, "i-b") },
		"its Node is initialised: true, Ready: true, shut": func(f *facts) { f.nodes[0].Spec.Taints = f.nodes[1].Spec.Taints },
		"initialised: false": func(f *facts) {
			f.nodes[0].Spec.Taints = []corev1.Taint{{Key: cloudproviderapi.TaintExternalCloudProvider}}
		},
		"it has 0 balancers": func(f *facts) { f.balancers = nil },
		"it has 2 balancers": func(f *facts) { f.balancers = append(f.balancers, f.balancers[0]) },
		"is of no Service":   func(f *facts) { f.services = nil },
		"targets are":        func(f *facts) { f.balancers[0].Targets = f.balancers[0].Targets[:1] },
		"targets are [i-a i-b]": func(f *facts) {
			f.nodes[0].Labels = map[string]string{corev1.LabelNodeExcludeBalancers: "true"}
		},
		"listens as":          func(f *facts) { f.services[0].Spec.Ports[0].Port = 81 },
		"its status has \"\"": func(f *facts) { f.services[0].Status = corev1.ServiceStatus{} },
	} {
		f := wellFacts()
		spoil(f)
		found := ""
		for _, err := range []error{f.checkNodes(), f.checkServices(t.Context())} {
			if err != nil {
				found += err.Error()
			}
		}
		assert.Contains(t, found, want)
	}
}

func TestPodsOfALostNodeDoNotAnswer(t *testing.T) {
	pod := func(node string, ready corev1.ConditionStatus) corev1.Pod {
		return corev1.Pod{
			Spec:   corev1.PodSpec{NodeName: node},
			Status: corev1.PodStatus{Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: ready}}},
		}
	}
	pods := []corev1.Pod{
		pod("a", corev1.ConditionTrue), pod("a", corev1.ConditionFalse), pod("b", corev1.ConditionTrue),
		pod("gone", corev1.ConditionTrue),
	}
	assert.Equal(t, map[string]int{"a": 1}, countAnswering(pods, wellFacts().nodes))
}
