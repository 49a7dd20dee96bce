package runtime

// This file answers how kubectl exec, attach and port-forward reach a container:
// the kubelet asks the runtime for a URL and proxies the client to it.

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
)

// streamServer serves the streams as containerd does: upstream's server, plain
// HTTP on a loopback address and a port of its own, and in each URL a token that
// is good once and for a minute.
type streamServer struct {
	mu     sync.Mutex
	api    streaming.Server
	http   *http.Server
	closed bool
}

// streamServer starts with the first stream: most nodes never need one.
func (r *Runtime) streamServer() (streaming.Server, error) {
	s := &r.streams
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, status.Error(codes.Unavailable, "the simulated node is going down")
	}
	if s.api != nil {
		return s.api, nil
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
	api, err := streaming.NewServer(config, streams{r})
	if err != nil {
		_ = listener.Close()
		return nil, err
	}
	s.api = api
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

// Exec returns the URL of one command; what it runs is in the file exec.go.
func (r *Runtime) Exec(_ context.Context, request *runtimeapi.ExecRequest) (*runtimeapi.ExecResponse, error) {
	if _, err := r.runningContainer(request.GetContainerId()); err != nil {
		return nil, err
	}
	server, err := r.streamServer()
	if err != nil {
		return nil, err
	}
	return server.GetExec(request)
}

// Attach returns the URL of a container's output from now on.
func (r *Runtime) Attach(_ context.Context, request *runtimeapi.AttachRequest) (*runtimeapi.AttachResponse, error) {
	if _, err := r.runningContainer(request.GetContainerId()); err != nil {
		return nil, err
	}
	server, err := r.streamServer()
	if err != nil {
		return nil, err
	}
	return server.GetAttach(request)
}

// PortForward returns the URL of connections to a pod's ports.
func (r *Runtime) PortForward(_ context.Context, request *runtimeapi.PortForwardRequest) (*runtimeapi.PortForwardResponse, error) {
	if _, err := r.podAddress(request.GetPodSandboxId()); err != nil {
		return nil, err
	}
	server, err := r.streamServer()
	if err != nil {
		return nil, err
	}
	return server.GetPortForward(request)
}

// podAddress is where the ports of a running sandbox are served.
func (r *Runtime) podAddress(sandboxID string) (netip.Addr, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.sandboxes[sandboxID]
	if s == nil {
		return netip.Addr{}, notFound("sandbox", sandboxID)
	}
	if s.state != runtimeapi.PodSandboxState_SANDBOX_READY {
		return netip.Addr{}, status.Errorf(codes.FailedPrecondition, "pod %s is not running", s.config.GetMetadata().GetName())
	}
	return r.realised(s), nil
}

// streams is what upstream's server of streams calls.
type streams struct{ runtime *Runtime }

// PortForward carries one connection. Either side may close its half first.
func (s streams) PortForward(ctx context.Context, sandboxID string, port int32, stream io.ReadWriteCloser) error {
	address, err := s.runtime.podAddress(sandboxID)
	if err != nil {
		return err
	}
	var dialer net.Dialer
	connection, err := dialer.DialContext(ctx, "tcp4", netip.AddrPortFrom(address, uint16(port)).String())
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

// Attach shows the container's log from now on. Nothing reads what the client
// types, but ^C and ^D leave, so that a terminal is never stuck.
func (s streams) Attach(ctx context.Context, id string, in io.Reader, out, err io.WriteCloser, tty bool, _ <-chan remotecommand.TerminalSize) error {
	c, failed := s.runtime.runningContainer(id)
	if failed != nil {
		return failed
	}
	ctx, cancel := c.whileRunning(ctx)
	defer cancel()
	output, complaints := writers(out, err, tty)
	if in != nil {
		go leave(in, tty, cancel)
	}
	lines, stop := c.log.follow()
	defer stop()
	if _, failed := fmt.Fprintf(complaints, "Simulated container %s: nothing reads what you type; its log from now on follows.\n", c.name()); failed != nil {
		return failed
	}
	for {
		select {
		case line := <-lines:
			to := output
			if line.stream == stderr {
				to = complaints
			}
			if _, failed := io.WriteString(to, line.text+"\n"); failed != nil {
				return nil // the client has gone
			}
		case <-ctx.Done():
			return nil
		}
	}
}

// leave cancels when a key that ends things is typed.
func leave(in io.Reader, tty bool, cancel context.CancelFunc) {
	buffer := make([]byte, 256)
	for {
		n, err := in.Read(buffer)
		for _, key := range buffer[:n] {
			if tty && (key == keyInterrupt || key == keyEndOfInput) {
				cancel()
			}
		}
		if err != nil {
			return
		}
	}
}
