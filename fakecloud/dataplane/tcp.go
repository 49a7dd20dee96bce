// This file answers: what happens to one connection?

package dataplane

import (
	"context"
	"errors"
	"net"
	"net/netip"
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
	l.begin()
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
	defer func() { _ = conn.Close() }()
	to.begin()
	defer func() {
		to.active.Add(-1)
		to.busy.Add(-1)
		l.balancer.clients.ended(from, to.name)
	}()
	if l.balancer.flows.lead(f, conn, to) && !l.exchange(f, r.idle) {
		l.broken.Add(1)
		to.broken.Add(1)
	}
}

// exchange copies both directions until both have ended, or neither side has
// said anything for so long, if that is not 0. It tells whether both sides ended
// the connection in good order.
func (l *listener) exchange(f *flow, idle time.Duration) bool {
	hush := newSilence(idle, f.cut)
	defer hush.stop()
	out := make(chan error, 1)
	l.balancer.running.Go(func() {
		out <- l.pass(&pump{from: f.target, to: f.client, counts: [2]*atomic.Int64{&l.out, &f.to.out}, hush: hush}, f)
	})
	err := l.pass(&pump{from: f.client, to: f.target, counts: [2]*atomic.Int64{&l.in, &f.to.in}, hush: hush}, f)
	return errors.Join(err, <-out) == nil
}

// pass copies one direction. Its end is passed on as such: an end of stream
// leaves the other direction open, a broken connection breaks both.
func (l *listener) pass(p *pump, f *flow) error {
	broke, err := p.run()
	if err == nil {
		broke, err = p.to, p.to.CloseWrite()
	}
	if err != nil {
		f.cut()
		if broke == f.target && !errors.Is(err, net.ErrClosed) {
			l.balancer.suspect(f.to.name)
		}
	}
	return err
}

// dial connects to the first candidate that answers, and counts as busy there;
// nil if none does, or not soon.
func (l *listener) dial(r *route, from netip.Addr, client *net.TCPConn) (*net.TCPConn, target) {
	late := time.Now().Add(dialsTimeout)
	for t := range l.candidates(r, from) {
		t.busy.Add(1)
		conn, err := l.connect(t.at, late, r.listener.ProxyProtocol, client)
		if err == nil {
			l.balancer.clients.remember(from, t.name)
			return conn, t
		}
		t.busy.Add(-1)
		l.balancer.log.Debug("target does not answer", "target", t.name, "at", t.at, "err", err)
		if l.balancer.ctx.Err() != nil {
			break
		}
		t.failed.Add(1)
		t.refuse()
		l.balancer.suspect(t.name)
		if !time.Now().Before(late) {
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
func (l *listener) connect(at netip.AddrPort, late time.Time, proxy cloud.ProxyProtocol, client *net.TCPConn) (*net.TCPConn, error) {
	ctx, cancel := context.WithDeadline(l.balancer.ctx, earlier(late, time.Now().Add(dialTimeout)))
	defer cancel()
	conn, err := dialer.DialTCP(ctx, "tcp", netip.AddrPort{}, at)
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
	return conn, nil
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

// reset closes with RST: to the peer it looks like what it is, a failure.
func reset(c *net.TCPConn) {
	_ = c.SetLinger(0)
	_ = c.Close()
}
