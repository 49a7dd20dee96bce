package process

// What only Linux has: /proc, which says who is there, and pidfds, which hold on
// to a process so that a reused pid is never mistaken for it.

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

// tie has the kernel kill the child when its starter ends.
func tie(attr *syscall.SysProcAttr) { attr.Pdeathsig = syscall.SIGKILL }

func scan() ([]Found, error) {
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
		// Its birth is read first: should the PID change hands in between,
		// the marks and the birth do not fit, and nothing is done to it.
		born, alive := birth(pid)
		if lab, component, ok := identity(pid); ok && alive {
			found = append(found, Found{Lab: lab, Process: &Process{Component: component, PID: pid, born: born}})
		}
	}
	return found, nil
}

// identity reads a process's marks; not ok for a process that has none, has
// ended, or belongs to somebody else.
func identity(pid int) (lab, component string, ok bool) {
	env, err := environ(pid)
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

// A process that becomes another program has no environment for a moment, which
// is longer on a busy machine. Nothing tells when it is over. It is looked at so often,
// and not so long: who looks may stand still himself.
const (
	execPoll  = time.Millisecond
	execLooks = 1000
)

// environ is a process's environment.
func environ(pid int) ([]byte, error) {
	for looks := 1; ; looks++ {
		env, err := os.ReadFile(folder(pid) + "/environ")
		if err != nil || len(env) > 0 || bare(pid) || looks == execLooks {
			return env, err
		}
		time.Sleep(execPoll)
	}
}

// bare tells whether a process without an environment was given none, or is a thread
// of the kernel or has ended, and so has no program. Of one that becomes another
// program, where its code starts is known last (field 26 of /proc/PID/stat, proc(5)),
// after where its environment starts and ends (50 and 51).
func bare(pid int) bool {
	if _, err := os.Readlink(folder(pid) + "/exe"); err != nil {
		return true
	}
	fields, ok := stat(folder(pid))
	return !ok || len(fields) < 49 || fields[23] != "0" && fields[47] == fields[48]
}

// birth is when a process started (field 22 of /proc/PID/stat, proc(5)). Not
// alive for one that has ended, even if nobody has reaped it yet. One whose first
// thread has ended and others have not (field 20 counts them) holds its ports still.
func birth(pid int) (ticks uint64, alive bool) {
	fields, ok := stat(fmt.Sprintf("/proc/%d", pid))
	if !ok || len(fields) < 20 {
		return 0, false
	}
	ticks, err := strconv.ParseUint(fields[19], 10, 64)
	return ticks, err == nil && (!ended(fields) || fields[17] != "0" && fields[17] != "1")
}

// awaitEnd returns when a process that is no child of ours has ended.
func (p *Process) awaitEnd(ctx context.Context) error {
	fd, err := p.open()
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

// open holds on to the process, so that a reused pid is never mistaken for
// it; -1 if it has ended.
func (p *Process) open() (int, error) {
	fd, err := unix.PidfdOpen(p.PID, 0)
	if errors.Is(err, unix.ESRCH) {
		return -1, nil
	}
	if err != nil {
		return -1, fmt.Errorf("opening %s (pid %d): %w", p.Component, p.PID, err)
	}
	// Not by its marks: a process that is ending has none, and still holds its
	// ports.
	if born, alive := birth(p.PID); !alive || born != p.born {
		_ = unix.Close(fd)
		return -1, nil
	}
	return fd, nil
}

// Signal sends sig, unless the process has ended.
func (p *Process) Signal(sig syscall.Signal) error {
	fd, err := p.open()
	if err != nil || fd < 0 {
		return err
	}
	defer func() { _ = unix.Close(fd) }()
	if err := unix.PidfdSendSignal(fd, sig, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("signalling %s (pid %d): %w", p.Component, p.PID, err)
	}
	return nil
}
