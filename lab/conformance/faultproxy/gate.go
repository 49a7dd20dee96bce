package faultproxy

// The CCM's way to the cloud: a forwarder of TCP connections that can be shut,
// since no server can refuse connections to one caller only.

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"github.com/ccmlab/ccmlab/lab/conformance"
)

// Gate forwards connections to the cloud, or to another server.
type Gate struct {
	address, cloud string

	mu       sync.Mutex
	listener net.Listener // nil while shut
	open     map[net.Conn]struct{}
	refusal  *refusal
	running  sync.WaitGroup
}

// OpenGate listens on a free port of host and forwards to cloud, a host:port.
func OpenGate(host, cloud string) (*Gate, error) {
	g := &Gate{address: net.JoinHostPort(host, "0"), cloud: cloud, open: map[net.Conn]struct{}{}}
	l, err := net.Listen("tcp", g.address)
	if err != nil {
		return nil, fmt.Errorf("opening a gate to %s: %w", cloud, err)
	}
	g.address = l.Addr().String()
	g.acceptFrom(l)
	return g, nil
}

// Address is where the cloud is for those who come through the gate.
func (g *Gate) Address() string { return g.address }

func (g *Gate) acceptFrom(l net.Listener) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.listener = l
	g.running.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return // Shut, or closed.
			}
			g.running.Go(func() { g.forwardConn(conn) })
		}
	})
}

func (g *Gate) forwardConn(conn net.Conn) {
	to, err := net.DialTimeout("tcp", g.cloud, 5*time.Second)
	if err != nil {
		_ = conn.Close()
		return
	}
	defer g.closeConns(conn, to)
	if !g.addConns(conn, to) {
		return
	}
	var both sync.WaitGroup
	pipe := func(dst, src net.Conn) {
		if _, err := io.Copy(dst, src); err != nil {
			// One end broke it off; the other is to see that, and no orderly end.
			_ = dst.(*net.TCPConn).SetLinger(0)
			_ = src.(*net.TCPConn).SetLinger(0)
			g.closeConns(dst, src)
			return
		}
		_ = dst.(*net.TCPConn).CloseWrite()
	}
	both.Go(func() { pipe(to, conn) })
	both.Go(func() { pipe(conn, to) })
	both.Wait()
}

func (g *Gate) addConns(conns ...net.Conn) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, c := range conns {
		g.open[c] = struct{}{}
	}
	return g.listener != nil
}

func (g *Gate) closeConns(conns ...net.Conn) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, c := range conns {
		_ = c.Close()
		delete(g.open, c)
	}
}

// stopListening stops listening, and breaks off what is under way.
func (g *Gate) stopListening() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.listener != nil {
		_ = g.listener.Close()
		g.listener = nil
	}
	for c := range g.open {
		_ = c.Close()
	}
}

// Close ends it.
func (g *Gate) Close() error {
	g.mu.Lock()
	shut := g.refusal
	g.mu.Unlock()
	var err error
	if shut != nil {
		err = shut.Lift(context.Background())
	}
	g.stopListening()
	g.running.Wait()
	return err
}

// refusalInterval is how long nobody listens before one attempt is looked at: long
// enough for a CCM that comes every few seconds to be refused.
const refusalInterval = 3 * time.Second

// refusal keeps a gate shut. Nobody sees the attempts that the kernel refuses, so
// every few seconds the refusal listens until one comes, counts it and resets it.
type refusal struct {
	g      *Gate
	cancel context.CancelFunc
	ended  chan struct{}
	once   sync.Once
	err    error

	mu   sync.Mutex
	hits int
}

// Refuse shuts the gate until that is lifted.
func (g *Gate) Refuse() (conformance.Injection, error) {
	ctx, cancel := context.WithCancel(context.Background())
	r := &refusal{g: g, cancel: cancel, ended: make(chan struct{})}
	g.mu.Lock()
	if g.refusal != nil {
		g.mu.Unlock()
		cancel()
		return nil, errors.New("the gate is shut already")
	}
	g.refusal = r
	g.mu.Unlock()
	g.stopListening()
	go func() {
		defer close(r.ended)
		for ctx.Err() == nil {
			select {
			case <-ctx.Done():
			case <-time.After(refusalInterval):
				r.countAttempt(ctx)
			}
		}
	}()
	return r, nil
}

// countAttempt counts one attempt.
func (r *refusal) countAttempt(ctx context.Context) {
	l, err := net.Listen("tcp", r.g.address)
	if err != nil {
		return // Somebody has the port for the moment; it is refused all the same.
	}
	defer context.AfterFunc(ctx, func() { _ = l.Close() })()
	conn, err := l.Accept()
	_ = l.Close()
	if err != nil {
		return
	}
	_ = conn.(*net.TCPConn).SetLinger(0)
	_ = conn.Close()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.hits++
}

// Hits counts what was looked at, which is less than what was refused.
func (r *refusal) Hits(context.Context) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.hits, nil
}

// Lift opens the gate again, at the same address.
func (r *refusal) Lift(ctx context.Context) error {
	r.once.Do(func() {
		r.cancel()
		<-r.ended
		r.g.mu.Lock()
		r.g.refusal = nil
		r.g.mu.Unlock()
		var l net.Listener
		if l, r.err = listenAgain(ctx, r.g.address); r.err == nil {
			r.g.acceptFrom(l)
		}
	})
	return r.err
}

// listenAgainInterval is how often listenAgain tries.
const listenAgainInterval = 50 * time.Millisecond

// listenAgain listens at an address that somebody else may have for the moment.
func listenAgain(ctx context.Context, address string) (net.Listener, error) {
	tick := time.NewTicker(listenAgainInterval)
	defer tick.Stop()
	for {
		l, err := net.Listen("tcp", address)
		if err == nil {
			return l, nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil, fmt.Errorf("waiting for the cloud's address: %w: %w", context.Cause(ctx), err)
		}
	}
}
