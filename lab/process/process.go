// Package process starts, finds and ends the processes of one lab. There are
// no pid files to go stale: each process carries two marks in its environment, the
// lab's state folder and the component's name, and is found by them in /proc. So a
// lab finds all of its processes after any crash, and never a stranger's.
//
// It knows nothing of what the components are. Begin with Host: Start and Running.
package process

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/ccmlab/ccmlab/lab/remedy"
)

const (
	envLab       = "CCMLAB_STATE"
	envComponent = "CCMLAB_COMPONENT"
)

// Host starts and finds the processes of the lab whose state folder is Lab.
type Host struct {
	Lab string
	// KillWithStarter has the kernel kill the started processes when their starter ends, however
	// it ends. It is for a cluster that nobody but its starter uses.
	KillWithStarter bool
}

// Spec is one process to start.
type Spec struct {
	// Component is its name within the lab, e.g. kube-apiserver or node/node-1.
	Component string
	Path      string
	Args      []string
	// Env is added to what every component gets, as NAME=value.
	Env []string
	// LogFile gets stdout and stderr, appended.
	LogFile string
	// HostsFile, unless "", is what the process finds as /etc/hosts.
	HostsFile string
	// Inherit are open files that the process gets, from descriptor 3 on.
	Inherit []*os.File
}

// Process is a process of the lab that runs, or ran.
type Process struct {
	Component  string
	PID        int
	LogFile    string
	startTicks uint64        // start time in clock ticks since boot: with the PID, unique
	done       chan struct{} // closed once err is known; nil for one found in /proc
	err        error         // exit status
}

// Start starts a process in a session of its own, so that the terminal's
// Ctrl-C does not reach it.
func (h Host) Start(s Spec) (*Process, error) {
	if err := os.MkdirAll(filepath.Dir(s.LogFile), 0o700); err != nil {
		return nil, remedy.With(err)
	}
	log, err := os.OpenFile(s.LogFile, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, remedy.With(err)
	}
	defer func() { _ = log.Close() }()
	command := s.command()
	cmd := exec.Command(command[0], command[1:]...)
	cmd.Env = h.componentEnvironment(s)
	cmd.Dir = h.Lab
	cmd.Stdout, cmd.Stderr = log, log
	cmd.ExtraFiles = s.Inherit
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if h.KillWithStarter {
		setParentDeathSignal(cmd.SysProcAttr)
	}
	slog.Debug("starting "+s.Component, "command", strings.Join(cmd.Args, " "), "log", s.LogFile)
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("starting %s: %w%s", s.Component, err, startRemedy(s.Path, err))
	}
	p := &Process{Component: s.Component, PID: cmd.Process.Pid, LogFile: s.LogFile, done: make(chan struct{})}
	p.startTicks, _ = readStartTicks(p.PID)
	go func() {
		p.err = cmd.Wait()
		close(p.done)
	}()
	return p, nil
}

// componentEnvironment is the environment of a component, with its marks.
func (h Host) componentEnvironment(s Spec) []string {
	return append(slices.Concat(inheritedEnvironment(), s.Env), envLab+"="+h.Lab, envComponent+"="+s.Component)
}

// CommandLine is the command that starts the component from a shell as Start would: with the
// same environment and nothing of the shell's, so that it is found among the lab's processes.
// Its output goes to the shell's terminal.
func (h Host) CommandLine(s Spec) []string {
	return slices.Concat([]string{"env", "-i"}, h.componentEnvironment(s), s.command())
}

// inheritedEnvironment is the part of this process's environment that a component gets. Nothing
// that could configure the component is in it, e.g. the FAKECLOUD_URL of another lab.
func inheritedEnvironment() []string {
	var env []string
	for _, name := range []string{
		"PATH", "HOME", "TMPDIR", "LANG", "LC_ALL", "TZ", "GODEBUG", "GOGC", "GOTRACEBACK",
		"GOCOVERDIR", // Where a program built by `go build -cover` says what of it ran.
		// What a container engine's client is configured with.
		"DOCKER_CONFIG", "CONTAINERS_CONF", "XDG_RUNTIME_DIR",
	} {
		if v, ok := os.LookupEnv(name); ok {
			env = append(env, name+"="+v)
		}
	}
	return env
}

// Unmarked is this process's environment without its marks. It is for a child that
// is no component of the lab and must not be taken for one.
func Unmarked() []string {
	return slices.DeleteFunc(os.Environ(), func(kv string) bool {
		return strings.HasPrefix(kv, envLab+"=") || strings.HasPrefix(kv, envComponent+"=")
	})
}

