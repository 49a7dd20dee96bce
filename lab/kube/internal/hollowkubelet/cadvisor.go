package hollowkubelet

import (
	"context"
	"time"

	cadvisorapi "github.com/google/cadvisor/info/v1"
	cadvisorapiv2 "github.com/google/cadvisor/info/v2"
	"github.com/google/uuid"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	cadvisortest "k8s.io/kubernetes/pkg/kubelet/cadvisor/testing"
	"k8s.io/kubernetes/pkg/kubelet/cm"
)

const (
	diskBytes     = 20 << 30
	diskUsedBytes = 1 << 30
	diskInodes    = 1 << 20
	osImage       = "CCM Lab simulated node"
	kernelVersion = "simulated"
)

// bootID is another at each start of the process: a restart is a reboot, which the kubelet reports
// with the event Rebooted.
var bootID = uuid.NewString()

var startTime = time.Now()

// fakeCadvisor is the kubelet's cadvisor for the simulated machine: a genuine one would measure the
// real machine.
type fakeCadvisor struct {
	cadvisortest.Fake
	name   string
	cpus   int
	memory resource.Quantity
}

func (f *fakeCadvisor) MachineInfo() (*cadvisorapi.MachineInfo, error) {
	id := uuid.NewSHA1(uuid.NameSpaceDNS, []byte(f.name)).String()
	return &cadvisorapi.MachineInfo{
		NumCores:         f.cpus,
		NumPhysicalCores: f.cpus,
		NumSockets:       1,
		MemoryCapacity:   uint64(f.memory.Value()),
		MachineID:        id,
		SystemUUID:       id,
		BootID:           bootID,
	}, nil
}

func (f *fakeCadvisor) VersionInfo() (*cadvisorapi.VersionInfo, error) {
	return &cadvisorapi.VersionInfo{KernelVersion: kernelVersion, ContainerOsVersion: osImage}, nil
}

// ContainerInfoV2 reports any cgroup as idle. The kubelet's summary, and with it the eviction
// manager, needs the root cgroup and the one above all pods.
func (f *fakeCadvisor) ContainerInfoV2(
	name string,
	_ cadvisorapiv2.RequestOptions,
) (map[string]cadvisorapiv2.ContainerInfo, error) {
	memory := uint64(f.memory.Value())
	return map[string]cadvisorapiv2.ContainerInfo{name: {
		Spec: cadvisorapiv2.ContainerSpec{
			CreationTime: startTime,
			HasCpu:       true,
			HasMemory:    true,
			Memory:       cadvisorapiv2.MemorySpec{Limit: memory},
		},
		Stats: []*cadvisorapiv2.ContainerStats{{
			Timestamp: time.Now(),
			Cpu:       &cadvisorapi.CpuStats{},
			CpuInst:   &cadvisorapiv2.CpuInstStats{},
			Memory:    &cadvisorapi.MemoryStats{},
		}},
	}}, nil
}

func (f *fakeCadvisor) ImagesFsInfo(context.Context) (cadvisorapiv2.FsInfo, error) {
	return diskInfo(), nil
}

func (f *fakeCadvisor) RootFsInfo() (cadvisorapiv2.FsInfo, error) { return diskInfo(), nil }

func (f *fakeCadvisor) ContainerFsInfo(context.Context) (cadvisorapiv2.FsInfo, error) {
	return diskInfo(), nil
}

func (f *fakeCadvisor) GetDirFsInfo(string) (cadvisorapiv2.FsInfo, error) { return diskInfo(), nil }

func diskInfo() cadvisorapiv2.FsInfo {
	inodes, free := uint64(diskInodes), uint64(diskInodes-diskInodes/10)
	return cadvisorapiv2.FsInfo{
		Device:     "simulated",
		Mountpoint: "/",
		Capacity:   diskBytes,
		Available:  diskBytes - diskUsedBytes,
		Usage:      diskUsedBytes,
		Inodes:     &inodes,
		InodesFree: &free,
	}
}

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
