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

	"github.com/stretchr/testify/assert"
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
	assert.Empty(t, c.events, "a person was told")
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
	parsed, err := url.Parse(address)
	c.mustSucceed(err)
	assert.Equal(t, c.options.NodeAddress.String(), parsed.Hostname())
	streams := remotecommand.StreamOptions{Stdin: strings.NewReader(""), Stdout: io.Discard, Stderr: io.Discard}
	c.mustSucceed(c.streamCommand(t.Context(), address, streams))
	for _, stale := range []string{address, address[:strings.LastIndex(address, "/")] + "/guessed"} {
		assert.Error(t, c.streamCommand(t.Context(), stale, streams), stale)
	}
	c.mustSucceed(c.Close(t.Context()))
	assert.ErrorContains(t, c.streamCommand(t.Context(), address, streams), "refused", "after Close")
}

func TestTerminalAndAttachAreRefused(t *testing.T) {
	c := newTestContainer(t, 23)
	_, err := c.Exec(t.Context(), &runtimeapi.ExecRequest{
		ContainerId: c.id, Cmd: []string{"sh"}, Stdin: true, Stdout: true, Tty: true,
	})
	assert.Equal(t, codes.Unimplemented, status.Code(err))
	assert.ErrorContains(t, err, "without -t, kubectl exec runs env, hostname")
	_, err = c.Attach(t.Context(), &runtimeapi.AttachRequest{ContainerId: c.id, Stdout: true})
	assert.Equal(t, codes.Unimplemented, status.Code(err))
	assert.ErrorContains(t, err, "kubectl logs -f --tail=0 does the same")
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
	dialer := spdy.NewDialer(upgrader, &http.Client{Transport: transport}, http.MethodPost, address)
	forwarder, err := portforward.NewOnAddresses(dialer,
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
		_, body := mustGet(t, url(ports[0].Local))
		assert.Contains(t, body, "Hello from pod web")
	}
	_, err = http.Get(url(ports[1].Local)) //nolint:bodyclose // There is no response.
	assert.Error(t, err, "a port that nobody listens on answered")
	close(stop)
	if err := <-done; err != nil {
		t.Logf("the end that was asked for: %v", err)
	}
	err = streamRuntime{c.Runtime}.PortForward(t.Context(), list[0].GetId(), 18099, nil)
	assert.ErrorContains(t, err, "nothing answers port 18099 of the pod")
	_, err = c.PortForward(t.Context(), &runtimeapi.PortForwardRequest{PodSandboxId: "none"})
	assert.Error(t, err, "a pod that is not there")
}
