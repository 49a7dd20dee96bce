package runtime

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	remote "k8s.io/cri-client/pkg"
	"k8s.io/cri-streaming/pkg/streaming/remotecommand"
	utilexec "k8s.io/utils/exec"
)

// maxOutput bounds the bytes that ExecSync keeps of a command's output.
const maxOutput = 1 << 20

// ExecSync runs a command for an exec probe or hook. For an exit code other than 0 it returns a
// k8s.io/utils/exec.CodeExitError, for a timeout ErrCommandTimedOut of k8s.io/cri-client: by these
// the kubelet's prober distinguishes failures from errors.
func (r *Runtime) ExecSync(
	ctx context.Context,
	id string,
	argv []string,
	timeout time.Duration,
) ([]byte, []byte, error) {
	if timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, timeout)
		defer cancel()
	}
	var stdout, stderr limitedBuffer
	code, err := r.execCommand(ctx, id, argv, nil, &stdout, &stderr)
	switch {
	case err != nil:
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		err = fmt.Errorf("%w: %q timed out after %s", remote.ErrCommandTimedOut, strings.Join(argv, " "), timeout)
	case code != 0:
		err = newExitError(argv, code, string(stderr.data))
	}
	return stdout.data, stderr.data, err
}

// newExitError returns the error that the kubelet expects of a command that has failed.
func newExitError(argv []string, code int, stderr string) error {
	text := fmt.Sprintf("command '%s' exited with %d", strings.Join(argv, " "), code)
	if stderr != "" {
		text += ": " + stderr
	}
	return utilexec.CodeExitError{Err: errors.New(text), Code: code}
}

// execCommand runs a command and returns its exit code. The command also ends when ctx is done or
// the container ends.
func (r *Runtime) execCommand(
	ctx context.Context,
	id string,
	argv []string,
	stdin *os.File,
	stdout, stderr io.Writer,
) (int, error) {
	if len(argv) > 0 && path.Base(argv[0]) == "exit" {
		return r.exitByCommand(id, argv[1:], stdout, stderr)
	}
	r.mu.Lock()
	c, err := r.runningContainerLocked(id)
	if err == nil {
		c.commands.Add(1) // Under r.mu, so that a container that has ended gets no more commands.
	}
	r.mu.Unlock()
	if err != nil {
		return 0, err
	}
	defer c.commands.Done()
	ctx, cancel := c.contextWhileRunning(ctx)
	defer cancel()
	if stdin != nil {
		defer context.AfterFunc(ctx, func() { _ = stdin.Close() })()
	}
	files, err := r.openRootFS(c)
	if err != nil {
		return 0, fmt.Errorf("files of container %s: %w", c.containerName(), err)
	}
	defer files.close()
	p := &process{
		files: files, hostname: cmp.Or(c.sandbox.config.GetHostname(), r.options.NodeName),
		directory: path.Clean("/" + c.config.GetWorkingDir()),
		stdin:     stdin, stdout: stdout, stderr: stderr,
	}
	p.environment = []string{"HOME=/", "HOSTNAME=" + p.hostname}
	for _, variable := range c.config.GetEnvs() {
		p.environment = append(p.environment, variable.GetKey()+"="+string(variable.GetValue()))
	}
	return p.runArgv(ctx, argv), nil
}

// runningContainer returns a container if it runs.
func (r *Runtime) runningContainer(id string) (*container, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.runningContainerLocked(id)
}

// runningContainerLocked returns a container if it runs. It needs r.mu.
func (r *Runtime) runningContainerLocked(id string) (*container, error) {
	c := r.containers[id]
	if c == nil {
		return nil, notFound("container", id)
	}
	if c.state != runtimeapi.ContainerState_CONTAINER_RUNNING {
		return nil, status.Errorf(
			codes.FailedPrecondition, "container %s of pod %s is not running", c.containerName(), c.podName(),
		)
	}
	return c, nil
}

// contextWhileRunning returns a context that is done once the container has ended.
func (c *container) contextWhileRunning(ctx context.Context) (context.Context, context.CancelFunc) {
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

// exitByCommand carries out the command exit: it ends the container, as POST /exit does.
func (r *Runtime) exitByCommand(id string, argv []string, stdout, stderr io.Writer) (int, error) {
	c, err := r.runningContainer(id)
	if err != nil {
		return 0, err
	}
	text := cmp.Or(strings.Join(argv, " "), "0")
	if code, err := strconv.ParseUint(text, 10, 8); err == nil {
		_, _ = fmt.Fprintf(stdout, "container %s exits with code %d\n", c.containerName(), code)
		r.endContainer(c, int32(code), "asked to exit by a command")
		return 0, nil
	}
	_, _ = fmt.Fprintf(stderr, "exit: %q: a number from 0 to 255 is needed\n", text)
	return exitCodeUsage, nil
}

// limitedBuffer keeps the first maxOutput bytes and drops the rest.
type limitedBuffer struct{ data []byte }

func (l *limitedBuffer) Write(p []byte) (int, error) {
	l.data = append(l.data, p[:min(len(p), maxOutput-len(l.data))]...)
	return len(p), nil
}

// Exec implements streaming.Runtime for kubectl exec.
func (s streamRuntime) Exec(
	ctx context.Context,
	id string,
	argv []string,
	in io.Reader,
	out, err io.WriteCloser,
	_ bool,
	_ <-chan remotecommand.TerminalSize,
) error {
	var stdin *os.File
	if in != nil {
		reader, writer, failed := os.Pipe()
		if failed != nil {
			return failed
		}
		defer func() { _ = reader.Close() }()
		stdin = reader
		go func() {
			_, _ = io.Copy(writer, in)
			_ = writer.Close()
		}()
	}
	code, failed := s.runtime.execCommand(ctx, id, argv, stdin, writerOrDiscard(out), writerOrDiscard(err))
	if failed == nil && code != 0 {
		failed = newExitError(argv, code, "")
	}
	return failed
}

func writerOrDiscard(wanted io.Writer) io.Writer {
	if wanted == nil {
		return io.Discard
	}
	return wanted
}
