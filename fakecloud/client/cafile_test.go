package client_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/fakecloud/client"
	"github.com/ccmlab/ccmlab/fakecloud/internal/must"
)

// newAuthority makes a certificate for 127.0.0.1 that signs itself, and its PEM.
func newAuthority(t *testing.T, serial int64) (*tls.Certificate, []byte) {
	key := must.Do(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(t)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(serial), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	der := must.Do(x509.CreateCertificate(rand.Reader, template, template, key.Public(), key))(t)
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key},
		pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

// A CA file that changes counts from the next call on; one that cannot be used does not count, which is
// reported once.
func TestChangedCAFileCounts(t *testing.T) {
	oldCert, oldCA := newAuthority(t, 1)
	newCert, newCA := newAuthority(t, 2)
	var serves atomic.Pointer[tls.Certificate]
	serves.Store(oldCert)
	cloud := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		answer(w, instance("i-1"))
	}))
	cloud.TLS = &tls.Config{GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
		return &tls.Config{Certificates: []tls.Certificate{*serves.Load()}, MinVersion: tls.VersionTLS12}, nil
	}}
	cloud.StartTLS()
	defer cloud.Close()
	dir := t.TempDir()
	cfg := client.Config{URL: cloud.URL, TokenFile: filepath.Join(dir, "token"), CAFile: filepath.Join(dir, "ca")}
	var reports []string
	cfg.Report = func(err error) { reports = append(reports, err.Error()) }
	write := func(file string, content []byte) { require.NoError(t, os.WriteFile(file, content, 0o600)) }
	write(cfg.TokenFile, []byte("secret"))
	write(cfg.CAFile, oldCA)
	c, err := client.New(cfg)
	require.NoError(t, err)
	call := func() error {
		_, err := c.GetInstance(client.OneAttempt(t.Context()), "i-1")
		return err
	}
	require.NoError(t, call())

	write(cfg.CAFile, newCA)
	assert.ErrorContains(t, call(), "unknown authority", "an open connection ends with the CA that it was made with")
	serves.Store(newCert)
	require.NoError(t, call())
	assert.Empty(t, reports)

	for name, broken := range map[string][]byte{
		"no PEM certificate": []byte("nothing"), "within a certificate": append(newCA, oldCA[:200]...),
	} {
		reports = nil
		write(cfg.CAFile, broken)
		for range 2 {
			require.NoError(t, call(), "the last good one stays in use")
		}
		require.Len(t, reports, 1)
		assert.Contains(t, reports[0], name)
	}
	require.NoError(t, os.Remove(cfg.CAFile))
	cloud.CloseClientConnections()
	require.NoError(t, call())
	serves.Store(oldCert)
	cloud.CloseClientConnections()
	assert.ErrorContains(t, call(), "no such file", "a call that fails says so, too")

	write(cfg.CAFile, oldCA)
	require.NoError(t, call())
}
