package runtime

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/cri-streaming/pkg/streaming/remotecommand"
	utilexec "k8s.io/utils/exec"
)

const (
	// exitCodeUsage and exitCodeNotFound are those of a shell, as exitCodeKilled is.
	exitCodeUsage    = 2
	exitCodeNotFound = 127
)

const (
	// knownCommands is the end of each refusal.
	knownCommands = `kubectl exec runs env, hostname and "exit N", which ends the container`

	// notRunText is kubectl exec's output for any other command, including kubectl cp's tar.
	notRunText = `%s: not run: this container is simulated and its image is not run. It has no programs and no files, ` +
		"so sh and kubectl cp do not work; " + knownCommands + ". GET /?format=json on one of its ports answers with " +
		"the files of its ConfigMaps.\n"

	// ReasonNothingRun is the reason of the Event about exec probes and hooks, and nothingRunText its message.
	ReasonNothingRun = "ExecNotRun"
	nothingRunText   = "Exec probes and exec hooks of container %s succeed, but run nothing, because the node is " +
		"simulated: %q was the first. An httpGet, tcpSocket or grpc probe is answered."
)

// ExecSync answers an exec probe or hook. A command that is not one of builtinCommand's succeeds, and the
// first of a container is reported in an Event. For an exit code other than 0 it returns a
// k8s.io/utils/exec.CodeExitError, by which the kubelet's prober distinguishes failures from errors.
func (r *Runtime) ExecSync(_ context.Context, id string, argv []string, _ time.Duration) ([]byte, []byte, error) {
	c, err := r.runningContainer(id)
	if err != nil {
		return nil, nil, err
	}
	var stdout, stderr strings.Builder
	code, known := r.runBuiltin(c, argv, &stdout, &stderr)
	if !known {
		r.reportNothingRun(c, argv)
	}
	if code != 0 {
		err = newExitError(argv, code, stderr.String())
	}
	return []byte(stdout.String()), []byte(stderr.String()), err
}

// reportNothingRun has one Event recorded for each start of a container.
func (r *Runtime) reportNothingRun(c *container, argv []string) {
	c.nothingRun.Do(func() {
		message := fmt.Sprintf(nothingRunText, c.containerName(), strings.Join(argv, " "))
		r.options.Event(c.sandbox.config.GetMetadata().GetUid(), ReasonNothingRun, message)
	})
}

// newExitError returns the error that the kubelet expects of a command that has failed.
func newExitError(argv []string, code int, stderr string) error {
	text := fmt.Sprintf("command '%s' exited with %d", strings.Join(argv, " "), code)
	if stderr != "" {
		text += ": " + stderr
	}
	return utilexec.CodeExitError{Err: errors.New(text), Code: code}
}

// runBuiltin runs one of the few commands that a container has, and returns its exit code. known is false
// for any other command.
func (r *Runtime) runBuiltin(c *container, argv []string, stdout, stderr io.Writer) (code int, known bool) {
	if len(argv) == 0 {
		return 0, false
	}
	name := path.Base(argv[0])
	switch {
	case name == "exit":
		return r.exitByCommand(c, argv[1:], stdout, stderr), true
	case name == "hostname" && len(argv) == 1:
		_, _ = fmt.Fprintln(stdout, r.hostname(c))
	case name == "env" && len(argv) == 1:
		_, _ = fmt.Fprintln(stdout, strings.Join(r.environment(c), "\n"))
	default:
		return 0, false
	}
	return 0, true
}

func (r *Runtime) hostname(c *container) string {
	return cmp.Or(c.sandbox.config.GetHostname(), r.options.NodeName)
}

// environment returns the variables of the container, sorted.
func (r *Runtime) environment(c *container) []string {
	list := []string{"HOSTNAME=" + r.hostname(c)}
	for _, variable := range c.config.GetEnvs() {
		list = append(list, variable.GetKey()+"="+string(variable.GetValue()))
	}
	slices.Sort(list)
	return list
}

// exitByCommand carries out the command exit: it ends the container, as POST /exit does.
func (r *Runtime) exitByCommand(c *container, operands []string, stdout, stderr io.Writer) int {
	text := cmp.Or(strings.Join(operands, " "), "0")
	if code, err := strconv.ParseUint(text, 10, 8); err == nil {
		_, _ = fmt.Fprintf(stdout, "container %s exits with code %d\n", c.containerName(), code)
		r.endContainer(c, int32(code), "asked to exit by a command")
		return 0
	}
	_, _ = fmt.Fprintf(stderr, "exit: %q: a number from 0 to 255 is needed\n", text)
	return exitCodeUsage
}

// runningContainer returns a container if it runs.
func (r *Runtime) runningContainer(id string) (*container, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
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

var errTerminal = status.Error(
	codes.Unimplemented, "exec: a simulated container has no shell and no terminal; without -t, "+knownCommands,
)

// Exec returns the URL for one command, which streamRuntime.Exec runs.
func (r *Runtime) Exec(_ context.Context, request *runtimeapi.ExecRequest) (*runtimeapi.ExecResponse, error) {
	if request.GetTty() {
		return nil, errTerminal
	}
	if _, err := r.runningContainer(request.GetContainerId()); err != nil {
		return nil, err
	}
	server, err := r.streamServer()
	if err != nil {
		return nil, err
	}
	return server.GetExec(request)
}

// Exec implements streaming.Runtime for kubectl exec. It refuses what ExecSync lets succeed: a person waits
// for the output.
func (s streamRuntime) Exec(
	_ context.Context,
	id string,
	argv []string,
	_ io.Reader,
	out, err io.WriteCloser,
	_ bool,
	_ <-chan remotecommand.TerminalSize,
) error {
	c, failed := s.runtime.runningContainer(id)
	if failed != nil {
		return failed
	}
	stderr := writerOrDiscard(err)
	code, known := s.runtime.runBuiltin(c, argv, writerOrDiscard(out), stderr)
	if !known {
		code = exitCodeNotFound
		_, _ = fmt.Fprintf(stderr, notRunText, strings.Join(argv[:min(1, len(argv))], ""))
	}
	if code != 0 {
		return newExitError(argv, code, "")
	}
	return nil
}

// writerOrDiscard returns the stream that the client asked for.
func writerOrDiscard(wanted io.WriteCloser) io.Writer {
	if wanted == nil {
		return io.Discard
	}
	return wanted
}
