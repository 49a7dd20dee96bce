package faultproxy

// The CCM's way to the cloud: a forwarder of TCP connections that can be shut,
// since no server can refuse connections to one caller only.

import (
	"context"
	"crypto/tls"
	"crypto/x509"
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
	shown    *shownCertificate // nil while the CCM sees the cloud's own
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
	near, far, err := g.endTLS(conn, to)
	if err != nil {
		return
	}
	var both sync.WaitGroup
	pipe := func(dst, src net.Conn) {
		if _, err := io.Copy(dst, src); err != nil {
			// One end broke it off; the other is to see that, and no orderly end.
			_ = conn.(*net.TCPConn).SetLinger(0)
			_ = to.(*net.TCPConn).SetLinger(0)
			g.closeConns(conn, to)
			return
		}
		_ = dst.(interface{ CloseWrite() error }).CloseWrite()
	}
	both.Go(func() { pipe(far, near) })
	both.Go(func() { pipe(near, far) })
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
	g.breakOff()
}

// breakOff ends all connections. The caller holds mu.
func (g *Gate) breakOff() {
	for c := range g.open {
		_ = c.Close()
	}
}

// shownCertificate is one that the CCM is shown instead of the cloud's: the gate ends TLS, and begins it anew
// towards the cloud.
type shownCertificate struct {
	g             *Gate
	server, cloud *tls.Config

	hits int // guarded by g.mu
}

// PresentCertificate shows a certificate to who comes through the gate, instead of the cloud's, until that is
// lifted. The cloud's own is verified by the CAs in roots, as PEM. Hits counts the connections on which the new
// one was accepted.
func (g *Gate) PresentCertificate(certificate tls.Certificate, roots []byte) (conformance.Injection, error) {
	host, _, err := net.SplitHostPort(g.cloud)
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(roots) {
		return nil, errors.New("the cloud's CA holds no PEM certificate")
	}
	s := &shownCertificate{
		g:      g,
		server: &tls.Config{Certificates: []tls.Certificate{certificate}, MinVersion: tls.VersionTLS12},
		cloud:  &tls.Config{RootCAs: pool, ServerName: host, MinVersion: tls.VersionTLS12},
	}
	g.showCertificate(s)
	return s, nil
}

// showCertificate has connections begin anew with a certificate; nil for the cloud's own.
func (g *Gate) showCertificate(s *shownCertificate) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.shown = s
	g.breakOff()
}

// handshakeTimeout bounds how long TLS takes to begin at the gate.
const handshakeTimeout = 5 * time.Second

// endTLS returns what to pass on between: the connections themselves, or what is in their TLS while the gate
// shows a certificate.
func (g *Gate) endTLS(conn, to net.Conn) (near, far net.Conn, err error) {
	g.mu.Lock()
	s := g.shown
	g.mu.Unlock()
	if s == nil {
		return conn, to, nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), handshakeTimeout)
	defer cancel()
	ccm, cloud := tls.Server(conn, s.server), tls.Client(to, s.cloud)
	if err := ccm.HandshakeContext(ctx); err != nil {
		return nil, nil, err
	}
	g.mu.Lock()
	s.hits++
	g.mu.Unlock()
	return ccm, cloud, cloud.HandshakeContext(ctx)
}

// Hits implements conformance.Injection.
func (s *shownCertificate) Hits(context.Context) (int, error) {
	s.g.mu.Lock()
	defer s.g.mu.Unlock()
	return s.hits, nil
}

// Lift implements conformance.Injection.
func (s *shownCertificate) Lift(context.Context) error {
	s.g.showCertificate(nil)
	return nil
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
