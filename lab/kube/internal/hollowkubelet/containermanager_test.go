package hollowkubelet

import (
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/kubernetes/pkg/kubelet/eviction"
)

// The reservation is that of upstream's default thresholds in the pinned version.
func TestAllocatableReservationIsUpstreamDefault(t *testing.T) {
	if memory, disk := eviction.DefaultEvictionHard["memory.available"], eviction.DefaultEvictionHard["nodefs.available"]; memory != "100Mi" ||
		disk != "10%" {
		t.Errorf("upstream keeps %s of memory and %s of the disk free", memory, disk)
	}
	got := (&containerManager{}).GetNodeAllocatableReservation()
	if memory, disk := got[v1.ResourceMemory], got[v1.ResourceEphemeralStorage]; memory.String() != "100Mi" ||
		disk.String() != "2Gi" {
		t.Errorf("reserved are %s of memory and %s of the disk", memory.String(), disk.String())
	}
}
