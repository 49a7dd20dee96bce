package faultproxy

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/lab/pki"
)

// open is a gate to a server that answers "cloud", and resets whoever asks for
// /reset.
func open(t *testing.T) *Gate {
	cloud := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/reset" {
			conn, _, err := http.NewResponseController(w).Hijack()
			if assert.NoError(t, err) {
				assert.NoError(t, errors.Join(conn.(*net.TCPConn).SetLinger(0), conn.Close()))
			}
			return
		}
		_, _ = io.WriteString(w, "cloud")
	}))
	t.Cleanup(cloud.Close)
	g, err := OpenGate("127.0.0.1", strings.TrimPrefix(cloud.URL, "http://"))
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, g.Close()) })
	return g
}

// get asks through the gate, over a connection of its own.
func get(t *testing.T, g *Gate, path string) (string, error) {
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+g.Address()+path, nil)
	require.NoError(t, err)
	resp, err := client.Do(req)
	if err != nil {
		return "", err
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	return string(body), err
}

// What the cloud breaks off is no orderly end for the CCM either.
func TestGatePassesResetsOn(t *testing.T) {
	_, err := get(t, open(t), "/reset")
	require.ErrorIs(t, err, syscall.ECONNRESET)
}

// Shut, the gate refuses new connections and breaks off those that are open;
// one attempt every few seconds is counted; lifted, it is where it was.
func TestGateRefuses(t *testing.T) {
	g := open(t)
	kept, err := net.Dial("tcp", g.Address())
	require.NoError(t, err)
	_, err = io.WriteString(kept, "GET / HTTP/1.1\r\nHost: cloud\r\n\r\n")
	require.NoError(t, err)
	_, err = kept.Read(make([]byte, 1)) // It goes through the gate by now.
	require.NoError(t, err)

	shut, err := g.Refuse()
	require.NoError(t, err)
	_, err = io.Copy(io.Discard, kept)
	if err != nil {
		require.ErrorIs(t, err, syscall.ECONNRESET)
	}
	_, err = get(t, g, "/")
	require.ErrorIs(t, err, syscall.ECONNREFUSED)
	_, err = g.Refuse()
	require.ErrorContains(t, err, "shut already")

	for hits := 0; hits == 0; {
		_, err = get(t, g, "/")
		require.Error(t, err)
		hits, err = shut.Hits(t.Context())
		require.NoError(t, err)
	}

	lift, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	require.NoError(t, shut.Lift(lift))
	require.NoError(t, shut.Lift(lift), "a second time does nothing")
	body, err := get(t, g, "/")
	require.NoError(t, err)
	assert.Equal(t, "cloud", body)
}

// While the gate shows another certificate, only those come through who know its CA, open connections end, and
// what is lifted is as it was.
func TestGatePresentsCertificate(t *testing.T) {
	cloud := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "cloud")
	}))
	t.Cleanup(cloud.Close)
	g, err := OpenGate("127.0.0.1", strings.TrimPrefix(cloud.URL, "https://"))
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, g.Close()) })
	former := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cloud.Certificate().Raw})
	dir := t.TempDir()
	authority, err := pki.LoadOrCreate(dir, "ca")
	require.NoError(t, err)
	files, err := authority.Ensure(dir, "cloud", pki.Identity{Name: "cloud", Addresses: []string{"127.0.0.1"}})
	require.NoError(t, err)
	certificate, err := tls.LoadX509KeyPair(files.Cert, files.Key)
	require.NoError(t, err)
	renewed, err := os.ReadFile(pki.PairAt(dir, "ca").Cert)
	require.NoError(t, err)
	knows := func(ca []byte) *http.Client {
		pool := x509.NewCertPool()
		require.True(t, pool.AppendCertsFromPEM(ca))
		return &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}}}
	}
	ask := func(client *http.Client) error {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+g.Address(), nil)
		require.NoError(t, err)
		resp, err := client.Do(req)
		if err != nil {
			return err
		}
		defer func() { _ = resp.Body.Close() }()
		body, err := io.ReadAll(resp.Body)
		assert.Equal(t, "cloud", string(body))
		return err
	}
	before := knows(former)
	require.NoError(t, ask(before))

	shown, err := g.PresentCertificate(certificate, former)
	require.NoError(t, err)
	require.ErrorContains(t, ask(before), "unknown authority", "its open connection has ended")
	assert.Zero(t, hits(t, shown))
	require.NoError(t, ask(knows(renewed)))
	assert.Equal(t, 1, hits(t, shown))
	require.NoError(t, shown.Lift(t.Context()))
	require.NoError(t, ask(before))
}
