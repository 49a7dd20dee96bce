// This file answers: what happens to one connection?

package dataplane

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pires/go-proxyproto"

	"github.com/ccmlab/ccmlab/fakecloud/cloud"
)

const (
	// dialTimeout is how long one target may take to answer before the next is
	// tried.
	dialTimeout = time.Second
	// dialsTimeout is how long a client waits until a target has answered.
	dialsTimeout = 5 * time.Second
)

func (l *listener) accept(socket *net.TCPListener) {
	pause := readPause
	for {
		conn, err := socket.AcceptTCP()
		switch {
		case err == nil:
			pause = readPause
			l.admit(conn)
		case errors.Is(err, net.ErrClosed):
			return
		default:
			l.balancer.log.Warn("cannot accept a connection", "err", err)
			if !l.balancer.rest(pause) {
				return
			}
			pause = min(2*pause, maxReadPause)
		}
	}
}

// admit serves a connection if its client may have one.
func (l *listener) admit(conn *net.TCPConn) {
	r, client := l.route.Load(), conn.RemoteAddr().(*net.TCPAddr).AddrPort().Addr().Unmap()
	limit := int64(r.listener.ConnectionLimit)
	if !r.admits(client) || limit > 0 && l.active.Load() >= limit {
		l.refused.Add(1)
		reset(conn)
		return
	}
	l.connections.Add(1)
	l.active.Add(1)
	l.balancer.running.Go(func() {
		defer l.active.Add(-1)
		l.serve(r, client, conn)
	})
}

// serve forwards one connection until both directions have ended.
func (l *listener) serve(r *route, from netip.Addr, client *net.TCPConn) {
	defer func() { _ = client.Close() }()
	f := &flow{at: l.at, client: client}
	if !l.balancer.flows.add(f) {
		return
	}
	defer l.balancer.flows.remove(f)
	conn, to := l.dial(r, from, client)
	if conn == nil {
		l.failed.Add(1)
		reset(client)
		return
	}
	defer l.balancer.load.end(to.name)
	defer l.balancer.clients.ended(from, to.name)
	defer func() { _ = conn.Close() }()
	if l.balancer.flows.lead(f, conn, to) {
		l.exchange(f, r.idle)
	}
}

// exchange copies both directions until both have ended, or neither side has
// said anything for so long, if that is not 0.
func (l *listener) exchange(f *flow, idle time.Duration) {
	var hush *silence
	if idle > 0 {
		hush = newSilence(idle)
		done := make(chan struct{})
		defer close(done)
		l.balancer.running.Go(func() {
			if hush.lasted(done) {
				f.cut()
			}
		})
	}
	var both sync.WaitGroup
	both.Go(func() { forward(f.target, f.client, &l.in, hush) })
	both.Go(func() { forward(f.client, f.target, &l.out, hush) })
	both.Wait()
}

// dial connects to the first candidate that answers, and counts as its load;
// nil if none does, or not soon.
func (l *listener) dial(r *route, from netip.Addr, client *net.TCPConn) (*net.TCPConn, target) {
	ctx, cancel := context.WithTimeout(l.balancer.ctx, dialsTimeout)
	defer cancel()
	for _, t := range l.candidates(r, from) {
		l.balancer.load.begin(t.name)
		conn, err := connect(ctx, t.at, r.listener.ProxyProtocol, client)
		if err == nil {
			l.balancer.clients.remember(from, t.name)
			return conn, t
		}
		l.balancer.load.end(t.name)
		l.balancer.log.Debug("target does not answer", "target", t.name, "at", t.at, "err", err)
		if ctx.Err() != nil {
			break
		}
	}
	return nil, target{}
}

var dialer = func() *net.Dialer {
	var d net.Dialer
	d.SetMultipathTCP(false)
	return &d
}()

var proxyVersions = map[cloud.ProxyProtocol]byte{cloud.ProxyV1: 1, cloud.ProxyV2: 2}

// connect dials a target and tells it, if it is to know, who the client is.
func connect(ctx context.Context, at netip.AddrPort, proxy cloud.ProxyProtocol, client *net.TCPConn) (*net.TCPConn, error) {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	conn, err := dialer.DialContext(ctx, "tcp4", at.String())
	if err != nil {
		return nil, err
	}
	if version := proxyVersions[proxy]; version != 0 {
		// A new connection's buffer has room for a header: this does not wait.
		if _, err := proxyproto.HeaderProxyFromAddrs(version, client.RemoteAddr(), client.LocalAddr()).WriteTo(conn); err != nil {
			_ = conn.Close()
			return nil, err
		}
	}
	return conn.(*net.TCPConn), nil
}

// forward copies one direction. Its end is passed on as such: an end of stream
// leaves the other direction open, a broken connection breaks both.
func forward(to, from *net.TCPConn, count *atomic.Int64, hush *silence) {
	var n int64
	var err error
	if hush == nil {
		n, err = io.Copy(to, from) // Spliced in the kernel on Linux.
	} else {
		n, err = io.Copy(struct{ io.Writer }{to}, listening{from, hush})
	}
	count.Add(n)
	if err == nil {
		err = to.CloseWrite()
	}
	if err != nil {
		reset(to)
		reset(from)
	}
}

// reset closes with RST: to the peer it looks like what it is, a failure.
func reset(c *net.TCPConn) {
	_ = c.SetLinger(0)
	_ = c.Close()
}
