package runtime

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	restclient "k8s.io/client-go/rest"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/client-go/transport/spdy"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	utilexec "k8s.io/utils/exec"
)

// streamCommand opens the streams as kubectl does, with the same client.
func (c *testContainer) streamCommand(ctx context.Context, address string, options remotecommand.StreamOptions) error {
	c.t.Helper()
	parsed, err := url.Parse(address)
	c.mustSucceed(err)
	executor, err := remotecommand.NewSPDYExecutor(&restclient.Config{}, http.MethodPost, parsed)
	c.mustSucceed(err)
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	return executor.StreamWithContext(ctx, options)
}

func (c *testContainer) execURL(argv ...string) string {
	c.t.Helper()
	answer, err := c.Exec(
		c.t.Context(), &runtimeapi.ExecRequest{ContainerId: c.id, Cmd: argv, Stdin: true, Stdout: true, Stderr: true},
	)
	c.mustSucceed(err)
	return answer.GetUrl()
}

func TestExecStreams(t *testing.T) {
	c := newTestContainer(t, 20)
	c.expectStream("typed", 0, "typed", "", "cat")
	c.expectStream("", 5, "out\n", "err\n", "sh", "-c", "echo out; echo err >&2; exit 5")
}

// expectStream runs a command, and requires its exit code and output. Upstream's client may lose a
// stream's last data if the stream's end comes together with it (spdystream, Stream.ReadData): if
// output is missing, the command is run again.
func (c *testContainer) expectStream(stdin string, status int, wantOut, wantErr string, argv ...string) {
	c.t.Helper()
	const tries = 20
	for try := 1; ; try++ {
		var stdout, stderr bytes.Buffer
		err := c.streamCommand(
			c.t.Context(), c.execURL(argv...),
			remotecommand.StreamOptions{Stdin: strings.NewReader(stdin), Stdout: &stdout, Stderr: &stderr},
		)
		exit, hasExited := 0, err == nil
		var ended utilexec.ExitError
		if errors.As(err, &ended) {
			exit, hasExited = ended.ExitStatus(), true
		}
		if hasExited && exit == status && stdout.String() == wantOut && stderr.String() == wantErr {
			return
		}
		if try == tries || exit != 0 && exit != status {
			c.t.Fatalf("got %q, %q and %v", &stdout, &stderr, err)
		}
	}
}

func TestStreamURLIsGoodOnce(t *testing.T) {
	c := newTestContainer(t, 21)
	address := c.execURL("true")
	if parsed, err := url.Parse(address); err != nil || parsed.Hostname() != c.options.NodeAddress.String() {
		t.Errorf("%s is not on the node's address", address)
	}
	streams := remotecommand.StreamOptions{Stdin: strings.NewReader(""), Stdout: io.Discard, Stderr: io.Discard}
	c.mustSucceed(c.streamCommand(t.Context(), address, streams))
	for _, stale := range []string{address, address[:strings.LastIndex(address, "/")] + "/guessed"} {
		if err := c.streamCommand(t.Context(), stale, streams); err == nil {
			t.Errorf("%s was answered", stale)
		}
	}
	c.mustSucceed(c.Close(t.Context()))
	if err := c.streamCommand(t.Context(), address, streams); err == nil || !strings.Contains(err.Error(), "refused") {
		t.Errorf("after Close: %v", err)
	}
}

// terminalOutput collects a command's output, for a test to wait for parts of it.
type terminalOutput struct {
	mu   sync.Mutex
	text string
	more chan struct{}
}

func newTerminalOutput() *terminalOutput { return &terminalOutput{more: make(chan struct{}, 1)} }

func (s *terminalOutput) Write(p []byte) (int, error) {
	s.mu.Lock()
	s.text += string(p)
	s.mu.Unlock()
	select {
	case s.more <- struct{}{}:
	default:
	}
	return len(p), nil
}

func (s *terminalOutput) waitForText(t *testing.T, wanted string) {
	t.Helper()
	for deadline := time.After(patience); ; {
		s.mu.Lock()
		text := s.text
		s.mu.Unlock()
		if strings.Contains(text, wanted) {
			return
		}
		select {
		case <-s.more:
		case <-deadline:
			t.Fatalf("waited for %q; the screen shows %q", wanted, text)
		}
	}
}

