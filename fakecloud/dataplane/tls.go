package dataplane

import (
	"context"
	"crypto/tls"
	"io"
	"net"
	"slices"

	"github.com/ccmlab/ccmlab/fakecloud/cloud"
)

// tlsConfig is for a listener of https or tls; nil for others. It stays while the certificates do, so that clients can
// resume their sessions: each has keys of its own for those. In https HTTP/1.1 is spoken, as without TLS.
func tlsConfig(l cloud.Listener, certificates map[string]tls.Certificate, had *route) *tls.Config {
	switch {
	case len(l.CertificateIDs) == 0:
		return nil
	case had != nil && had.listener.Protocol == l.Protocol &&
		slices.Equal(had.listener.CertificateIDs, l.CertificateIDs):
		return had.tls
	}
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if l.Protocol.IsHTTP() {
		config.NextProtos = []string{"http/1.1"}
	}
	for _, id := range l.CertificateIDs {
		config.Certificates = append(config.Certificates, certificates[id])
	}
	return config
}

// serveTLS ends TLS for a client, and carries bytes between it and a target.
func (l *listener) serveTLS(r *route, f *flow) {
	defer l.finishFlow(f)
	if !l.balancer.flows.add(f) {
		return
	}
	f.idle = newIdleTimer(r.idleTimeout, f.resetBoth)
	client := tls.Server(&countedConn{
		Conn: f.clientConn, in: &l.bytesIn, out: &l.bytesOut, idle: f.idle,
		onClose: func(broken bool) { f.broken.CompareAndSwap(false, broken) },
	}, r.tls)
	defer func() { _ = client.Close() }()
	handshake, cancel := context.WithTimeout(l.balancer.ctx, headerTimeout)
	defer cancel()
	if client.HandshakeContext(handshake) != nil {
		return
	}
	target, err := l.dialForRequest(f, &stickyRequest{})
	if err != nil {
		resetConnection(f.clientConn)
		return
	}
	defer func() { _ = target.Close() }()
	targetConn, sent := target.Conn.(*net.TCPConn), make(chan struct{})
	resetBoth := func() {
		f.resetBoth()
		resetConnection(targetConn)
	}
	l.balancer.goroutines.Go(func() {
		defer close(sent)
		carryBytes(target, client, targetConn.CloseWrite, resetBoth)
	})
	carryBytes(client, target, client.CloseWrite, resetBoth)
	<-sent
}

// carryBytes copies one direction and passes its end on: a broken connection resets both. To crypto/tls a client that
// ends without the alert for that, as many do, has ended in good order.
func carryBytes(to io.Writer, from io.Reader, closeWrite func() error, resetBoth func()) {
	_, err := io.Copy(to, from)
	if err == nil {
		err = closeWrite()
	}
	if err != nil {
		resetBoth()
	}
}
