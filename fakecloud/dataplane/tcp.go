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
	r, client := l.route.Load(), conn.RemoteAddr().(*net.TCPAddr).AddrPort().Addr().Unmap().WithZone("")
	if !r.admits(client) || !l.claim(r) {
		l.refused.Add(1)
		reset(conn)
		return
	}
	l.connections.Add(1)
	f := &flow{at: l.at, from: client, client: conn}
	l.balancer.running.Go(func() { l.serve(r, f) })
}

// serve has a connection forwarded, if its client can be. It does not wait for
// the end: dialling takes a larger stack than what follows.
func (l *listener) serve(r *route, f *flow) {
	if !l.balancer.flows.add(f) {
		l.finish(f)
		return
	}
	conn, to := l.dial(r, f.from, f.client)
	if conn == nil {
		l.failed.Add(1)
		reset(f.client)
		l.finish(f)
		return
	}
	to.begin()
	if !l.balancer.flows.lead(f, conn, to) {
		_ = conn.Close()
	}
	f.hush = newSilence(r.idle, f.cut)
	f.passing.Store(2)
	l.balancer.running.Go(func() {
		l.pass(f, &pump{from: conn, to: f.client, counts: [2]*atomic.Int64{&l.out, &to.out}, hush: f.hush})
	})
	l.balancer.running.Go(func() {
		l.pass(f, &pump{from: f.client, to: conn, counts: [2]*atomic.Int64{&l.in, &to.in}, hush: f.hush})
	})
}

// pass copies one direction. Its end is passed on as such: an end of stream
// leaves the other direction open, a broken connection breaks both. Who is last
// finishes.
func (l *listener) pass(f *flow, p *pump) {
	broke, err := p.run()
	if err == nil {
		// Asked before the other direction can have ended this connection itself.
		lost := f.ended.Load() == 0 && gone(p.from)
		if f.ended.Add(1) == 1 {
			if lost {
				broke, err = p.from, syscall.ECONNRESET // Who writes to it was told of it.
			} else if p.from == f.target {
				f.to.doubt() // A process that is killed ends its connections in good order.
			}
		}
	}
	if err == nil {
		broke, err = p.to, p.to.CloseWrite()
	}
	if err != nil {
		f.broken.Store(true)
		f.cut()
		if broke == f.target && !errors.Is(err, net.ErrClosed) {
			f.to.doubt()
		}
	}
	if f.passing.Add(-1) == 0 {
		l.finish(f)
	}
}

// finish ends a connection in which nothing is passed on any more.
func (l *listener) finish(f *flow) {
	f.hush.stop()
	l.balancer.flows.remove(f)
	if f.broken.Load() {
		l.broken.Add(1)
		f.to.broken.Add(1)
	}
	_ = f.client.Close()
	if f.target != nil {
		_ = f.target.Close()
		f.to.active.Add(-1)
		f.to.busy.Add(-1)
		l.balancer.clients.ended(f.from, f.to.name)
	}
	l.active.Add(-1)
}

// dial connects to the first candidate that answers, and counts as busy there;
// nil if none does, or not soon.
func (l *listener) dial(r *route, from netip.Addr, client *net.TCPConn) (*net.TCPConn, target) {
	late := time.Now().Add(dialsTimeout)
	for t := range l.candidates(r, from) {
		t.busy.Add(1)
		conn, err := l.connect(r.at(t), late, r.listener.ProxyProtocol, client)
		if err == nil {
			l.balancer.clients.begun(from, t.name)
			return conn, t
		}
		t.busy.Add(-1)
		l.balancer.log.Debug("target does not answer", "target", t.name, "at", r.at(t), "err", err)
		if blames(err) {
			t.failed.Add(1)
			t.doubt()
			l.refusals.note(t.endpoint)
		}
		if l.balancer.ctx.Err() != nil || isShortage(err) || !time.Now().Before(late) {
			break
		}
	}
	return nil, target{}
}

// dialer leaves out keep-alives, which are for targets that can vanish.
var dialer = func() *net.Dialer {
	d := net.Dialer{KeepAlive: -1}
	d.SetMultipathTCP(false)
	return &d
}()

var proxyVersions = map[cloud.ProxyProtocol]byte{cloud.ProxyV1: 1, cloud.ProxyV2: 2}

// connect dials a target and tells it, if it is to know, who the client is.
func (l *listener) connect(at netip.AddrPort, late time.Time, proxy cloud.ProxyProtocol, client *net.TCPConn) (*net.TCPConn, error) {
	// Not DialTCP: that binds, which keeps a port of this machine from all targets.
	dialled, err := dialer.DialContext(until{l.balancer.ctx, earlier(late, time.Now().Add(dialTimeout))}, "tcp", at.String())
	if err != nil {
		return nil, err
	}
	conn := dialled.(*net.TCPConn)
	if !at.Addr().IsLoopback() { // Else its end is always told.
		_ = conn.SetKeepAliveConfig(net.KeepAliveConfig{Enable: true})
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

// until is a context with a deadline that only those heed who ask for it, as a
// dialler does: without the timer and the cancelling that context.WithDeadline
// has, which a connection is too short for.
type until struct {
	context.Context
	late time.Time
}

// Deadline implements context.Context.
func (u until) Deadline() (time.Time, bool) { return u.late, true }

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
