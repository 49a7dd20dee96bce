package machine

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// StartTimeout bounds the time until a server is ready.
const StartTimeout = 60 * time.Second

// Process is a server that runs beside us, the head of a process group. What it
// says is in a file: read through a pipe, every line of its log would cost the
// client time.
type Process struct {
	cmd    *exec.Cmd
	log    string
	exited chan struct{}
}

// Start runs the command; it ends with us, however we end.
func Start(cmd *exec.Cmd, log string) (*Process, error) {
	out, err := os.Create(log)
	if err != nil {
		return nil, err
	}
	defer func() { _ = out.Close() }() // The process has its own.
	cmd.Stdout, cmd.Stderr = out, out
	cmd.SysProcAttr = endWithUs()
	p := &Process{cmd: cmd, log: log, exited: make(chan struct{})}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		_ = cmd.Wait() // It is killed in the end.
		close(p.exited)
	}()
	return p, nil
}

// Kill ends it and its children at once and returns when it is gone.
func (p *Process) Kill() {
	// The group is there until its head has been waited for.
	select {
	case <-p.exited:
	default:
		_ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL)
	}
	<-p.exited
}

// Exited is closed when the process has ended.
func (p *Process) Exited() <-chan struct{} { return p.exited }

// Log is what the process has said so far.
func (p *Process) Log() string { return Read(p.log) }

// Said waits for a line that matches and gives its first group.
func (p *Process) Said(ctx context.Context, line *regexp.Regexp) (string, error) {
	var found string
	err := p.Await(ctx, 10*time.Millisecond, func() bool {
		m := line.FindStringSubmatch(p.Log())
		if m != nil {
			found = m[1]
		}
		return m != nil
	})
	return found, err
}

// Await looks, so often, whether the process is ready; it fails if that ends or
// takes more than StartTimeout.
func (p *Process) Await(ctx context.Context, often time.Duration, ready func() bool) error {
	ctx, cancel := context.WithTimeout(ctx, StartTimeout)
	defer cancel()
	for !ready() {
		select {
		case <-p.exited:
			return fmt.Errorf("%s ended: %.2000s", filepath.Base(p.cmd.Path), p.Log())
		case <-ctx.Done():
			return fmt.Errorf("%s is not ready: %w", filepath.Base(p.cmd.Path), ctx.Err())
		case <-time.After(often):
		}
	}
	return nil
}

// members are the process and its children.
func (p *Process) members() []string {
	pid := strconv.Itoa(p.cmd.Process.Pid)
	return append(strings.Fields(Read(fmt.Sprintf("/proc/%s/task/%s/children", pid, pid))), pid)
}

// Memory is what the process and its children have resident now, and had at
// most, in bytes.
func (p *Process) Memory() (now, peak int64, err error) {
	for _, pid := range p.members() {
		n, most, err := memoryOf(pid)
		if err != nil {
			return 0, 0, err
		}
		now, peak = now+n, peak+most
	}
	return now, peak, nil
}

func memoryOf(pid string) (now, peak int64, err error) {
	status, err := os.ReadFile("/proc/" + pid + "/status")
	if err != nil {
		return 0, 0, err
	}
	for line := range strings.Lines(string(status)) {
		f := strings.Fields(line)
		if len(f) != 3 || f[2] != "kB" {
			continue
		}
		kb, err := strconv.ParseInt(f[1], 10, 64)
		if err != nil {
			return 0, 0, err
		}
		switch f[0] {
		case "VmRSS:":
			now = kb << 10
		case "VmHWM:":
			peak = kb << 10
		}
	}
	return now, peak, nil
}

// Files counts what the process and its children have open; 0 where Linux's
// /proc does not say.
func (p *Process) Files() int {
	n := 0
	for _, pid := range p.members() {
		open, _ := os.ReadDir("/proc/" + pid + "/fd")
		n += len(open)
	}
	return n
}

// CPU is the processor time that the process and its children have had; 0 where
// Linux's /proc does not say.
func (p *Process) CPU() time.Duration {
	var sum time.Duration
	for _, pid := range p.members() {
		sum += cpuOf(Read("/proc/" + pid + "/stat"))
	}
	return sum
}

// CPUOf is the processor time that any process has had, without its children; 0
// where Linux's /proc does not say.
func CPUOf(pid int) time.Duration { return cpuOf(Read(fmt.Sprintf("/proc/%d/stat", pid))) }

// MemoryOf is what any process has resident now, and had at most, in bytes.
func MemoryOf(pid int) (now, peak int64, err error) { return memoryOf(strconv.Itoa(pid)) }

// OwnCPU is the same of this process, the clients'.
func OwnCPU() time.Duration { return cpuOf(Read("/proc/self/stat")) }

// tick is the unit of times in /proc, on every machine that Go runs on.
const tick = 10 * time.Millisecond

// cpuOf adds user and system time. They are counted from the end of the
// program's name, which may hold anything.
func cpuOf(stat string) time.Duration {
	f := strings.Fields(stat[strings.LastIndexByte(stat, ')')+1:])
	if len(f) < 13 {
		return 0
	}
	user, err := strconv.Atoi(f[11])
	system, err2 := strconv.Atoi(f[12])
	if err != nil || err2 != nil {
		return 0
	}
	return time.Duration(user+system) * tick
}
