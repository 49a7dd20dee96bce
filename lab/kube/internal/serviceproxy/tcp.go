package serviceproxy

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// dialTimeout is generous for loopback, where a missing endpoint refuses at once.
	dialTimeout = 2 * time.Second
	// shortagePause is how long a socket that failed is left alone: for want of
	// file descriptors, most likely, of which some may be free then.
	shortagePause = 100 * time.Millisecond
)

// tcpPort accepts on one node port.
type tcpPort struct {
	listener *net.TCPListener
	log      *slog.Logger
	done     context.Context
	stop     context.CancelFunc
	running  sync.WaitGroup

	mu     sync.Mutex
	choice choice
}

func listenTCP(at netip.AddrPort, targets backends, log *slog.Logger) (forwarder, error) {
	listener, err := net.ListenTCP("tcp4", net.TCPAddrFromAddrPort(at))
	if err != nil {
		return nil, err
	}
	t := &tcpPort{listener: listener, log: log, choice: newChoice(targets)}
	t.done, t.stop = context.WithCancel(context.Background())
	t.running.Go(t.accept)
	return t, nil
}

// close ends the listener and the connections that came through it: the Service
// has gone, or the node.
func (t *tcpPort) close() {
	t.stop()
	_ = t.listener.Close()
	t.running.Wait()
}

// set changes the endpoints for new connections. Open ones keep theirs, as
// connections that netfilter tracks do.
func (t *tcpPort) set(targets backends) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.choice.change(targets)
}

func (t *tcpPort) accept() {
	for {
		connection, err := t.listener.AcceptTCP()
		if t.done.Err() != nil {
			if err == nil {
				abort(connection)
			}
			return
		}
		if err != nil {
			t.log.Error("connection not accepted", "error", err.Error())
			select {
			case <-t.done.Done():
				return
			case <-time.After(shortagePause):
			}
			continue
		}
		t.running.Go(func() { t.forward(connection) })
	}
}

func (t *tcpPort) forward(client *net.TCPConn) {
	server, err := t.connect(clientAddress(client))
	if err != nil {
		t.log.Debug("connection reset", "client", client.RemoteAddr().String(), "error", err.Error())
		abort(client) // with RST, which is what no endpoint looks like
		return
	}
	splice(t.done, client, server)
}

var errNoEndpoints = errors.New("no usable endpoints")

// connect tries each endpoint once, in the order of whose turn it is: one that
// has just gone refuses before the API has told of it.
func (t *tcpPort) connect(client netip.Addr) (*net.TCPConn, error) {
	t.mu.Lock()
	candidates, dialer := t.choice.candidates(client), dialFrom(t.choice.sourceFor(client))
	t.mu.Unlock()
	err := errNoEndpoints
	for _, endpoint := range candidates {
		var connection net.Conn
		if connection, err = dialer.DialContext(t.done, "tcp4", endpoint.String()); err == nil {
			t.mu.Lock()
			t.choice.chosen(client, endpoint)
			t.mu.Unlock()
			return connection.(*net.TCPConn), nil
		}
	}
	return nil, err
}

func dialFrom(source netip.Addr) net.Dialer {
	dialer := net.Dialer{Timeout: dialTimeout, Control: lateSourcePort}
	if source.IsValid() {
		dialer.LocalAddr = net.TCPAddrFromAddrPort(netip.AddrPortFrom(source, 0))
	}
	return dialer
}

// lateSourcePort lets the kernel choose the source port at connect instead of at
// bind: it then has to be unique per endpoint only, and a busy node does not run
// out of them.
func lateSourcePort(_, _ string, raw syscall.RawConn) error {
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
