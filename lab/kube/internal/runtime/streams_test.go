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

// The streams are spoken to as the kubelet's proxy does, with the client of
// kubectl.

func (b *box) stream(ctx context.Context, address string, options remotecommand.StreamOptions) error {
	b.t.Helper()
	parsed, err := url.Parse(address)
	b.must(err)
	executor, err := remotecommand.NewSPDYExecutor(&restclient.Config{}, http.MethodPost, parsed)
	b.must(err)
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	return executor.StreamWithContext(ctx, options)
}

func (b *box) execURL(argv ...string) string {
	b.t.Helper()
	answer, err := b.Exec(b.t.Context(), &runtimeapi.ExecRequest{ContainerId: b.id, Cmd: argv, Stdin: true, Stdout: true, Stderr: true})
	b.must(err)
	return answer.GetUrl()
}

func TestExecOverTheWire(t *testing.T) {
	b := newBox(t, 20)
	b.exchange("typed", 0, "typed", "", "cat")
	b.exchange("", 5, "out\n", "err\n", "sh", "-c", "echo out; echo err >&2; exit 5")
}

// exchange runs a command, and requires how it ends and what it prints. Upstream's
// client may take the end of a stream for all there was, when a stream's last data and
// its end come at once (spdystream, Stream.ReadData): less may have come, and is asked
// for again.
func (b *box) exchange(stdin string, status int, wantOut, wantErr string, argv ...string) {
	b.t.Helper()
	const tries = 20
	for try := 1; ; try++ {
		var stdout, stderr bytes.Buffer
		err := b.stream(b.t.Context(), b.execURL(argv...), remotecommand.StreamOptions{Stdin: strings.NewReader(stdin), Stdout: &stdout, Stderr: &stderr})
		exit, told := 0, err == nil
		var ended utilexec.ExitError
		if errors.As(err, &ended) {
			exit, told = ended.ExitStatus(), true
		}
		if told && exit == status && stdout.String() == wantOut && stderr.String() == wantErr {
			return
		}
		if try == tries || exit != 0 && exit != status {
			b.t.Fatalf("got %q, %q and %v", &stdout, &stderr, err)
		}
	}
}

func TestTheURLOfAStreamIsGoodOnce(t *testing.T) {
	b := newBox(t, 21)
	address := b.execURL("true")
	if parsed, err := url.Parse(address); err != nil || parsed.Hostname() != b.options.NodeAddress.String() {
		t.Errorf("%s is not on the node's address", address)
	}
	streams := remotecommand.StreamOptions{Stdin: strings.NewReader(""), Stdout: io.Discard, Stderr: io.Discard}
	b.must(b.stream(t.Context(), address, streams))
	for _, stale := range []string{address, address[:strings.LastIndex(address, "/")] + "/guessed"} {
		if err := b.stream(t.Context(), stale, streams); err == nil {
			t.Errorf("%s was answered", stale)
		}
	}
	b.must(b.Close(t.Context()))
	if err := b.stream(t.Context(), address, streams); err == nil || !strings.Contains(err.Error(), "refused") {
		t.Errorf("after Close: %v", err)
	}
}

// screen collects what a terminal shows, and lets a test wait for it.
type screen struct {
	mu   sync.Mutex
	text string
	more chan struct{}
}

func newScreen() *screen { return &screen{more: make(chan struct{}, 1)} }

func (s *screen) Write(p []byte) (int, error) {
	s.mu.Lock()
	s.text += string(p)
	s.mu.Unlock()
	select {
	case s.more <- struct{}{}:
	default:
	}
	return len(p), nil
}

func (s *screen) await(t *testing.T, wanted string) {
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

// net/http does not tell that the client of a stream has gone.
func TestACommandEndsWithItsClient(t *testing.T) {
	b := newBox(t, 22)
	for _, argv := range [][]string{{"sleep", "infinity"}, {"sh", "-c", "echo begun; while true; do true; done"}, {"cat"}} {
		address := b.execURL(argv...)
		ctx, kill := context.WithCancel(t.Context())
		screen, gone := newScreen(), make(chan error, 1)
		stdin, typed := io.Pipe()
		go func() {
			gone <- b.stream(ctx, address, remotecommand.StreamOptions{Stdin: stdin, Stdout: screen, Stderr: screen})
		}()
		switch argv[0] {
		case "sh":
			screen.await(t, "begun")
		case "cat":
			_, err := io.WriteString(typed, "echoed")
			b.must(err)
			screen.await(t, "echoed")
		}
		kill()
		if err := <-gone; err == nil {
			t.Errorf("%q ended by itself", argv)
		}
		b.must(typed.Close())
		ended := make(chan struct{})
		go func() {
			b.container().commands.Wait()
			close(ended)
		}()
		select {
		case <-ended:
		case <-time.After(patience):
			t.Fatalf("%q outlives its client", argv)
		}
	}
}

func (b *box) container() *container {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.containers[b.id]
}

func TestWhatNeedsATerminalOrAProcessIsRefused(t *testing.T) {
	b := newBox(t, 23)
	_, err := b.Exec(t.Context(), &runtimeapi.ExecRequest{ContainerId: b.id, Cmd: []string{"sh"}, Stdin: true, Stdout: true, Tty: true})
	if status.Code(err) != codes.Unimplemented || !strings.Contains(err.Error(), `leave out -t: kubectl exec POD -- sh -c "…" works`) {
		t.Errorf("a terminal: %v", err)
	}
	_, err = b.Attach(t.Context(), &runtimeapi.AttachRequest{ContainerId: b.id, Stdout: true})
	if status.Code(err) != codes.Unimplemented || !strings.Contains(err.Error(), "kubectl logs -f --tail=0 does the same") {
		t.Errorf("attach: %v", err)
	}
}

func TestPortForwardReachesThePod(t *testing.T) {
	b := newBox(t, 24)
	list, err := b.ListPodSandbox(t.Context(), nil)
	b.must(err)
	answer, err := b.PortForward(t.Context(), &runtimeapi.PortForwardRequest{PodSandboxId: list[0].GetId(), Port: []int32{18080}})
	b.must(err)
	address, err := url.Parse(answer.GetUrl())
	b.must(err)
	transport, upgrader, err := spdy.RoundTripperFor(&restclient.Config{})
	b.must(err)
	stop, ready := make(chan struct{}), make(chan struct{})
	forwarder, err := portforward.NewOnAddresses(spdy.NewDialer(upgrader, &http.Client{Transport: transport}, http.MethodPost, address),
		[]string{b.options.NodeAddress.String()}, []string{"0:18080", "0:18099"}, stop, ready, io.Discard, io.Discard)
	b.must(err)
	done := make(chan error, 1)
	go func() { done <- forwarder.ForwardPorts() }()
	select {
	case <-ready:
	case err := <-done:
		t.Fatal(err)
	}
	ports, err := forwarder.GetPorts()
	b.must(err)
	url := func(port uint16) string { return fmt.Sprintf("http://%s:%d/", b.options.NodeAddress, port) }
	for range 3 {
		if _, body := get(t, url(ports[0].Local)); !strings.Contains(body, "Hello from pod web") {
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
	if err := (streams{b.Runtime}).PortForward(t.Context(), list[0].GetId(), 18099, nil); err == nil || !strings.Contains(err.Error(), "nothing answers port 18099 of the pod") {
		t.Errorf("got %v", err)
	}
	if _, err := b.PortForward(t.Context(), &runtimeapi.PortForwardRequest{PodSandboxId: "none"}); err == nil {
		t.Error("a pod that is not there has a URL")
	}
}