// net/http does not notice when the client of a stream has gone.
func TestCommandEndsWithItsClient(t *testing.T) {
	c := newTestContainer(t, 22)
	for _, argv := range [][]string{
		{"sleep", "infinity"}, {"sh", "-c", "echo begun; while true; do true; done"}, {"cat"},
	} {
		address := c.execURL(argv...)
		ctx, kill := context.WithCancel(t.Context())
		screen, commandErr := newTerminalOutput(), make(chan error, 1)
		stdin, typed := io.Pipe()
		go func() {
			commandErr <- c.streamCommand(
				ctx, address, remotecommand.StreamOptions{Stdin: stdin, Stdout: screen, Stderr: screen},
			)
		}()
		switch argv[0] {
		case "sh":
			screen.waitForText(t, "begun")
		case "cat":
			_, err := io.WriteString(typed, "echoed")
			c.mustSucceed(err)
			screen.waitForText(t, "echoed")
		}
		kill()
		if err := <-commandErr; err == nil {
			t.Errorf("%q ended by itself", argv)
		}
		c.mustSucceed(typed.Close())
		ended := make(chan struct{})
		go func() {
			c.runtimeContainer().commands.Wait()
			close(ended)
		}()
		select {
		case <-ended:
		case <-time.After(patience):
			t.Fatalf("%q outlives its client", argv)
		}
	}
}

func (c *testContainer) runtimeContainer() *container {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.containers[c.id]
}

func TestTerminalAndAttachAreRefused(t *testing.T) {
	c := newTestContainer(t, 23)
	_, err := c.Exec(
		t.Context(),
		&runtimeapi.ExecRequest{ContainerId: c.id, Cmd: []string{"sh"}, Stdin: true, Stdout: true, Tty: true},
	)
	if status.Code(err) != codes.Unimplemented ||
		!strings.Contains(err.Error(), `leave out -t: kubectl exec POD -- sh -c "…" works`) {
		t.Errorf("a terminal: %v", err)
	}
	_, err = c.Attach(t.Context(), &runtimeapi.AttachRequest{ContainerId: c.id, Stdout: true})
	if status.Code(err) != codes.Unimplemented ||
		!strings.Contains(err.Error(), "kubectl logs -f --tail=0 does the same") {
		t.Errorf("attach: %v", err)
	}
}

func TestPortForward(t *testing.T) {
	c := newTestContainer(t, 24)
	list, err := c.ListPodSandbox(t.Context(), nil)
	c.mustSucceed(err)
	answer, err := c.PortForward(
		t.Context(), &runtimeapi.PortForwardRequest{PodSandboxId: list[0].GetId(), Port: []int32{18080}},
	)
	c.mustSucceed(err)
	address, err := url.Parse(answer.GetUrl())
	c.mustSucceed(err)
	transport, upgrader, err := spdy.RoundTripperFor(&restclient.Config{})
	c.mustSucceed(err)
	stop, ready := make(chan struct{}), make(chan struct{})
	forwarder, err := portforward.NewOnAddresses(spdy.NewDialer(
		upgrader, &http.Client{Transport: transport}, http.MethodPost, address,
	),
		[]string{c.options.NodeAddress.String()}, []string{"0:18080", "0:18099"}, stop, ready, io.Discard, io.Discard)
	c.mustSucceed(err)
	done := make(chan error, 1)
	go func() { done <- forwarder.ForwardPorts() }()
	select {
	case <-ready:
	case err := <-done:
		t.Fatal(err)
	}
	ports, err := forwarder.GetPorts()
	c.mustSucceed(err)
	url := func(port uint16) string { return fmt.Sprintf("http://%s:%d/", c.options.NodeAddress, port) }
	for range 3 {
		if _, body := mustGet(t, url(ports[0].Local)); !strings.Contains(body, "Hello from pod web") {
			t.Errorf("got %q", body)
		}
	}
	if response, err := http.Get(url(ports[1].Local)); err == nil {
		response.Body.Close()
		t.Error("a port that nobody listens on answered")
	}
	close(stop)
	if err := <-done; err != nil {
		t.Logf("the end that was asked for: %v", err)
	}
	if err := (streamRuntime{c.Runtime}).PortForward(t.Context(), list[0].GetId(), 18099, nil); err == nil ||
		!strings.Contains(err.Error(), "nothing answers port 18099 of the pod") {
		t.Errorf("got %v", err)
	}
	if _, err := c.PortForward(t.Context(), &runtimeapi.PortForwardRequest{PodSandboxId: "none"}); err == nil {
		t.Error("a pod that is not there has a URL")
	}
}
