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

// bootID changes with each start of the process: a restart is a reboot, and the
// kubelet reports it as one (event Rebooted).
var bootID = uuid.NewString()

var started = time.Now()

// machine stands in for cadvisor, which would measure the real one.
type machine struct {
	cadvisortest.Fake
	name   string
	cpus   int
	memory resource.Quantity
}

func (m *machine) MachineInfo() (*cadvisorapi.MachineInfo, error) {
	id := uuid.NewSHA1(uuid.NameSpaceDNS, []byte(m.name)).String()
	return &cadvisorapi.MachineInfo{
		NumCores:         m.cpus,
		NumPhysicalCores: m.cpus,
		NumSockets:       1,
		MemoryCapacity:   uint64(m.memory.Value()),
		MachineID:        id,
		SystemUUID:       id,
		BootID:           bootID,
	}, nil
}

func (m *machine) VersionInfo() (*cadvisorapi.VersionInfo, error) {
	return &cadvisorapi.VersionInfo{KernelVersion: kernelVersion, ContainerOsVersion: osImage}, nil
}

// ContainerInfoV2 answers for any cgroup that it is idle. The kubelet's summary
// (and so its eviction manager) asks for the root and the one above all pods.
func (m *machine) ContainerInfoV2(name string, _ cadvisorapiv2.RequestOptions) (map[string]cadvisorapiv2.ContainerInfo, error) {
	memory := uint64(m.memory.Value())
	return map[string]cadvisorapiv2.ContainerInfo{name: {
		Spec: cadvisorapiv2.ContainerSpec{
			CreationTime: started,
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

func (m *machine) ImagesFsInfo(context.Context) (cadvisorapiv2.FsInfo, error) { return disk(), nil }

func (m *machine) RootFsInfo() (cadvisorapiv2.FsInfo, error) { return disk(), nil }

func (m *machine) ContainerFsInfo(context.Context) (cadvisorapiv2.FsInfo, error) { return disk(), nil }

func (m *machine) GetDirFsInfo(string) (cadvisorapiv2.FsInfo, error) { return disk(), nil }

func disk() cadvisorapiv2.FsInfo {
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

// containerManager is upstream's stub, with a disk and without complaints.
type containerManager struct {
	cm.ContainerManager
}

func (*containerManager) GetCapacity(localStorageCapacityIsolation bool) v1.ResourceList {
	if !localStorageCapacityIsolation {
		return v1.ResourceList{}
	}
	return v1.ResourceList{v1.ResourceEphemeralStorage: *resource.NewQuantity(diskBytes, resource.BinarySI)}
}

func (*containerManager) GetPodCgroupRoot() string { return "/kubepods" }

func (m *containerManager) NewPodContainerManager() cm.PodContainerManager {
	return podContainerManager{m.ContainerManager.NewPodContainerManager()}
}

// podContainerManager answers that no limits are in force, where upstream's stub
// has the kubelet log an error at every status of every pod. The kubelet then
// reports what it allocated (kubelet_pods.go, convertToAPIPodLevelResourcesStatus).
type podContainerManager struct{ cm.PodContainerManager }

func (podContainerManager) GetPodCgroupConfig(*v1.Pod, v1.ResourceName) (*cm.ResourceConfig, error) {
	return nil, nil
}
