package pki_test

import (
	"crypto/tls"
	"crypto/x509"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/lab/pki"
)

// readCertificate reads the certificate of a pair, whose key must fit.
func leaf(t *testing.T, p pki.Pair) *x509.Certificate {
	t.Helper()
	pair, err := tls.LoadX509KeyPair(p.Cert, p.Key)
	require.NoError(t, err)
	cert, err := x509.ParseCertificate(pair.Certificate[0])
	require.NoError(t, err)
	for _, file := range []string{p.Cert, p.Key} {
		info, err := os.Stat(file)
		require.NoError(t, err)
		assert.Equal(t, os.FileMode(0o600), info.Mode().Perm(), file)
	}
	return cert
}

// A certificate is valid only under the CA that signed it, and only for its usages and names.
func TestCertificates(t *testing.T) {
	dir := t.TempDir()
	ca, err := pki.LoadOrCreate(dir, "ca")
	require.NoError(t, err)
	_, err = pki.LoadOrCreate(dir, "other")
	require.NoError(t, err)
	again, err := pki.LoadOrCreate(dir, "ca") // From its files.
	require.NoError(t, err)

	server, err := ca.Ensure(
		dir, "server", pki.Identity{Name: "cloud", Addresses: []string{"10.123.0.2"}, DNSNames: []string{"fakecloud"}},
	)
	require.NoError(t, err)
	client, err := again.Ensure(dir, "client", pki.Identity{Name: "me", Groups: []string{"us"}})
	require.NoError(t, err)
	assert.Equal(t, []string{"us"}, leaf(t, client).Subject.Organization)

	verify := func(p pki.Pair, authority, name string, usage x509.ExtKeyUsage) error {
		pem, err := os.ReadFile(pki.PairAt(dir, authority).Cert)
		require.NoError(t, err)
		roots := x509.NewCertPool()
		require.True(t, roots.AppendCertsFromPEM(pem))
		_, err = leaf(t, p).
			Verify(x509.VerifyOptions{Roots: roots, DNSName: name, KeyUsages: []x509.ExtKeyUsage{usage}})
		return err
	}
	assert.NoError(t, verify(server, "ca", "10.123.0.2", x509.ExtKeyUsageServerAuth))
	assert.NoError(t, verify(server, "ca", "fakecloud", x509.ExtKeyUsageServerAuth))
	assert.Error(t, verify(server, "ca", "10.123.0.3", x509.ExtKeyUsageServerAuth))
	assert.NoError(t, verify(client, "ca", "", x509.ExtKeyUsageClientAuth))
	assert.Error(t, verify(client, "ca", "", x509.ExtKeyUsageServerAuth), "without an address it serves nothing")
	assert.Error(t, verify(server, "other", "", x509.ExtKeyUsageServerAuth))

	before := leaf(t, server)
	_, err = again.Ensure(dir, "server", pki.Identity{Name: "somebody else"})
	require.NoError(t, err)
	assert.Equal(t, before, leaf(t, server), "one that is there is kept")
}

func TestDamagedAuthority(t *testing.T) {
	dir := t.TempDir()
	_, err := pki.LoadOrCreate(dir, "ca")
	require.NoError(t, err)
	files := pki.PairAt(dir, "ca")
	for _, file := range []string{files.Key, files.Cert} {
		require.NoError(t, os.WriteFile(file, []byte("cut sho"), 0o600))
		_, err = pki.LoadOrCreate(dir, "ca")
		assert.ErrorContains(t, err, filepath.Base(files.Cert))
	}
}
