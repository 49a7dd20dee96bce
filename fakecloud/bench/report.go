// This file answers: what was measured, on which machine, and how is it shown?

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// report is all that is printed.
type report struct {
	Quick   bool    `json:"quick"`
	Machine machine `json:"machine"`
	Size    size    `json:"size"`
	Server  *server `json:"server,omitempty"` // nil when no cloud was measured
	Rows    []row   `json:"rows"`
}

// machine is what a figure depends on beside the program.
type machine struct {
	Cores      int     `json:"cores"`
	CPU        string  `json:"cpu"`
	Kernel     string  `json:"kernel"`
	Go         string  `json:"go"` // of this program, and so of the server built with it
	FileSystem string  `json:"fileSystem"`
	Fsync      float64 `json:"fsync"` // seconds, the median of writing 4 KiB durably
	Load       float64 `json:"load"`  // of the last minute, before the run
}

// server is what the measured binary does with each call.
type server struct {
	Flags      []string `json:"flags"`
	Audit      bool     `json:"audit"`
	RateLimit  bool     `json:"rateLimit"`
	Validation bool     `json:"validation"`
}

func lookAtMachine(dir string) machine {
	m := machine{Cores: runtime.NumCPU(), Go: runtime.Version(), CPU: runtime.GOARCH, Kernel: runtime.GOOS}
	for line := range strings.Lines(readOr("/proc/cpuinfo")) {
		if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "model name" {
			m.CPU = strings.TrimSpace(value)
			break
		}
	}
	if release := strings.TrimSpace(readOr("/proc/sys/kernel/osrelease")); release != "" {
		m.Kernel += " " + release
	}
	_, _ = fmt.Sscan(readOr("/proc/loadavg"), &m.Load)
	m.FileSystem = fileSystem(readOr("/proc/self/mountinfo"), dir)
	m.Fsync = fsyncTime(dir).Seconds()
	return m
}

// readOr is a file's content, or nothing where there is no such file.
func readOr(file string) string {
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
	var took latencies
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
	return took.percentile(50)
}

// lookAtServer finds out which of the things that cost time the binary does.
func (b *bench) lookAtServer(ctx context.Context) (*server, error) {
	s := &server{Flags: b.limits, RateLimit: len(b.limits) > 0}
	c, err := dial(ctx, b.cloud.address)
	if err != nil {
		return nil, err
	}
	defer c.close()
	if _, err := c.ask(call{request: b.get("/openapi.yaml"), want: http.StatusOK}); err != nil {
		return nil, err
	}
	b.quotas = bytes.Contains(c.body, []byte("\n  /v1/projects/{id}/quotas:"))
	s.Audit = bytes.Contains(c.body, []byte("\n  /v1/audit:"))
	if _, err := c.ask(call{request: request(http.MethodGet, "/v1/instances", b.cloud.address, "", nil), want: http.StatusUnauthorized}); err != nil {
		return nil, err
	}
	// A limit that the spec forbids.
	status, _, err := c.do(b.get("/v1/instances?limit=0"))
	s.Validation = status == http.StatusBadRequest
	return s, err
}

func (r *report) print(out io.Writer, output string) error {
	if output == "json" {
		e := json.NewEncoder(out)
		e.SetIndent("", "  ")
		return e.Encode(r)
	}
	m := r.Machine
	_, _ = fmt.Fprintf(out, "machine  %d cores (%s), %s, %s; data on %s, a durable write %s; load before: %.1f\n",
		m.Cores, m.CPU, m.Kernel, m.Go, m.FileSystem, ms(time.Duration(m.Fsync*float64(time.Second))), m.Load)
	if m.FileSystem == "tmpfs" {
		_, _ = fmt.Fprintln(out, "         tmpfs keeps nothing: durable costs nothing here; choose a folder on a disk with -dir")
	}
	_, _ = fmt.Fprintf(out, "size     %d clients on the same machine; %s instances and %s load balancers stored\n",
		r.Size.Clients, grouped(float64(r.Size.Instances)), grouped(float64(r.Size.Balancers)))
	if r.Server != nil {
		_, _ = fmt.Fprintf(out, "server   authentication on, validation %s, audit %s, rate limiting %s; logs each call to a file\n",
			onOff(r.Server.Validation), onOff(r.Server.Audit), onOff(r.Server.RateLimit))
	}
	if r.Quick {
		_, _ = fmt.Fprintln(out, "quick    the sizes are small: this shows that it works, the figures mean nothing")
	}
	return r.printRows(out)
}

func (r *report) printRows(out io.Writer) error {
	t := tabwriter.NewWriter(out, 0, 0, 3, ' ', 0)
	_, _ = fmt.Fprintln(t, "\nFIGURE\tMEASURED\tTARGET\tHOLDS")
	for _, line := range r.Rows {
		holds := "-"
		if line.Holds != nil {
			holds = map[bool]string{true: "✓", false: "✗"}[*line.Holds]
		}
		_, _ = fmt.Fprintf(t, "%s\t%s\t%s\t%s\n", line.Figure, line.Measured, orDash(line.Target), holds)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	for _, line := range r.Rows {
		if line.Note != "" {
			_, _ = fmt.Fprintf(out, "%s: %s\n", line.Figure, line.Note)
		}
	}
	return nil
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

func onOff(on bool) string {
	if on {
		return "on"
	}
	return "absent"
}

// ms shows a time in milliseconds, with a decimal where that matters.
func ms(d time.Duration) string {
	v := float64(d) / float64(time.Millisecond)
	if v < 10 {
		return fmt.Sprintf("%.1f ms", v)
	}
	return fmt.Sprintf("%.0f ms", v)
}

// grouped shows a number with its thousands apart.
func grouped(v float64) string {
	if v < 10 {
		return fmt.Sprintf("%.1f", v)
	}
	s := fmt.Sprintf("%.0f", v)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}
