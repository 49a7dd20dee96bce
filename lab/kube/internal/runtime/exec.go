package runtime

// This file answers what kubectl exec, exec probes and exec hooks get from a
// container that has no processes: a few commands that see what it would see.

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
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
	if len(argv) > 0 && path.Base(argv[0]) == "exit" {
		return r.exitByCommand(id, argv[1:], stdout, stderr)
	}
	return r.inContainer(ctx, id, stdin, stdout, stderr, func(ctx context.Context, p *process) int {
		return p.arguments(ctx, argv)
	})
}

// inContainer starts a process with what a container engine gives to one.
func (r *Runtime) inContainer(ctx context.Context, id string, stdin *os.File, stdout, stderr io.Writer, run func(context.Context, *process) int) (int, error) {
	c, err := r.runningContainer(id)
	if err != nil {
		return 0, err
	}
	ctx, cancel := c.whileRunning(ctx)
	defer cancel()
	if stdin != nil {
		defer context.AfterFunc(ctx, func() { _ = stdin.Close() })()
	}
	files, err := r.openRootFS(c)
	if err != nil {
		return 0, fmt.Errorf("files of container %s: %w", c.name(), err)
	}
	defer files.close()
	p := &process{
		files: files, hostname: cmp.Or(c.sandbox.config.GetHostname(), r.options.NodeName), directory: path.Clean("/" + c.config.GetWorkingDir()),
		stdin: stdin, stdout: stdout, stderr: stderr,
	}
	p.environment = []string{"HOME=/", "HOSTNAME=" + p.hostname}
	for _, variable := range c.config.GetEnvs() {
		p.environment = append(p.environment, variable.GetKey()+"="+string(variable.GetValue()))
	}
	if err := p.newRunner(); err != nil {
		return 0, err
	}
	return run(ctx, p), nil
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
func (r *Runtime) exitByCommand(id string, argv []string, stdout, stderr io.Writer) (int, error) {
	c, err := r.runningContainer(id)
	if err != nil {
		return 0, err
	}
	text := cmp.Or(strings.Join(argv, " "), "0")
	code, err := strconv.ParseUint(text, 10, 8)
	if err != nil {
		_, _ = fmt.Fprintf(stderr, "exit: %q: a number from 0 to 255 is needed\n", text)
		return exitUsage, nil
	}
	_, _ = fmt.Fprintf(stdout, "container %s exits with code %d\n", c.name(), code)
	r.end(c, int32(code), "asked to exit by a command")
	return 0, nil
}

// limitedBuffer keeps the first part and drops the rest.
type limitedBuffer struct{ kept []byte }

func (b *limitedBuffer) Write(p []byte) (int, error) {
	b.kept = append(b.kept, p[:min(len(p), maxOutput-len(b.kept))]...)
	return len(p), nil
}

// Exec implements streaming.Runtime for kubectl exec.
func (s streams) Exec(ctx context.Context, id string, argv []string, in io.Reader, out, err io.WriteCloser, tty bool, resize <-chan remotecommand.TerminalSize) error {
	output, complaints := writers(out, err, tty)
	keys := &keyboard{Reader: in, raw: tty}
	var stdin *os.File
	if in != nil {
		reader, writer, failed := os.Pipe()
		if failed != nil {
			return failed
		}
		defer func() { _ = reader.Close() }()
		stdin = reader
		go func() {
			_, _ = io.Copy(writer, keys)
			_ = writer.Close()
		}()
	}
	var code int
	var failed error
	if tty && in != nil && len(argv) == 1 && slices.Contains(shells, path.Base(argv[0])) {
		terminal := term.NewTerminal(struct {
			io.Reader
			io.Writer
		}{stdin, out}, "$ ")
		go follow(terminal, resize)
		code, failed = s.runtime.inContainer(ctx, id, nil, terminal, terminal, func(ctx context.Context, p *process) int {
			defer context.AfterFunc(ctx, func() { _ = stdin.Close() })()
			return p.interactive(ctx, terminal, keys)
		})
	} else {
		ctx, done := keys.interruptible(ctx)
		code, failed = s.runtime.execute(ctx, id, argv, stdin, output, complaints)
		done()
	}
	if failed == nil && code != 0 {
		failed = exitError(argv, code, "")
	}
	return failed
}

// interactive is sh on a terminal: line after line, each understood by itself.
func (p *process) interactive(ctx context.Context, terminal *term.Terminal, keys *keyboard) (code int) {
	_, _ = fmt.Fprintln(terminal, "This is a simulated container: help lists what works, exit leaves.")
	for exited := false; !exited; {
		line, err := terminal.ReadLine()
		if err != nil {
			return 0 // ^D, or the terminal has gone
		}
		file, err := parse(strings.NewReader(line))
		if err != nil {
			p.fail(exitUsage, "%v", err)
			continue
		}
		command, done := keys.interruptible(ctx)
		code = p.run(command, file)
		exited = p.runner.Exited() && command.Err() == nil // ^C ends the command, not the shell
		done()
	}
	return code
}

func follow(terminal *term.Terminal, resize <-chan remotecommand.TerminalSize) {
	for size := range resize { // closed with the terminal
		_ = terminal.SetSize(int(size.Width), int(size.Height))
	}
}

// writers replaces what the client did not ask for. A terminal has no stderr, and
// needs carriage returns.
func writers(out, err io.Writer, tty bool) (output, complaints io.Writer) {
	if out == nil {
		out = io.Discard
	}
	if err == nil {
		err = out
	}
	if tty {
		return carriageReturns{out}, carriageReturns{err}
	}
	return out, err
}

type carriageReturns struct{ io.Writer }

func (w carriageReturns) Write(p []byte) (int, error) {
	if _, err := w.Writer.Write(bytes.ReplaceAll(p, []byte("\n"), []byte("\r\n"))); err != nil {
		return 0, err
	}
	return len(p), nil
}

const (
	keyInterrupt  = 0x03 // ^C
	keyEndOfInput = 0x04 // ^D
	keyClearLine  = 0x15 // ^U
)

// keyboard is what the client types. If raw, ^C interrupts the command that runs,
// as a real container's terminal driver has it, and clears the line that is typed.
type keyboard struct {
	io.Reader
	raw       bool
	interrupt atomic.Pointer[context.CancelFunc]
}

func (k *keyboard) Read(p []byte) (int, error) {
	n, err := k.Reader.Read(p)
	for i := range p[:n] {
		if k.raw && p[i] == keyInterrupt {
			p[i] = keyClearLine
			if interrupt := k.interrupt.Load(); interrupt != nil {
				(*interrupt)()
			}
		}
	}
	return n, err
}

func (k *keyboard) interruptible(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	k.interrupt.Store(&cancel)
	return ctx, cancel
}
