package serviceproxy

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// dialTimeout is generous for loopback, where an address without a listener refuses at once.
	dialTimeout = 2 * time.Second
	// errorPause is the pause after a socket's error. Most likely the process has run out of file
	// descriptors, and some may be free then.
	errorPause = 100 * time.Millisecond
)

// tcpPort forwards the connections of one node port.
type tcpPort struct {
	listener *net.TCPListener
	log      *slog.Logger
	done     context.Context
	stop     context.CancelFunc
	running  sync.WaitGroup

	mu     sync.Mutex
	picker endpointPicker
}

func listenTCP(at netip.AddrPort, targets backends, log *slog.Logger) (forwarder, error) {
	listener, err := net.ListenTCP("tcp4", net.TCPAddrFromAddrPort(at))
	if err != nil {
		return nil, err
	}
	t := &tcpPort{listener: listener, log: log, picker: newEndpointPicker(targets)}
	t.done, t.stop = context.WithCancel(context.Background())
	t.running.Go(t.acceptConnections)
	return t, nil
}

// close closes the listener and its connections: the Service is deleted, or the node shuts down.
func (t *tcpPort) close() {
	t.stop()
	_ = t.listener.Close()
	t.running.Wait()
}

// setBackends changes the endpoints for new connections. Open connections keep their endpoints, as
// those that netfilter tracks do.
func (t *tcpPort) setBackends(targets backends) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.picker.setBackends(targets)
}

func (t *tcpPort) acceptConnections() {
	for {
		connection, err := t.listener.AcceptTCP()
		if t.done.Err() != nil {
			if err == nil {
				resetConnections(connection)
			}
			return
		}
		if err != nil {
			t.log.Error("connection not accepted", "error", err.Error())
			select {
			case <-t.done.Done():
				return
			case <-time.After(errorPause):
			}
			continue
		}
		t.running.Go(func() { t.forwardConnection(connection) })
	}
}

func (t *tcpPort) forwardConnection(client *net.TCPConn) {
	server, err := t.dialEndpoint(clientAddress(client))
	if err != nil {
		t.log.Debug("connection reset", "client", client.RemoteAddr().String(), "error", err.Error())
		resetConnections(client) // A client sees a reset from a Service without endpoints.
		return
	}
	spliceConnections(t.done, client, server)
}

var errNoEndpoints = errors.New("no usable endpoints")

// dialEndpoint connects to the first candidate that accepts. An endpoint that has just ended
// refuses before its EndpointSlice changes.
func (t *tcpPort) dialEndpoint(client netip.Addr) (*net.TCPConn, error) {
	t.mu.Lock()
	candidates, dialer := t.picker.candidateEndpoints(client), dialerFrom(t.picker.sourceAddressFor(client))
	t.mu.Unlock()
	err := errNoEndpoints
	for _, endpoint := range candidates {
		var connection net.Conn
		if connection, err = dialer.DialContext(t.done, "tcp4", endpoint.String()); err == nil {
			t.mu.Lock()
			t.picker.rememberEndpoint(client, endpoint)
			t.mu.Unlock()
			return connection.(*net.TCPConn), nil
		}
	}
	return nil, err
}

func dialerFrom(source netip.Addr) net.Dialer {
	dialer := net.Dialer{Timeout: dialTimeout, Control: deferSourcePort}
	if source.IsValid() {
		dialer.LocalAddr = net.TCPAddrFromAddrPort(netip.AddrPortFrom(source, 0))
	}
	return dialer
}

// deferSourcePort has the kernel choose the source port at connect instead of at bind. The port
// then has to be unique per endpoint only, so that a busy node does not run out of ports.
func deferSourcePort(_, _ string, raw syscall.RawConn) error {
	var err error
	if controlErr := raw.Control(func(fd uintptr) {
		err = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_BIND_ADDRESS_NO_PORT, 1)
	}); controlErr != nil {
		return controlErr
	}
	return err
}

func clientAddress(connection net.Conn) netip.Addr {
	return connection.RemoteAddr().(*net.TCPAddr).AddrPort().Addr().Unmap()
}

// spliceConnections copies in both directions until both have ended, or ctx is done. It passes a
// half-close on: a client that has sent everything still gets its answer. An error resets both
// connections.
func spliceConnections(ctx context.Context, client, server *net.TCPConn) {
	release := context.AfterFunc(ctx, func() { resetConnections(client, server) })
	defer release()
	var both sync.WaitGroup
	both.Go(func() { copyOneWay(client, server) })
	both.Go(func() { copyOneWay(server, client) })
	both.Wait()
	_ = client.Close()
	_ = server.Close()
}

// copyOneWay copies one direction and then half-closes to.
func copyOneWay(from, to *net.TCPConn) {
	if _, err := io.Copy(to, from); err != nil {
		if !errors.Is(err, net.ErrClosed) {
			resetConnections(from, to)
		}
		return
	}
	if err := to.CloseWrite(); err != nil {
		resetConnections(from, to)
	}
}

// resetConnections closes connections with RST.
func resetConnections(connections ...*net.TCPConn) {
	for _, connection := range connections {
		_ = connection.SetLinger(0)
		_ = connection.Close()
	}
}
