package dataplane

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/pires/go-proxyproto"

	"github.com/ccmlab/ccmlab/fakecloud/api"
)

const (
	// dialTimeout is how long one target may take to accept a connection before the
	// next one is tried.
	dialTimeout = time.Second
	// dialsTimeout is how long a client waits at most until a target has accepted.
	dialsTimeout = 5 * time.Second
)

// acceptConnections accepts until the socket is closed.
func (l *listener) acceptConnections(socket *net.TCPListener) {
	pause := retryPause
	for {
		conn, err := socket.AcceptTCP()
		switch {
		case err == nil:
			pause = retryPause
			l.admitConnection(conn)
		case errors.Is(err, net.ErrClosed):
			return
		default:
			l.balancer.log.Warn("cannot accept a connection", "err", err)
			if !l.balancer.waitBeforeRetry(pause) {
				return
			}
			pause = min(2*pause, maxRetryPause)
		}
	}
}

// admitConnection forwards a connection, or resets it if the source ranges, the
// connection limit or a shortage of files refuse it.
func (l *listener) admitConnection(conn *net.TCPConn) {
	r, client := l.route.Load(), conn.RemoteAddr().(*net.TCPAddr).AddrPort().Addr().Unmap().WithZone("")
	if !r.allowsClient(client) || l.balancer.plane.isInReserve(conn) || !l.claimConnection(r) {
		l.refused.Add(1)
		resetConnection(conn)
		return
	}
	l.connections.Add(1)
	f := &flow{listenAddress: l.address, clientAddress: client, clientConn: conn}
	serve := l.startForwarding
	switch protocol := r.listener.Protocol; {
	case protocol.IsHTTP():
		serve = l.serveRequests
	case protocol.IsTLS():
		serve = l.serveTLS
	}
	l.balancer.goroutines.Go(func() { serve(r, f) })
}

// startForwarding dials a target and starts a goroutine for each direction. It does not
// wait for them: dialling needs a larger stack than copying, and that stack is freed when
// startForwarding returns.
func (l *listener) startForwarding(r *route, f *flow) {
	if !l.balancer.flows.add(f) {
		l.finishFlow(f)
		return
	}
	conn, target := l.dialCandidates(r, f.clientAddress, "", f.clientConn)
	if conn == nil {
		l.failed.Add(1)
		resetConnection(f.clientConn)
		l.finishFlow(f)
		return
	}
	target.countConnection()
	if !l.balancer.flows.setTarget(f, conn, target) {
		_ = conn.Close()
	}
	f.idle = newIdleTimer(r.idleTimeout, f.resetBoth)
	f.openDirections.Store(2)
	l.balancer.goroutines.Go(func() {
		l.copyDirection(
			f,
			&pump{from: conn, to: f.clientConn, counts: [2]*atomic.Int64{&l.bytesOut, &target.bytesOut}, idle: f.idle},
		)
	})
	l.balancer.goroutines.Go(func() {
		l.copyDirection(
			f, &pump{from: f.clientConn, to: conn, counts: [2]*atomic.Int64{&l.bytesIn, &target.bytesIn}, idle: f.idle},
		)
	})
}

// copyDirection copies one direction and passes its end on as it was: after the end of
// the stream the other direction stays open, and a broken connection resets both. The
// direction that ends last finishes the flow.
func (l *listener) copyDirection(f *flow, p *pump) {
	failedConn, err := p.run()
	if err == nil {
		// Checked first: later, the other direction may itself have closed this
		// connection.
		connectionLost := f.endedDirections.Load() == 0 && isConnectionLost(p.from)
		if f.endedDirections.Add(1) == 1 {
			if connectionLost {
				failedConn, err = p.from, syscall.ECONNRESET // The kernel told the writer only.
			} else if p.from == f.targetConn {
				f.target.requestCheck() // The target may have been killed: then too its connections end in good order.
			}
		}
	}
	if err == nil {
		failedConn, err = p.to, p.to.CloseWrite()
	}
	if err != nil {
		f.resetBoth()
		if failedConn == f.targetConn && !errors.Is(err, net.ErrClosed) {
			f.target.requestCheck()
		}
	}
	if f.openDirections.Add(-1) == 0 {
		l.finishFlow(f)
	}
}

