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
	"testing"

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
	c.expectStream(0, "web\n", "", "hostname")
	c.expectStream(0, "GREETING=good day\nHOSTNAME=web\nodd.name=1=2\n", "", "env")
	for _, argv := range [][]string{{"tar", "cf", "-", "/etc"}, {"sh"}, {"env", "-i"}, {"hostname", "-f"}} {
		c.expectStream(exitCodeNotFound, "", fmt.Sprintf(notRunText, argv[0]), argv...)
	}
	if len(c.events) > 0 {
		t.Errorf("what a person was told is reported: %q", c.events)
	}
	c.expectStream(0, "container main exits with code 3\n", "", "exit", "3")
}

// expectStream runs a command, and requires its exit code and output. Upstream's client may lose a
// stream's last data if the stream's end comes together with it (spdystream, Stream.ReadData): if
// output is missing, the command is run again.
func (c *testContainer) expectStream(status int, wantOut, wantErr string, argv ...string) {
	c.t.Helper()
	const tries = 20
	for try := 1; ; try++ {
		var stdout, stderr bytes.Buffer
		err := c.streamCommand(
			c.t.Context(), c.execURL(argv...),
			remotecommand.StreamOptions{Stdin: strings.NewReader(""), Stdout: &stdout, Stderr: &stderr},
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
	address := c.execURL("hostname")
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

func TestTerminalAndAttachAreRefused(t *testing.T) {
	c := newTestContainer(t, 23)
	_, err := c.Exec(
		t.Context(),
		&runtimeapi.ExecRequest{ContainerId: c.id, Cmd: []string{"sh"}, Stdin: true, Stdout: true, Tty: true},
	)
	if status.Code(err) != codes.Unimplemented ||
		!strings.Contains(err.Error(), "without -t, kubectl exec runs env, hostname") {
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
