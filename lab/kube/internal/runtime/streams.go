package runtime

import (
	"context"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/cri-streaming/pkg/streaming"
	"k8s.io/cri-streaming/pkg/streaming/remotecommand"

	"github.com/ccmlab/ccmlab/lab/kube/internal/podnet"
)

// streamServer serves the streams of exec and port-forward as containerd does: with upstream's
// server, by plain HTTP on a loopback address and a port of its own. Each URL has a token that is
// valid once and for a minute.
type streamServer struct {
	mu       sync.Mutex
	upstream streaming.Server
	http     *http.Server
	closed   bool
}

// streamServer returns the server, which it starts for the first stream: most nodes need none.
func (r *Runtime) streamServer() (streaming.Server, error) {
	s := &r.streams
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, status.Error(codes.Unavailable, "the simulated node is going down")
	}
	if s.upstream != nil {
		return s.upstream, nil
	}
	address := r.options.NodeAddress
	if !address.IsLoopback() {
		address = netip.AddrFrom4([4]byte{127, 0, 0, 1})
	}
	listener, err := net.Listen("tcp4", netip.AddrPortFrom(address, 0).String())
	if err != nil {
		return nil, fmt.Errorf("server of streams: %w", err)
	}
	config := streaming.DefaultConfig
	config.BaseURL = &url.URL{Scheme: "http", Host: listener.Addr().String(), Path: "/"}
	api, err := streaming.NewServer(config, streamRuntime{r})
	if err != nil {
		_ = listener.Close()
		return nil, err
	}
	s.upstream = api
	s.http = &http.Server{Handler: api, ReadHeaderTimeout: 30 * time.Second, ErrorLog: log.New(io.Discard, "", 0)}
	go func() { _ = s.http.Serve(listener) }()
	return api, nil
}

func (s *streamServer) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	if s.http != nil {
		_ = s.http.Close()
	}
}

var errAttach = status.Error(
	codes.Unimplemented,
	"attach: a simulated container has no process to attach to; kubectl logs -f --tail=0 does the same",
)

// Attach is refused.
func (*Runtime) Attach(context.Context, *runtimeapi.AttachRequest) (*runtimeapi.AttachResponse, error) {
	return nil, errAttach
}

// PortForward returns the URL for connections to a pod's ports.
func (r *Runtime) PortForward(
	_ context.Context,
	request *runtimeapi.PortForwardRequest,
) (*runtimeapi.PortForwardResponse, error) {
	if _, err := r.sandboxAddress(request.GetPodSandboxId()); err != nil {
		return nil, err
	}
	server, err := r.streamServer()
	if err != nil {
		return nil, err
	}
	return server.GetPortForward(request)
}

// sandboxAddress returns the address on which the ports of a running sandbox are served.
func (r *Runtime) sandboxAddress(sandboxID string) (netip.Addr, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.sandboxes[sandboxID]
	if s == nil {
		return netip.Addr{}, notFound("sandbox", sandboxID)
	}
	if s.state != runtimeapi.PodSandboxState_SANDBOX_READY {
		return netip.Addr{}, status.Errorf(codes.FailedPrecondition, "pod %s is not running", s.config.GetMetadata().
			GetName())
	}
	return r.loopbackAddress(s), nil
}

// streamRuntime implements streaming.Runtime, which upstream's server calls.
type streamRuntime struct{ runtime *Runtime }

// PortForward copies one connection. Either side may half-close it first.
func (s streamRuntime) PortForward(ctx context.Context, sandboxID string, port int32, stream io.ReadWriteCloser) error {
	address, err := s.runtime.sandboxAddress(sandboxID)
	if err != nil {
		return err
	}
	var dialer net.Dialer
	served := netip.AddrPortFrom(address, podnet.ServedPort(uint16(port)))
	connection, err := dialer.DialContext(ctx, "tcp4", served.String())
	if err != nil {
		return fmt.Errorf("nothing answers port %d of the pod: %w", port, err)
	}
	defer func() { _ = connection.Close() }()
	go func() {
		_, _ = io.Copy(connection, stream)
		_ = connection.(*net.TCPConn).CloseWrite()
	}()
	_, err = io.Copy(stream, connection)
	return err
}

// Attach is never called: no URL leads to it.
func (streamRuntime) Attach(
	context.Context,
	string,
	io.Reader,
	io.WriteCloser,
	io.WriteCloser,
	bool,
	<-chan remotecommand.TerminalSize,
) error {
	return errAttach
}
