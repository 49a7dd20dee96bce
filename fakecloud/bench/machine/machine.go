// Package machine is what the benchmarks share: on which machine is measured,
// what its processes take, and how are figures written?
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

// Machine is what a figure depends on beside the program.
type Machine struct {
	Cores      int     `json:"cores"`
	CPU        string  `json:"cpu"`
	Kernel     string  `json:"kernel"`
	Go         string  `json:"go"` // of this program, and so of the server built with it
	FileSystem string  `json:"fileSystem"`
	Fsync      float64 `json:"fsync"` // seconds, the median of writing 4 KiB durably
	Load       float64 `json:"load"`  // of the last minute, before the run
}

// Look describes this machine, and the disk that dir is on.
func Look(dir string) Machine {
	m := Machine{Cores: runtime.NumCPU(), Go: runtime.Version(), CPU: runtime.GOARCH, Kernel: runtime.GOOS}
	for line := range strings.Lines(Read("/proc/cpuinfo")) {
		if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "model name" {
			m.CPU = strings.TrimSpace(value)
			break
		}
	}
	if release := strings.TrimSpace(Read("/proc/sys/kernel/osrelease")); release != "" {
		m.Kernel += " " + release
	}
	_, _ = fmt.Sscan(Read("/proc/loadavg"), &m.Load)
	m.FileSystem = fileSystem(Read("/proc/self/mountinfo"), dir)
	m.Fsync = fsyncTime(dir).Seconds()
	return m
}

// String is a line about it.
func (m Machine) String() string {
	return fmt.Sprintf("%d cores (%s), %s, %s; data on %s, a durable write %s; load before: %.1f",
		m.Cores, m.CPU, m.Kernel, m.Go, m.FileSystem, MS(time.Duration(m.Fsync*float64(time.Second))), m.Load)
}

// Read is a file's content, or nothing where there is no such file.
func Read(file string) string {
	content, err := os.ReadFile(file)
	if err != nil {
		return ""
	}
	return string(content)
}

// fileSystem is the type of what is mounted at dir or nearest above it.
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

// fsyncTime is the least that a durable change costs here; 0 if it cannot be
// measured.
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

// Busy is the processor time that everything on the machine has had, of
// /proc/stat: all but idle time and waiting for a disk. What a hypervisor gave
// to others is in it.
func Busy(stat string) time.Duration {
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
	return time.Duration(total) * tick
}
