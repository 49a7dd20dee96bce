package hollowkubelet

import (
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/kubernetes/pkg/kubelet/cm"
)

// The node reserves what upstream's default hard eviction thresholds keep free
// (DefaultEvictionHard), as every kubelet does without configuration. Nothing is ever evicted here,
// since the simulated machine's usage does not grow; but a node's allocatable is less than its
// capacity, as it is everywhere.
const (
	reservedMemoryBytes = 100 << 20      // memory.available: 100Mi
	reservedDiskBytes   = diskBytes / 10 // nodefs.available: 10%
)

// containerManager is upstream's stub with a disk. It makes the kubelet log no errors.
type containerManager struct {
	cm.ContainerManager
}

func (*containerManager) GetCapacity(localStorageCapacityIsolation bool) v1.ResourceList {
	if !localStorageCapacityIsolation {
		return v1.ResourceList{}
	}
	return v1.ResourceList{v1.ResourceEphemeralStorage: *resource.NewQuantity(diskBytes, resource.BinarySI)}
}

func (*containerManager) GetNodeAllocatableReservation() v1.ResourceList {
	return v1.ResourceList{
		v1.ResourceMemory:           *resource.NewQuantity(reservedMemoryBytes, resource.BinarySI),
		v1.ResourceEphemeralStorage: *resource.NewQuantity(reservedDiskBytes, resource.BinarySI),
	}
}

func (*containerManager) GetPodCgroupRoot() string { return "/kubepods" }

func (c *containerManager) NewPodContainerManager() cm.PodContainerManager {
	return podContainerManager{c.ContainerManager.NewPodContainerManager()}
}

// podContainerManager reports that no limits are in force. With upstream's stub the kubelet would
// log an error at each status of each pod. The kubelet then reports what it has allocated
// (kubelet_pods.go, convertToAPIPodLevelResourcesStatus).
type podContainerManager struct{ cm.PodContainerManager }

func (podContainerManager) GetPodCgroupConfig(*v1.Pod, v1.ResourceName) (*cm.ResourceConfig, error) {
	return nil, nil
}
