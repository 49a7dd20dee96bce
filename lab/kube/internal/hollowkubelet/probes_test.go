package hollowkubelet

import (
	"context"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/kubernetes/pkg/kubelet"
	probetest "k8s.io/kubernetes/pkg/kubelet/prober/testing"
	"k8s.io/kubernetes/pkg/kubelet/status"
)

// The fields that newProber reads are private to upstream's kubelet. This fails
// when a new version of it renames one or changes its type.
func TestProberFindsItsPartsInThePinnedKubelet(t *testing.T) {
	manager, err := newProber(&kubelet.Kubelet{})
	if err != nil {
		t.Fatal(err)
	}
	if manager == nil {
		t.Fatal("no prober")
	}
}

func TestPodsAreKnownUntilTheyGo(t *testing.T) {
	pod := &v1.Pod{}
	pod.UID = "uid"
	probes := NewProbes()
	probes.Manager = probetest.FakeManager{}
	known := func(want bool) {
		t.Helper()
		if got := probes.Pod("uid") == pod; got != want {
			t.Errorf("known: %v, want %v", got, want)
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

type statusOf struct {
	status.Manager
	podIP string
}

func (s statusOf) GetPodStatus(types.UID) (v1.PodStatus, bool) {
	return v1.PodStatus{PodIP: s.podIP}, true
}

func TestProbesDialTheRealisedAddress(t *testing.T) {
	for given, want := range map[string]string{"10.77.128.5": "127.77.128.5", "127.77.16.1": "127.77.16.1", "": ""} {
		got, _ := realisedStatus{statusOf{podIP: given}}.GetPodStatus("uid")
		if got.PodIP != want {
			t.Errorf("pod IP %q is probed at %q, want %q", given, got.PodIP, want)
		}
	}
}
