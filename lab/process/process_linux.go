package process

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Supported is an error where the lab cannot keep track of processes.
func Supported() error { return nil }

// setParentDeathSignal has the kernel kill the child when its starter ends.
func setParentDeathSignal(attr *syscall.SysProcAttr) { attr.Pdeathsig = syscall.SIGKILL }

// scanProcesses finds all processes in /proc that carry the marks of a lab.
func scanProcesses() ([]Found, error) {
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return nil, err
	}
	var found []Found
	for _, dir := range dirs {
		pid, err := strconv.Atoi(filepath.Base(dir))
		if err != nil {
			continue
		}
		// The start time is read before the marks. Should another process get the PID in
		// between, its start time differs from what was read, and it is never signalled.
		born, alive := readStartTicks(pid)
		if lab, component, ok := readMarks(pid); ok && alive {
			found = append(found, Found{Lab: lab, Process: &Process{Component: component, PID: pid, startTicks: born}})
		}
	}
	return found, nil
}

// readMarks reads a process's marks. It is not ok for a process that has none, has
// ended, or belongs to another user.
func readMarks(pid int) (lab, component string, ok bool) {
	env, err := readEnvironment(pid)
	if err != nil {
		return "", "", false
	}
	for kv := range bytes.SplitSeq(env, []byte{0}) {
		if v, found := strings.CutPrefix(string(kv), envLab+"="); found {
			lab = v
		}
		if v, found := strings.CutPrefix(string(kv), envComponent+"="); found {
			component = v
		}
	}
	return lab, component, lab != "" && component != ""
}

// During execve a process has no environment for a moment, which is longer on a busy machine,
// and the kernel does not notify anybody when that is over. So the environment is read again
// every execPollInterval. The bound is a number of reads, not a time, because the reader may be
// held up itself.
const (
	execPollInterval = time.Millisecond
	execMaxReads     = 1000
)

// readEnvironment reads a process's environment: NAME=value, each followed by a zero byte.
func readEnvironment(pid int) ([]byte, error) {
	for reads := 1; ; reads++ {
		env, err := os.ReadFile(procFolder(pid) + "/environ")
		if err != nil || len(env) > 0 || isEnvironmentEmpty(pid) || reads == execMaxReads {
			return env, err
		}
		time.Sleep(execPollInterval)
	}
}

// isEnvironmentEmpty tells whether a process whose environment reads as empty really has none,
// because it was given none, is a kernel thread or has ended. Otherwise it is amid execve: there
// the kernel sets where the code starts (field 26 of /proc/PID/stat, proc(5)) after where the
// environment starts and ends (fields 50 and 51).
func isEnvironmentEmpty(pid int) bool {
	if _, err := os.Readlink(procFolder(pid) + "/exe"); err != nil {
		return true
	}
	fields, ok := readStat(procFolder(pid))
	return !ok || len(fields) < 49 || fields[23] != "0" && fields[47] == fields[48]
}

// readStartTicks reads when a process started (field 22 of /proc/PID/stat, proc(5)). A process
// that has ended is not alive, even if nobody has reaped it yet. A process whose first thread
// has ended is alive while it has other threads (field 20 counts them): it still holds its ports.
func readStartTicks(pid int) (ticks uint64, alive bool) {
	fields, ok := readStat(fmt.Sprintf("/proc/%d", pid))
	if !ok || len(fields) < 20 {
		return 0, false
	}
	ticks, err := strconv.ParseUint(fields[19], 10, 64)
	return ticks, err == nil && (!isEnded(fields) || fields[17] != "0" && fields[17] != "1")
}

// awaitEnd returns when a process that is no child of this one has ended.
func (p *Process) awaitEnd(ctx context.Context) error {
	fd, err := p.openPidfd()
	if err != nil || fd < 0 {
		return err
	}
	defer func() { _ = unix.Close(fd) }()
	for ctx.Err() == nil {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 100)
		if err != nil && !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("waiting for %s (pid %d): %w", p.Component, p.PID, err)
		}
		if n > 0 {
			return nil
		}
	}
	return ctx.Err()
}

// openPidfd opens a file descriptor of the process, so that another process that gets the same
// PID is never mistaken for it. It is -1 if the process has ended.
func (p *Process) openPidfd() (int, error) {
	fd, err := unix.PidfdOpen(p.PID, 0)
	if errors.Is(err, unix.ESRCH) {
		return -1, nil
	}
	if err != nil {
		return -1, fmt.Errorf("opening %s (pid %d): %w", p.Component, p.PID, err)
	}
	// The marks would not do: a process that is ending has none, and still holds its ports.
	if born, alive := readStartTicks(p.PID); !alive || born != p.startTicks {
		_ = unix.Close(fd)
		return -1, nil
	}
	return fd, nil
}

// Signal sends sig, unless the process has ended.
func (p *Process) Signal(sig syscall.Signal) error {
	fd, err := p.openPidfd()
	if err != nil || fd < 0 {
		return err
	}
	defer func() { _ = unix.Close(fd) }()
	if err := unix.PidfdSendSignal(fd, sig, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("signalling %s (pid %d): %w", p.Component, p.PID, err)
	}
	return nil
}

// fullBelow is the free space, in bytes, below which a file system counts as full.
const fullBelow = 1 << 20

// FreeSpace is how many bytes a user may still write to the file system of a path.
func FreeSpace(path string) (free uint64, err error) {
	var fs unix.Statfs_t
	if err := unix.Statfs(path, &fs); err != nil {
		return 0, fmt.Errorf("%s: %w", path, err)
	}
	return fs.Bavail * uint64(fs.Bsize), nil
}

// IsDiskFull tells whether nothing more can be written to a folder.
func IsDiskFull(dir string) bool {
	free, err := FreeSpace(dir)
	return err == nil && free < fullBelow
}
