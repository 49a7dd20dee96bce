// Package machine is what all benchmarks share: it describes the machine that is measured on,
// starts processes and measures what they take, and formats figures. It knows nothing of
// what is measured. Begin with Machine, and with Process in process.go.
package machine

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"
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
	m := Machine{Cores: runtime.NumCPU(), Go: runtime.Version(), CPU: runtime.GOARCH, Kernel: runtime.GOOS}
	for line := range strings.Lines(ReadFile("/proc/cpuinfo")) {
		if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "model name" {
			m.CPU = strings.TrimSpace(value)
			break
		}
	}
	if release := strings.TrimSpace(ReadFile("/proc/sys/kernel/osrelease")); release != "" {
		m.Kernel += " " + release
	}
	_, _ = fmt.Sscan(ReadFile("/proc/loadavg"), &m.Load)
	m.FileSystem = fileSystem(ReadFile("/proc/self/mountinfo"), dir)
	m.Fsync = fsyncTime(dir).Seconds()
	return m
}

// String describes the machine in a line.
func (m Machine) String() string {
	return fmt.Sprintf("%d cores (%s), %s, %s; data on %s, a durable write %s; load before: %.1f",
		m.Cores, m.CPU, m.Kernel, m.Go, m.FileSystem, MS(time.Duration(m.Fsync*float64(time.Second))), m.Load)
}

// ReadFile is the content of a file, or empty if it cannot be read.
func ReadFile(file string) string {
	content, err := os.ReadFile(file)
	if err != nil {
		return ""
	}
	return string(content)
}

// fileSystem is the type of the file system that dir is on.
func fileSystem(mountinfo, dir string) string {
	found, at := "unknown", ""
	for line := range strings.Lines(mountinfo) {
		mount, source, ok := strings.Cut(line, " - ")
		f, s := strings.Fields(mount), strings.Fields(source)
		if !ok || len(f) < 5 || len(s) < 1 {
			continue
		}
		rel, err := filepath.Rel(f[4], dir)
		// A later mount on the same point hides the earlier.
		if err == nil && filepath.IsLocal(rel) && len(f[4]) >= len(at) {
			found, at = s[0], f[4]
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

// BusyTime is the processor time that all programs on the machine have had, from the text of
// /proc/stat: all times except idle and iowait. It includes steal, the time that a
// hypervisor gave to others.
func BusyTime(stat string) time.Duration {
	line, _, _ := strings.Cut(stat, "\n")
	f := strings.Fields(line)
	if len(f) < 9 || f[0] != "cpu" {
		return 0
	}
	total := 0
	for i, v := range f[1:9] {
		n, err := strconv.Atoi(v)
		if err != nil {
			return 0
		}
		if i != 3 && i != 4 {
			total += n
		}
	}
	return time.Duration(total) * clockTick
}
