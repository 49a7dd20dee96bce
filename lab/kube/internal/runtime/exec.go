package runtime

// This file answers what kubectl exec, exec probes and exec hooks get from a
// container that has no processes: a few commands that see what it would see.

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/term"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	remote "k8s.io/cri-client/pkg"
	"k8s.io/cri-streaming/pkg/streaming/remotecommand"
	utilexec "k8s.io/utils/exec"
)

// maxOutput bounds what ExecSync keeps of a command's output.
const maxOutput = 1 << 20

// ExecSync runs a command for an exec probe or hook. An exit code other than 0 is
// a k8s.io/utils/exec.CodeExitError, and a timeout is ErrCommandTimedOut of
// k8s.io/cri-client: the kubelet's prober tells failures from errors by them.
func (r *Runtime) ExecSync(ctx context.Context, id string, argv []string, timeout time.Duration) ([]byte, []byte, error) {
	if timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, timeout)
		defer cancel()
	}
	var stdout, stderr limitedBuffer
	code, err := r.execute(ctx, id, argv, nil, &stdout, &stderr)
	switch {
	case err != nil:
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		err = fmt.Errorf("%w: %q timed out after %s", remote.ErrCommandTimedOut, strings.Join(argv, " "), timeout)
	case code != 0:
		err = exitError(argv, code, string(stderr.kept))
	}
	return stdout.kept, stderr.kept, err
}

func exitError(argv []string, code int, said string) error {
	text := fmt.Sprintf("command '%s' exited with %d", strings.Join(argv, " "), code)
	if said != "" {
		text += ": " + said
	}
	return utilexec.CodeExitError{Err: errors.New(text), Code: code}
}

// execute runs a command until it ends, ctx is done or the container ends, and
// returns its exit code.
func (r *Runtime) execute(ctx context.Context, id string, argv []string, stdin *os.File, stdout, stderr io.Writer) (int, error) {
	c, err := r.runningContainer(id)
	if err != nil {
		return 0, err
	}
	if len(argv) == 0 {
		return 0, status.Error(codes.InvalidArgument, "a command is needed")
	}
	if path.Base(argv[0]) == "exit" {
		return r.exitByCommand(c, argv[1:], stdout, stderr), nil
	}
	ctx, cancel := c.whileRunning(ctx)
	defer cancel()
	p, err := r.newProcess(c)
	if err != nil {
		return 0, err
	}
	defer p.files.close()
	p.stdin, p.stdout, p.stderr = stdin, stdout, stderr
	if err := p.newRunner(); err != nil {
		return 0, err
	}
	if stdin != nil {
		defer context.AfterFunc(ctx, func() { _ = stdin.Close() })()
	}
	return p.arguments(ctx, argv), nil
}

func (r *Runtime) runningContainer(id string) (*container, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	c := r.containers[id]
	if c == nil {
		return nil, notFound("container", id)
	}
	if c.state != runtimeapi.ContainerState_CONTAINER_RUNNING {
		return nil, status.Errorf(codes.FailedPrecondition, "container %s of pod %s is not running", c.name(), c.podName())
	}
	return c, nil
}

// whileRunning is done when the container has ended.
func (c *container) whileRunning(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		defer cancel()
		select {
		case <-c.exited:
		case <-ctx.Done():
		}
	}()
	return ctx, cancel
}

// exitByCommand ends the container, as POST /exit does.
func (r *Runtime) exitByCommand(c *container, argv []string, stdout, stderr io.Writer) int {
	text := strings.Join(argv, " ")
	if text == "" {
		text = "0"
	}
	code, err := strconv.ParseUint(text, 10, 8)
	if err != nil {
		_, _ = fmt.Fprintf(stderr, "exit: %q: a number from 0 to 255 is needed\n", text)
		return exitUsage
	}
	_, _ = fmt.Fprintf(stdout, "container %s exits with code %d\n", c.name(), code)
	r.end(c, int32(code), "asked to exit by a command")
	return 0
}

// newProcess is started with what a container engine gives a process.
func (r *Runtime) newProcess(c *container) (*process, error) {
	files, err := r.openRootFS(c)
	if err != nil {
		return nil, fmt.Errorf("files of container %s: %w", c.name(), err)
	}
	p := &process{files: files, hostname: c.sandbox.config.GetHostname(), directory: path.Clean("/" + c.config.GetWorkingDir())}
	if p.hostname == "" {
		p.hostname = r.options.NodeName
	}
	p.environment = []string{"HOME=/", "HOSTNAME=" + p.hostname}
	for _, variable := range c.config.GetEnvs() {
		p.environment = append(p.environment, variable.GetKey()+"="+string(variable.GetValue()))
	}
	return p, nil
}

// limitedBuffer keeps the first part and drops the rest.
type limitedBuffer struct{ kept []byte }

func (b *limitedBuffer) Write(p []byte) (int, error) {
	b.kept = append(b.kept, p[:min(len(p), maxOutput-len(b.kept))]...)
	return len(p), nil
}

