package hollowkubelet

import (
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// What a kubelet withholds from pods when nobody tells it to: what its hard
// eviction thresholds keep free (upstream's DefaultEvictionHard). Nothing is
// evicted here, since what the simulated machine uses never grows; but a node's
// allocatable is less than its capacity, as it is everywhere.
const (
	reservedMemoryBytes = 100 << 20      // memory.available: 100Mi
	reservedDiskBytes   = diskBytes / 10 // nodefs.available: 10%
)

func (*containerManager) GetNodeAllocatableReservation() v1.ResourceList {
	return v1.ResourceList{
		v1.ResourceMemory:           *resource.NewQuantity(reservedMemoryBytes, resource.BinarySI),
		v1.ResourceEphemeralStorage: *resource.NewQuantity(reservedDiskBytes, resource.BinarySI),
	}
}
