package runtime

import (
	"reflect"
	"testing"

	"github.com/stretchr/testify/assert"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

func TestUnlistedPorts(t *testing.T) {
	port := intstr.FromInt32
	pod := &v1.Pod{Spec: v1.PodSpec{
		InitContainers: []v1.Container{{Name: "init", Ports: []v1.ContainerPort{{ContainerPort: 1}}}},
		Containers: []v1.Container{{
			Name:           "main",
			Ports:          []v1.ContainerPort{{ContainerPort: 2}},
			StartupProbe:   &v1.Probe{ProbeHandler: v1.ProbeHandler{GRPC: &v1.GRPCAction{Port: 5}}},
			LivenessProbe:  &v1.Probe{ProbeHandler: v1.ProbeHandler{TCPSocket: &v1.TCPSocketAction{Port: port(4)}}},
			ReadinessProbe: &v1.Probe{ProbeHandler: v1.ProbeHandler{HTTPGet: &v1.HTTPGetAction{Port: port(4)}}},
			Lifecycle: &v1.Lifecycle{
				PostStart: &v1.LifecycleHandler{HTTPGet: &v1.HTTPGetAction{Port: port(6)}},
				PreStop:   &v1.LifecycleHandler{HTTPGet: &v1.HTTPGetAction{Port: port(7), Host: "192.0.2.1"}},
			},
		}, {
			Name:          "beside",
			LivenessProbe: &v1.Probe{ProbeHandler: v1.ProbeHandler{TCPSocket: &v1.TCPSocketAction{Port: port(2)}}},
			ReadinessProbe: &v1.Probe{ProbeHandler: v1.ProbeHandler{
				HTTPGet: &v1.HTTPGetAction{Port: intstr.FromString("unknown")},
			}},
		}},
	}}
	for name, want := range map[string][]int32{"main": {4, 5, 6}, "beside": nil} {
		assert.Equal(t, want, containerSpecOf(pod, name).unlistedPorts, name)
	}
}

func TestServedPod(t *testing.T) {
	newPod := func(hostNetwork bool, http, tcp, grpc, hook, declared int32, hosts ...string) *v1.Pod {
		get := func(port int32, host string) *v1.HTTPGetAction {
			return &v1.HTTPGetAction{Port: intstr.FromInt32(port), Host: host}
		}
		return &v1.Pod{Spec: v1.PodSpec{HostNetwork: hostNetwork, Containers: []v1.Container{{
			Ports:        []v1.ContainerPort{{Name: "web", ContainerPort: declared, HostPort: declared}, {ContainerPort: 8080}},
			StartupProbe: &v1.Probe{ProbeHandler: v1.ProbeHandler{GRPC: &v1.GRPCAction{Port: grpc}}},
			LivenessProbe: &v1.Probe{ProbeHandler: v1.ProbeHandler{
				TCPSocket: &v1.TCPSocketAction{Port: intstr.FromInt32(tcp), Host: hosts[0]},
			}},
			ReadinessProbe: &v1.Probe{ProbeHandler: v1.ProbeHandler{HTTPGet: get(http, hosts[1])}},
			Lifecycle:      &v1.Lifecycle{PreStop: &v1.LifecycleHandler{HTTPGet: get(hook, hosts[2])}},
		}}}}
	}
	for name, c := range map[string]struct{ given, want *v1.Pod }{
		"low ports are moved": {
			newPod(false, 80, 81, 82, 83, 84, "", "", ""), newPod(false, 61080, 61081, 61082, 61083, 61084, "", "", ""),
		},
		"other ports stay": {
			newPod(false, 1024, 1025, 1026, 1027, 1028, "", "", ""), newPod(false, 1024, 1025, 1026, 1027, 1028, "", "", ""),
		},
		"other hosts stay": {
			newPod(false, 80, 81, 82, 83, 84, "192.0.2.1", "127.0.0.1", ""),
			newPod(false, 80, 81, 61082, 61083, 61084, "192.0.2.1", "127.0.0.1", ""),
		},
		"a host network pod's loopback is the node": {
			newPod(true, 80, 7472, 82, 83, 84, "127.0.0.1", "localhost", "192.0.2.1"),
			newPod(true, 61080, 7472, 61082, 83, 61084, "", "", "192.0.2.1"),
		},
	} {
		before := c.given.DeepCopy()
		assert.Equal(t, c.want, ServedPod(c.given), name)
		if !reflect.DeepEqual(c.given, before) {
			t.Errorf("%s: the kubelet's own pod has changed", name)
		}
	}
}
