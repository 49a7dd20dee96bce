package harness

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/procfs"
)

// Machine describes the machine that figures were measured on.
type Machine struct {
	Cores      int     `json:"cores"`
	CPU        string  `json:"cpu"`
	Kernel     string  `json:"kernel"`
	Go         string  `json:"go"` // of this program, and so of the server built with it
	FileSystem string  `json:"fileSystem"`
	Fsync      float64 `json:"fsync"` // seconds, the median of writing 4 KiB durably
	Load       float64 `json:"load"`  // of the last minute, before the run
}

// Describe describes this machine and the disk that dir is on.
func Describe(dir string) Machine {
	m := Machine{
		Cores: runtime.NumCPU(), Go: runtime.Version(), CPU: runtime.GOARCH, Kernel: runtime.GOOS,
		FileSystem: "unknown", Fsync: fsyncTime(dir).Seconds(),
	}
	if release, err := os.ReadFile("/proc/sys/kernel/osrelease"); err == nil {
		m.Kernel += " " + strings.TrimSpace(string(release))
	}
	proc, err := procfs.NewDefaultFS()
	if err != nil { // Without Linux's /proc.
		return m
	}
	if cpus, err := proc.CPUInfo(); err == nil && len(cpus) > 0 && cpus[0].ModelName != "" {
		m.CPU = cpus[0].ModelName
	}
	if load, err := proc.LoadAvg(); err == nil {
		m.Load = load.Load1
	}
	if mounts, err := procfs.GetMounts(); err == nil {
		m.FileSystem = fileSystem(mounts, dir)
	}
	return m
}

// String describes the machine in a line, the first of a table's head.
func (m Machine) String() string {
	return fmt.Sprintf("machine  %d cores (%s), %s, %s; data on %s, a durable write %s; load before: %.1f",
		m.Cores, m.CPU, m.Kernel, m.Go, m.FileSystem, MS(time.Duration(m.Fsync*float64(time.Second))), m.Load)
}

// fileSystem is the type of the file system that dir is on.
func fileSystem(mounts []*procfs.MountInfo, dir string) string {
	found, at := "unknown", ""
	for _, m := range mounts {
		rel, err := filepath.Rel(m.MountPoint, dir)
		// A later mount on the same point hides the earlier.
		if err == nil && filepath.IsLocal(rel) && len(m.MountPoint) >= len(at) {
			found, at = m.FSType, m.MountPoint
		}
	}
	return found
}

// fsyncTime is the least time that a durable change takes here; 0 if it cannot be measured.
func fsyncTime(dir string) time.Duration {
	f, err := os.CreateTemp(dir, "fsync-")
	if err != nil {
		return 0
	}
	defer func() { _ = os.Remove(f.Name()) }()
	defer func() { _ = f.Close() }()
	var took Latencies
	block := make([]byte, 4096)
	for range 50 {
		begin := time.Now()
		if _, err := f.Write(block); err != nil {
			return 0
		}
		if err := f.Sync(); err != nil {
			return 0
		}
		took = append(took, time.Since(begin))
	}
	slices.Sort(took)
	return took.Percentile(50)
}

// BusyTime is the processor time that all programs on the machine have had: all times except
// idle and iowait. It includes steal, the time that a hypervisor gave to others.
func BusyTime() time.Duration {
	proc, err := procfs.NewDefaultFS()
	if err != nil {
		return 0
	}
	s, err := proc.Stat()
	if err != nil {
		return 0
	}
	t := s.CPUTotal
	return toDuration(t.User + t.Nice + t.System + t.IRQ + t.SoftIRQ + t.Steal)
}

func toDuration(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

// CoreMeter measures how many cores some programs and all others have had since its start. A
// figure measured while others were busy is too low.
type CoreMeter struct {
	begin time.Time
	busy  time.Duration
	cpu   map[string]func() time.Duration
	was   map[string]time.Duration
}

// StartCoreMeter starts a meter of these programs' processor times.
func StartCoreMeter(cpu map[string]func() time.Duration) CoreMeter {
	m := CoreMeter{begin: time.Now(), busy: BusyTime(), cpu: cpu, was: map[string]time.Duration{}}
	for name, read := range cpu {
		m.was[name] = read()
	}
	return m
}

// Add adds the cores to values, by the programs' names; those of other programs are otherCores.
func (m CoreMeter) Add(values map[string]float64) {
	elapsed := time.Since(m.begin).Seconds()
	others := (BusyTime() - m.busy).Seconds() / elapsed
	for name, read := range m.cpu {
		values[name] = max((read()-m.was[name]).Seconds()/elapsed, 0) // A process may have been restarted.
		others -= values[name]
	}
	values["otherCores"] = max(others, 0)
}