// Running maps each component of the lab that runs to its process.
func (h Host) Running() (map[string]*Process, error) {
	all, err := scanProcesses()
	if err != nil {
		return nil, err
	}
	found := map[string]*Process{}
	for _, p := range all {
		if p.Lab == h.Lab && p.seesSameLabFolder() {
			found[p.Component] = p.Process
		}
	}
	return found, nil
}

// Found is a process of some lab of this user.
type Found struct {
	Lab string
	*Process
}

// All finds the processes of all labs that this user may inspect. Processes in containers are
// left out: they belong to a lab in that container.
func All() ([]Found, error) {
	all, err := scanProcesses()
	return slices.DeleteFunc(all, func(f Found) bool { return !f.seesSameLabFolder() }), err
}

// Alive tells whether the process has not ended yet.
func (p *Process) Alive() bool {
	born, alive := readStartTicks(p.PID)
	return alive && born == p.startTicks
}

// IsAdopted tells whether the process was found in /proc, not started by this program. Then its
// exit status will not be known.
func (p *Process) IsAdopted() bool { return p.done == nil }

// Wait returns when the process has ended.
func (p *Process) Wait(ctx context.Context) error {
	if p.done != nil {
		select {
		case <-p.done:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return p.awaitEnd(ctx)
}

// Exit is how the process ended, once Wait has returned: nil for success. It is nil also for a
// process that was found in /proc, whose exit status nobody knows.
func (p *Process) Exit() error {
	if p.done == nil {
		return nil
	}
	<-p.done
	return p.err
}

// Stop asks the processes to end, all at once, and kills those that still run
// after the grace time.
func Stop(ctx context.Context, grace time.Duration, processes ...*Process) error {
	var errs []error
	for _, p := range processes {
		errs = append(errs, p.Signal(syscall.SIGTERM))
	}
	graceful, cancel := context.WithTimeout(ctx, grace)
	defer cancel()
	for _, p := range processes {
		if p.Wait(graceful) == nil {
			continue
		}
		errs = append(errs, p.Signal(syscall.SIGKILL))
		killed, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		if err := p.Wait(killed); err != nil {
			errs = append(errs, fmt.Errorf("%s (pid %d) does not end, not even killed", p.Component, p.PID))
		}
		cancel()
	}
	return errors.Join(errs...)
}

// hintLines is how much of a log a message holds.
const hintLines = 8

// LogHint says where a log is, and quotes its last lines. For a Go program that panicked it
// quotes the message of the panic, not the stack trace below.
func LogHint(file string) string {
	full := ""
	if dir := filepath.Dir(file); IsDiskFull(dir) { // The log itself may be cut short then.
		full = "the disk of " + dir + " is full: free some space, then `lab up`\n"
	}
	lines, err := Tail(file, 500)
	switch {
	case err != nil:
		return full + "its log cannot be read: " + err.Error()
	case len(lines) == 0:
		return full + "it has written nothing to its log, " + file
	}
	first := max(0, len(lines)-hintLines)
	for i := first; i >= 0; i-- {
		if strings.HasPrefix(lines[i], "panic: ") || strings.HasPrefix(lines[i], "fatal error: ") {
			first = max(0, i-1) // The line before says more, e.g. in etcd's log.
			break
		}
	}
	lines = lines[first:min(first+hintLines, len(lines))]
	return full + "last lines of " + file + ":\n  " + strings.Join(lines, "\n  ")
}

// LastLines are the last n lines of a program's output.
func LastLines(output string, n int) string {
	lines := strings.Split(strings.TrimSpace(output), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}

// Tail returns the last n lines of a file.
func Tail(file string, n int) ([]string, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	if size, err := f.Seek(0, io.SeekEnd); err != nil {
		return nil, err
	} else if _, err = f.Seek(max(0, size-64<<10), io.SeekStart); err != nil {
		return nil, err
	}
	var lines []string
	sc := bufio.NewScanner(f)
	sc.Buffer(make([]byte, 64<<10), 1<<20)
	for sc.Scan() {
		if lines = append(lines, sc.Text()); len(lines) > n {
			lines = lines[1:]
		}
	}
	return lines, sc.Err()
}

// startRemedy is the part of a message that says what to do about a program that did not start.
func startRemedy(path string, err error) string {
	next := remedy.Of(err)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		next = path + " is missing, or what it needs to run; `make build` builds it"
	case errors.Is(err, fs.ErrPermission):
		next = path + " may not be executed: see its mode, and whether its file system is mounted noexec"
	}
	if next == "" {
		return ""
	}
	return "; " + next
}
