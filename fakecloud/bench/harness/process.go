package harness

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

	"github.com/prometheus/procfs"
)

// StartTimeout is how long a server may take until it is ready.
const StartTimeout = 60 * time.Second

// Process is a running server, the leader of a process group. Its output goes to a file:
// reading it from a pipe would take processor time from the clients.
type Process struct {
	cmd    *exec.Cmd
	log    string
	exited chan struct{}
}

// Start runs a command, whose output it writes to the file log. On Linux the command ends when
// this process does.
func Start(cmd *exec.Cmd, log string) (*Process, error) {
	out, err := os.Create(log)
	if err != nil {
		return nil, err
	}
	defer func() { _ = out.Close() }() // The process has its own descriptor.
	cmd.Stdout, cmd.Stderr = out, out
	cmd.SysProcAttr = processGroupAttr()
	p := &Process{cmd: cmd, log: log, exited: make(chan struct{})}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		_ = cmd.Wait() // The process is killed in the end, so this is an error as a rule.
		close(p.exited)
	}()
	return p, nil
}

// Kill kills the process and its children, and returns when the process has ended.
func (p *Process) Kill() {
	// The process group exists until its leader has been waited for.
	select {
	case <-p.exited:
	default:
		_ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL)
	}
	<-p.exited
}

// Log is the output of the process so far.
func (p *Process) Log() string {
	text, _ := os.ReadFile(p.log)
	return string(text)
}

// AwaitLine waits until a line of the output matches, and returns its first group.
func (p *Process) AwaitLine(ctx context.Context, line *regexp.Regexp) (string, error) {
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

// Await calls ready at each interval often, until it returns true. It fails if the process ends
// or takes longer than StartTimeout.
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

// processIDs are the IDs of the process and its children.
func (p *Process) processIDs() []int {
	pids := []int{p.cmd.Process.Pid}
	children, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pids[0], pids[0]))
	for _, child := range strings.Fields(string(children)) {
		if pid, err := strconv.Atoi(child); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}

// Memory is the resident memory of the process and its children, now and at its peak, in
// bytes.
func (p *Process) Memory() (now, peak int64, err error) {
	for _, pid := range p.processIDs() {
		n, most, err := MemoryOf(pid)
		if err != nil {
			return 0, 0, err
		}
		now, peak = now+n, peak+most
	}
	return now, peak, nil
}

// CPU is the processor time of the process and its children; 0 without Linux's /proc.
func (p *Process) CPU() time.Duration {
	var sum time.Duration
	for _, pid := range p.processIDs() {
		sum += CPUOf(pid)
	}
	return sum
}

// MemoryOf is the resident memory of any process, now and at its peak, in bytes.
func MemoryOf(pid int) (now, peak int64, err error) {
	p, err := procfs.NewProc(pid)
	if err != nil {
		return 0, 0, err
	}
	s, err := p.NewStatus()
	return int64(s.VmRSS), int64(s.VmHWM), err
}

// FilesOf counts the open files of any process; 0 without Linux's /proc.
func FilesOf(pid int) int {
	open, _ := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	return len(open)
}

// CPUOf is the processor time of any process, without its children; 0 without Linux's /proc.
func CPUOf(pid int) time.Duration {
	p, err := procfs.NewProc(pid)
	if err != nil {
		return 0
	}
	s, err := p.Stat()
	if err != nil {
		return 0
	}
	return toDuration(s.CPUTime())
}

// OwnCPU is the processor time of this process, in which the clients run.
func OwnCPU() time.Duration { return CPUOf(os.Getpid()) }