// Exec implements streaming.Runtime for kubectl exec.
func (s streams) Exec(ctx context.Context, id string, argv []string, in io.Reader, out, err io.WriteCloser, tty bool, resize <-chan remotecommand.TerminalSize) error {
	stdout, stderr := writers(out, err)
	var stdin *os.File
	keyboard := &keyboard{raw: tty}
	if in != nil {
		reader, writer, failed := os.Pipe()
		if failed != nil {
			return failed
		}
		defer func() { _ = reader.Close() }()
		stdin = reader
		go keyboard.copy(writer, in)
	}
	var code int
	var failed error
	if tty && stdin != nil && isShell(argv) {
		failed = s.runtime.interactive(ctx, id, stdin, stdout, keyboard, resize)
	} else {
		if tty {
			stdout, stderr = carriageReturns{stdout}, carriageReturns{stderr}
		}
		ctx, done := keyboard.interruptible(ctx)
		code, failed = s.runtime.execute(ctx, id, argv, stdin, stdout, stderr)
		done()
	}
	if failed == nil && code != 0 {
		failed = exitError(argv, code, "")
	}
	return failed
}

func isShell(argv []string) bool {
	return len(argv) == 1 && slices.Contains(shells, path.Base(argv[0]))
}

// writers replaces what the client did not ask for; a terminal has no stderr.
func writers(out, err io.Writer) (stdout, stderr io.Writer) {
	stdout, stderr = out, err
	if out == nil {
		stdout = io.Discard
	}
	if err == nil {
		stderr = stdout
	}
	return stdout, stderr
}

// interactive is sh on a terminal: line after line, each understood by itself.
func (r *Runtime) interactive(ctx context.Context, id string, stdin *os.File, stdout io.Writer, keyboard *keyboard, resize <-chan remotecommand.TerminalSize) error {
	c, err := r.runningContainer(id)
	if err != nil {
		return err
	}
	ctx, cancel := c.whileRunning(ctx)
	defer cancel()
	defer context.AfterFunc(ctx, func() { _ = stdin.Close() })()
	p, err := r.newProcess(c)
	if err != nil {
		return err
	}
	defer p.files.close()
	terminal := term.NewTerminal(struct {
		io.Reader
		io.Writer
	}{stdin, stdout}, "$ ")
	go follow(ctx, terminal, resize)
	p.stdout, p.stderr = terminal, terminal
	if err := p.newRunner(); err != nil {
		return err
	}
	_, _ = fmt.Fprintf(terminal, "Simulated container %s of pod %s: help lists what works, exit leaves.\n", c.name(), c.podName())
	for exited := false; !exited; {
		line, err := terminal.ReadLine()
		if err != nil {
			return nil // the terminal has gone, or ^D
		}
		file, err := parse(line, "")
		if err != nil {
			p.fail(exitUsage, "%v", err)
			continue
		}
		command, done := keyboard.interruptible(ctx)
		p.run(command, file)
		exited = p.runner.Exited() && command.Err() == nil // ^C ends the command, not the shell
		done()
	}
	return nil
}

func follow(ctx context.Context, terminal *term.Terminal, resize <-chan remotecommand.TerminalSize) {
	for {
		select {
		case size, open := <-resize:
			if !open {
				return
			}
			_ = terminal.SetSize(int(size.Width), int(size.Height))
		case <-ctx.Done():
			return
		}
	}
}

// keyboard is what the client types. On a terminal ^C interrupts the command that
// runs, as the terminal driver of a real container's kernel would have it, and
// else clears the line.
type keyboard struct {
	raw bool

	mu        sync.Mutex
	interrupt context.CancelFunc
}

const (
	keyInterrupt  = 0x03 // ^C
	keyEndOfInput = 0x04 // ^D
	keyClearLine  = 0x15 // ^U
)

func (k *keyboard) copy(to *os.File, from io.Reader) {
	defer func() { _ = to.Close() }()
	buffer := make([]byte, 4096)
	for {
		n, err := from.Read(buffer)
		typed := buffer[:n]
		if k.raw {
			k.watch(typed)
		}
		if _, failed := to.Write(typed); err != nil || failed != nil {
			return
		}
	}
}

func (k *keyboard) watch(typed []byte) {
	for i, key := range typed {
		if key == keyInterrupt {
			typed[i] = keyClearLine
			k.mu.Lock()
			if k.interrupt != nil {
				k.interrupt()
			}
			k.mu.Unlock()
		}
	}
}

func (k *keyboard) interruptible(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancel(ctx)
	k.mu.Lock()
	defer k.mu.Unlock()
	k.interrupt = cancel
	return ctx, func() {
		k.mu.Lock()
		defer k.mu.Unlock()
		k.interrupt = nil
		cancel()
	}
}

// carriageReturns writes lines as a raw terminal needs them.
type carriageReturns struct{ io.Writer }

func (w carriageReturns) Write(p []byte) (int, error) {
	if _, err := w.Writer.Write(bytes.ReplaceAll(p, []byte("\n"), []byte("\r\n"))); err != nil {
		return 0, err
	}
	return len(p), nil
}