// finishFlow closes a flow of which no direction is copied any more.
func (l *listener) finishFlow(f *flow) {
	f.idle.stop()
	l.balancer.flows.remove(f)
	if f.broken.Load() {
		l.broken.Add(1)
		if f.targetConn != nil {
			f.target.broken.Add(1)
		}
	}
	_ = f.clientConn.Close()
	if f.targetConn != nil {
		_ = f.targetConn.Close()
		f.target.active.Add(-1)
		f.target.openConnections.Add(-1)
		l.balancer.affinity.removeConnection(f.clientAddress, f.target.name)
	}
	l.releaseConnection()
}

// dialCandidates connects to the first candidate that accepts, and counts the connection
// as one of that target's openConnections. It returns nil if none accepts in time. cookie is
// the client's, of listeners with sticky cookies.
func (l *listener) dialCandidates(
	r *route,
	clientAddress netip.Addr,
	cookie string,
	client *net.TCPConn,
) (*net.TCPConn, target) {
	deadline := time.Now().Add(dialsTimeout)
	for t := range l.candidatesFor(r, clientAddress, cookie) {
		t.openConnections.Add(1)
		conn, err := l.connectTarget(r.targetAddress(t), deadline, r.listener.ProxyProtocol, client)
		if err == nil {
			l.balancer.affinity.addConnection(clientAddress, t.name)
			return conn, t
		}
		t.openConnections.Add(-1)
		l.balancer.log.Debug("target does not answer", "target", t.name, "at", r.targetAddress(t), "err", err)
		if isTargetFailure(err) {
			t.failed.Add(1)
			t.requestCheck()
			l.refusals.recordRefusal(t.endpoint)
		}
		if l.balancer.ctx.Err() != nil || isShortage(err) || !time.Now().Before(deadline) {
			break
		}
	}
	return nil, target{}
}

// dialer sets no keep-alives: connectTarget does, for targets that can vanish.
var dialer = func() *net.Dialer {
	d := net.Dialer{KeepAlive: -1}
	d.SetMultipathTCP(false)
	return &d
}()

var proxyVersions = map[api.ProxyProtocol]byte{api.ProxyProtocolV1: 1, api.ProxyProtocolV2: 2}

// connectTarget dials a target and, if proxy asks for it, sends the PROXY protocol header
// that names the client.
func (l *listener) connectTarget(
	at netip.AddrPort,
	deadline time.Time,
	proxy api.ProxyProtocol,
	client *net.TCPConn,
) (*net.TCPConn, error) {
	// Not net.DialTCP: that binds, and a bound local port is used for one target only.
	forwarding := *dialer
	forwarding.Control = l.balancer.plane.checkReserve
	dialled, err := forwarding.DialContext(deadlineContext{l.balancer.ctx, earlierTime(deadline, time.Now().
		Add(dialTimeout))}, "tcp", at.String())
	if err != nil {
		return nil, err
	}
	conn := dialled.(*net.TCPConn)
	if !at.Addr().IsLoopback() { // On loopback the kernel always reports that the target is gone.
		_ = conn.SetKeepAliveConfig(net.KeepAliveConfig{Enable: true})
	}
	if version := proxyVersions[proxy]; version != 0 {
		// This does not block: a new connection's send buffer has room for the header.
		if _, err := proxyproto.HeaderProxyFromAddrs(version, client.RemoteAddr(), client.LocalAddr()).
			WriteTo(conn); err != nil {
			_ = conn.Close()
			return nil, err
		}
	}
	return conn, nil
}

// deadlineContext is a context with a deadline that does not end it: it is only for code
// that asks for the deadline, as net.Dialer does. It saves the timer and the cancellation
// of context.WithDeadline, which would be made anew for each connection.
type deadlineContext struct {
	context.Context
	deadline time.Time
}

// Deadline implements context.Context.
func (u deadlineContext) Deadline() (time.Time, bool) { return u.deadline, true }

func earlierTime(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

// resetConnection closes with RST, so that the peer sees a failure and no orderly end.
func resetConnection(c *net.TCPConn) {
	_ = c.SetLinger(0)
	_ = c.Close()
}
