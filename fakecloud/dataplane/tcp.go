// This file answers: what happens to one connection?

package dataplane

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ccmlab/ccmlab/fakecloud/cloud"
)

const (
	// dialTimeout is how long one target may take to answer before the next is
	// tried.
	dialTimeout = time.Second
	// dialsTimeout is how long a client waits until a target has answered.
	dialsTimeout = 5 * time.Second
	// acceptPause is the wait after a failed accept, e.g. for want of file
	// descriptors. It doubles with each that follows, up to maxAcceptPause.
	acceptPause    = 50 * time.Millisecond
	maxAcceptPause = time.Second
)

// listener accepts on one port of a balancer.
type listener struct {
	balancer *balancer
	socket   net.Listener
	route    atomic.Pointer[route]
	turn     atomic.Uint64 // round robin
	*counters
}

// counters outlive the listener: one that is removed and comes back counts on.
type counters struct{ connections, active, failed, in, out atomic.Int64 }

// route is where new connections go.
type route struct {
	listener cloud.Listener
	targets  []string
}

func (l *listener) close() { _ = l.socket.Close() }

// stats counts bytes when a direction of a connection ends: until then the
// kernel moves them and nobody counts.
func (l *listener) stats() cloud.ListenerStats {
	return cloud.ListenerStats{
		Listener:    l.route.Load().listener,
		Connections: l.connections.Load(), Active: l.active.Load(), Failed: l.failed.Load(),
		BytesIn: l.in.Load(), BytesOut: l.out.Load(),
	}
}

func (l *listener) accept() {
	pause := acceptPause
	for {
		conn, err := l.socket.Accept()
		switch {
		case err == nil:
			pause = acceptPause
			l.connections.Add(1)
			l.active.Add(1)
			l.balancer.running.Go(func() {
				defer l.active.Add(-1)
				l.serve(conn.(*net.TCPConn))
			})
		case errors.Is(err, net.ErrClosed):
			return
		default:
			l.balancer.log.Warn("cannot accept a connection", "err", err)
			select {
			case <-l.balancer.ctx.Done():
				return
			case <-time.After(pause):
			}
			pause = min(2*pause, maxAcceptPause)
		}
	}
}

// serve forwards one connection until both directions have ended.
func (l *listener) serve(client *net.TCPConn) {
	defer func() { _ = client.Close() }()
	if !l.balancer.track(client) {
		return
	}
	defer l.balancer.untrack(client)
	target := l.dial()
	if target == nil {
		l.failed.Add(1)
		reset(client)
		return
	}
	defer func() { _ = target.Close() }()
	if !l.balancer.track(target) {
		return
	}
	defer l.balancer.untrack(target)
	var both sync.WaitGroup
	both.Go(func() { forward(target, client, &l.in) })
	both.Go(func() { forward(client, target, &l.out) })
	both.Wait()
}

// dial connects to the next target in turn that answers; nil if none does, or
// not soon.
func (l *listener) dial() *net.TCPConn {
	targets := l.route.Load().targets
	first := l.turn.Add(1) - 1
	all, cancel := context.WithTimeout(l.balancer.ctx, dialsTimeout)
	defer cancel()
	for i := range uint64(len(targets)) {
		at := targets[(first+i)%uint64(len(targets))]
		ctx, cancel := context.WithTimeout(all, dialTimeout)
		conn, err := dialer.DialContext(ctx, "tcp4", at)
		cancel()
		if err == nil {
			return conn.(*net.TCPConn)
		}
		l.balancer.log.Debug("target does not answer", "target", at, "err", err)
		if all.Err() != nil {
			return nil
		}
	}
	return nil
}

var dialer = func() *net.Dialer {
	var d net.Dialer
	d.SetMultipathTCP(false)
	return &d
}()

// forward copies one direction. Its end is passed on as such: an end of stream
// leaves the other direction open, a broken connection breaks both.
func forward(to, from *net.TCPConn, count *atomic.Int64) {
	n, err := io.Copy(to, from) // Spliced in the kernel on Linux.
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

// track remembers a connection to close with the balancer; false if that is
// gone already.
func (b *balancer) track(c net.Conn) bool {
	b.connMu.Lock()
	defer b.connMu.Unlock()
	if b.conns == nil {
		return false
	}
	b.conns[c] = struct{}{}
	return true
}

func (b *balancer) untrack(c net.Conn) {
	b.connMu.Lock()
	defer b.connMu.Unlock()
	delete(b.conns, c)
}
