package hollowkubelet

// This file answers what the simulated machine is made of.

import (
	"context"

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

// containerManager is upstream's stub, with a disk.
type containerManager struct {
	cm.ContainerManager
}

func (*containerManager) GetCapacity(localStorageCapacityIsolation bool) v1.ResourceList {
	if !localStorageCapacityIsolation {
		return v1.ResourceList{}
	}
	return v1.ResourceList{v1.ResourceEphemeralStorage: *resource.NewQuantity(diskBytes, resource.BinarySI)}
}
