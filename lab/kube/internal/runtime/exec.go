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
	r.mu.Lock()
	c, err := r.running(id)
	if err == nil {
		c.commands.Add(1) // Under r.mu: to a container that has ended none is added.
	}
	r.mu.Unlock()
	if err != nil {
		return 0, err
	}
	defer c.commands.Done()
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
	return p.execute(ctx, argv), nil
}

func (r *Runtime) runningContainer(id string) (*container, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.running(id)
}

// running needs r.mu.
func (r *Runtime) running(id string) (*container, error) {
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
	if code, err := strconv.ParseUint(text, 10, 8); err == nil {
		_, _ = fmt.Fprintf(stdout, "container %s exits with code %d\n", c.name(), code)
		r.end(c, int32(code), "asked to exit by a command")
		return 0, nil
	}
	_, _ = fmt.Fprintf(stderr, "exit: %q: a number from 0 to 255 is needed\n", text)
	return exitUsage, nil
}

// limitedBuffer keeps the first part and drops the rest.
type limitedBuffer struct{ kept []byte }

func (b *limitedBuffer) Write(p []byte) (int, error) {
	b.kept = append(b.kept, p[:min(len(p), maxOutput-len(b.kept))]...)
	return len(p), nil
}

// Exec implements streaming.Runtime for kubectl exec.
func (s streams) Exec(ctx context.Context, id string, argv []string, in io.Reader, out, err io.WriteCloser, _ bool, _ <-chan remotecommand.TerminalSize) error {
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
	code, failed := s.runtime.execute(ctx, id, argv, stdin, orDiscard(out), orDiscard(err))
	if failed == nil && code != 0 {
		failed = exitError(argv, code, "")
	}
	return failed
}

func orDiscard(wanted io.Writer) io.Writer {
	if wanted == nil {
		return io.Discard
	}
	return wanted
}
