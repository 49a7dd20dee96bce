package dataplane_test

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/dataplane"
	"github.com/ccmlab/ccmlab/fakecloud/internal/must"
	"github.com/ccmlab/ccmlab/fakecloud/internal/testcerts"
)

// newTLSListener starts a listener of tls before a target, and returns what connects to it.
func newTLSListener(t *testing.T, serve func(net.Conn)) (p *dataplane.Plane, port int, connect func() *tls.Conn) {
	t.Helper()
	p, port = newPlane(t), freePort(t)
	f := forwarding(startTarget(t, two, 0, serve), []string{two}, port)
	f.Listeners[0].Protocol, f.Listeners[0].CertificateIDs = api.ProtocolTLS, []string{"shop"}
	certificate, key := testcerts.For(t, "shop.example")
	roots := x509.NewCertPool()
	require.True(t, roots.AppendCertsFromPEM([]byte(certificate)))
	f.Certificates = map[string]tls.Certificate{"shop": must.Do(tls.X509KeyPair([]byte(certificate), []byte(key)))(t)}
	require.NoError(t, p.Apply(f))
	return p, port, func() *tls.Conn {
		c := tls.Client(must.Do(dialFrom(t, four, port))(t), &tls.Config{
			RootCAs: roots, ServerName: "shop.example", NextProtos: []string{"mqtt"},
		})
		require.NoError(t, c.SetDeadline(time.Now().Add(testTimeout)))
		require.NoError(t, c.HandshakeContext(t.Context()))
		return c
	}
}

// What a client sends by TLS reaches its target without that, and the other way round, until each side has ended.
func TestTLSCarriesBytes(t *testing.T) {
	p, port, connect := newTLSListener(t, echo)
	c, text := connect(), strings.Repeat("hello ", 100_000)
	go func() {
		_, _ = io.WriteString(c, text)
		_ = c.CloseWrite()
	}()
	assert.Equal(t, text, string(must.Do(io.ReadAll(c))(t)))
	require.NoError(t, c.Close())
	awaitNoConnections(t, p)
	curt := connect()
	requireEcho(t, curt, "hello")
	require.NoError(t, curt.NetConn().(*net.TCPConn).CloseWrite()) // Without the alert that TLS has for that.
	assert.Empty(t, must.Do(io.ReadAll(curt))(t))
	require.NoError(t, curt.NetConn().Close())
	awaitNoConnections(t, p)
	assert.Zero(t, listenerStats(p).BrokenConnections)
	plain := must.Do(dialFrom(t, four, port))(t)
	must.Do(io.WriteString(plain, "GET / HTTP/1.1\r\n\r\n"))(t)
	must.Do(io.ReadAll(plain))(t)
	awaitNoConnections(t, p)
}

// A connection that breaks on one side of the balancer breaks on the other.
func TestTLSPassesResetsOn(t *testing.T) {
	broken := make(chan error, 1)
	p, _, connect := newTLSListener(t, func(c net.Conn) {
		first := make([]byte, 1)
		_, _ = io.ReadFull(c, first)
		if first[0] == 'r' {
			_ = c.(*net.TCPConn).SetLinger(0)
			return
		}
		_, err := io.ReadFull(c, first)
		broken <- err
	})
	c := connect()
	must.Do(io.WriteString(c, "r"))(t)
	_, err := c.Read(make([]byte, 1))
	require.Error(t, err)
	require.False(t, errors.Is(err, io.EOF), "the client takes it for an orderly end")
	c = connect()
	must.Do(io.WriteString(c, "w"))(t)
	require.NoError(t, c.NetConn().(*net.TCPConn).SetLinger(0))
	require.NoError(t, c.NetConn().Close())
	require.ErrorContains(t, <-broken, "reset")
	awaitNoConnections(t, p)
	assert.EqualValues(t, 2, listenerStats(p).BrokenConnections)
}
