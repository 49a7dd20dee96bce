// Package testcerts makes certificates for tests.
package testcerts

import (
	"crypto/x509"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/fakecloud/certs"
)

// For makes a certificate of its own for hosts, valid for a year, and its private key, as PEM.
func For(t testing.TB, hosts ...string) (certificate, privateKey string) {
	t.Helper()
	now := time.Now()
	pair, err := certs.Issue(&x509.Certificate{DNSNames: hosts, NotAfter: now.AddDate(1, 0, 0)}, nil, now)
	require.NoError(t, err)
	cert, key, err := pair.Encode()
	require.NoError(t, err)
	return string(cert), string(key)
}
