package hollowkubelet

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/kubernetes/pkg/kubelet"
	kubecontainer "k8s.io/kubernetes/pkg/kubelet/container"
	"k8s.io/kubernetes/pkg/kubelet/prober/results"
	probetest "k8s.io/kubernetes/pkg/kubelet/prober/testing"
	"k8s.io/kubernetes/pkg/kubelet/status"
)

// The fields that newProber reads are private to upstream's kubelet. This test fails when a new
// version renames one or changes its type.
func TestPinnedKubeletHasProberFields(t *testing.T) {
	probes := NewProbeManager()
	_, err := probes.newProber(&kubelet.Kubelet{})
	require.NoError(t, err)
	require.NotNil(t, probes.Manager)
}

// countingProbeManager counts the calls of UpdatePodStatus.
type countingProbeManager struct {
	probetest.FakeManager
	updates int
}

func (c *countingProbeManager) UpdatePodStatus(context.Context, *v1.Pod, *v1.PodStatus) { c.updates++ }

func TestNewContainersAreProbedAtOnce(t *testing.T) {
	manager := &countingProbeManager{}
	probes := &ProbeManager{Manager: manager, readiness: results.NewManager()}
	probes.readiness.Set(kubecontainer.ParseContainerID("lab://probed"), results.Failure, &v1.Pod{})
	running := v1.ContainerState{Running: &v1.ContainerStateRunning{}}
	for _, c := range []struct {
		container v1.ContainerStatus
		want      int
	}{
		{v1.ContainerStatus{ContainerID: "lab://probed", State: running}, 0},
		{v1.ContainerStatus{ContainerID: "lab://new"}, 0},
		{v1.ContainerStatus{ContainerID: "lab://new", State: running}, 1},
	} {
		manager.updates = 0
		probes.OnPodUpdated(&v1.Pod{}, v1.PodStatus{ContainerStatuses: []v1.ContainerStatus{c.container}}, false)
		assert.Equal(t, c.want, manager.updates, c.container)
	}
}

func TestPodsAreKnownUntilRemoved(t *testing.T) {
	pod := &v1.Pod{}
	pod.UID = "uid"
	pod.Spec.Containers = []v1.Container{{Ports: []v1.ContainerPort{{ContainerPort: 80}}}}
	probes := NewProbeManager()
	probes.Manager = probetest.FakeManager{}
	known := func(want bool) {
		t.Helper()
		found := probes.Pod("uid")
		require.Equal(t, want, found != nil)
		if want {
			assert.EqualValues(t, 61080, found.Spec.Containers[0].Ports[0].ContainerPort, "as it is served")
		}
	}

	known(false)
	probes.AddPod(context.Background(), pod)
	known(true)
	probes.CleanupPods(map[types.UID]sets.Empty{"uid": {}})
	known(true)
	probes.CleanupPods(nil)
	known(false)
	probes.AddPod(context.Background(), pod)
	probes.RemovePod(pod)
	known(false)
}

type fakeStatus struct {
	status.Manager
	podIP string
}

func (f fakeStatus) GetPodStatus(types.UID) (v1.PodStatus, bool) {
	return v1.PodStatus{PodIP: f.podIP}, true
}

func TestProbesDialLoopbackAddress(t *testing.T) {
	for given, want := range map[string]string{"10.77.128.5": "127.77.128.5", "127.77.16.1": "127.77.16.1", "": ""} {
		got, _ := loopbackStatus{fakeStatus{podIP: given}}.GetPodStatus("uid")
		assert.Equal(t, want, got.PodIP, "where pod IP %q is probed", given)
	}
}
